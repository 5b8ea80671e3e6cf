"""What circuits must know of a trained head of one layer, and the directions of its stream that they get.

Codes of tokens lie where the stream hardly varies, so that taking that away costs the head little.  Votes lie where the
rows that decide vary much and the stream little: there a token is told from all others at the least length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.models import rotary
from specdec.models.eagle import EagleLayer
from specdec.training.corpus import States
from specdec.training.eagle import EagleModule, StepAttention

CODE = 48
"""Numbers in a token's code, and directions for votes, at most."""


@dataclass(frozen=True)
class Sizes:
    """How many numbers a code has and how many are compared (`matched`), in a head of this width."""

    hidden: int
    head_dim: int

    @property
    def code(self) -> int:
        return min(CODE, self.hidden // 8, self.head_dim - 1)

    @property
    def matched(self) -> int:
        return self.head_dim // 2 - 2

    @property
    def reserved(self) -> int:
        """Directions for codes: the token that comes next, what is asked, what is offered, and a constant."""
        return 2 * self.matched + self.code + 1


@dataclass(frozen=True)
class Stream:
    """Readouts (rows of weights) and directions [h, n]; `size`: root mean square of the stream behind the layer."""

    size: float
    codes: Tensor
    votes: Tensor
    code: Tensor
    """[c, h + 1]: the code of a token from its normed embedding and a constant."""
    saying: Tensor
    """[h, c]: from a code to what says its token."""
    one_of_token: Tensor
    """[h]: of the normed embedding, about 1 for every token."""
    one_of_row: Tensor
    """[h]: of the normed stream, about 1 at every position."""
    first: Tensor
    """[h]: of the normed stream, 1 at the first position and about 0 elsewhere."""

    @property
    def kept(self) -> Tensor:
        """[h, h]: takes off what is reserved."""
        taken = torch.cat([self.codes, self.votes], 1)
        return torch.eye(len(taken)) - taken @ taken.T

    def codes_of(self, tokens: Tensor) -> Tensor:
        """[..., c] of normed embeddings [..., h]."""
        return F.linear(tokens, self.code[:, :-1], self.code[:, -1])


@torch.no_grad()
def survey(module: EagleModule, states: Sequence[States], used: Tensor, counts: Tensor) -> Stream:
    """`states`: of conversations from their first token on; `used` [V_d]: the target's ids of the draft vocabulary, and
    `counts` [V_d] how often each occurs."""
    layer, sizes = module.layer(), Sizes(module.config.hidden_size, module.config.head_dim)
    rows, first, tokens = _rows(module, layer, states)
    size = float(rows.pow(2).mean(-1).sqrt().median())
    units = _unit(rows)
    spread = units.T @ units / len(units)
    directions = torch.linalg.eigh(spread).eigenvectors  # the least varying first
    codes, rest = directions[:, : sizes.reserved], directions[:, sizes.reserved :]
    final = module.norms["final"]
    deciding = module.head.float() * final
    weight = counts.clamp(min=1).float().sqrt()
    votes = _votes(rest, spread, deciding, weight, sizes.code)
    known = normed(module, module.embedding[used])
    code, saying = _code(known, deciding @ votes, weight)
    stream = Stream(size, codes, votes, code, votes @ saying, *(torch.zeros(rows.shape[1]) for _ in range(3)))
    seen = _unit(torch.cat([rows, first]) @ stream.kept)
    ones = torch.ones(len(seen))
    at_first = torch.cat([torch.zeros(len(rows)), torch.ones(len(first))])
    return replace(
        stream,
        one_of_token=_readout(tokens, torch.ones(len(tokens)), 1e-3),
        one_of_row=_readout(seen, ones, 1e-2),
        first=_readout(seen, at_first, 1e-2, balanced=len(first)),
    )


def _rows(module: EagleModule, layer: EagleLayer, states: Sequence[States]) -> tuple[Tensor, Tensor, Tensor]:
    """Streams behind the layer, those of first positions apart, and normed embeddings of the tokens."""
    rows, first, tokens = [], [], []
    for item in states:
        count = item.length
        turns = rotary.table(module.config, count, torch.float32, torch.device("cpu"))
        embedded = F.embedding(item.ids[1 : count + 1], module.embedding).float()
        out = layer.step(embedded[None], layer.fuse(item.features.float())[None], StepAttention(count), turns)[0]
        rows.append(out[1:])
        first.append(out[:1])
        tokens.append(normed(module, embedded))
    return torch.cat(rows), torch.cat(first), torch.cat(tokens)


def normed(module: EagleModule, embedded: Tensor) -> Tensor:
    """Embeddings as the layer reads them."""
    return F.rms_norm(embedded.float(), embedded.shape[-1:], module.norms["input"], module.config.eps)


def _unit(rows: Tensor) -> Tensor:
    return rows / rows.pow(2).mean(-1, keepdim=True).sqrt()


def _votes(rest: Tensor, spread: Tensor, deciding: Tensor, weight: Tensor, count: int) -> Tensor:
    """[h, count]: of the directions in `rest`, those with most variance of the deciding rows for that of the stream."""
    centred = deciding - _mean(deciding, weight)
    told = rest.T @ (centred * (weight / weight.sum())[:, None]).T @ centred @ rest
    varies = rest.T @ spread @ rest
    varies = varies + 3e-4 * torch.eye(len(varies))
    lower = torch.linalg.cholesky(varies)
    half = torch.linalg.solve_triangular(lower, told, upper=False)
    both = torch.linalg.solve_triangular(lower, half.T, upper=False)
    best = torch.linalg.eigh((both + both.T) / 2).eigenvectors[:, -count:]
    return torch.linalg.qr(rest @ torch.linalg.solve_triangular(lower.T, best, upper=True)).Q


def _code(known: Tensor, told: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """([c, h + 1], [c, c]): codes are the deciding rows' whitened coordinates, read off the embeddings; the second
    matrix makes of a code what the rows answer to."""
    centred = told - _mean(told, weight)
    values, vectors = torch.linalg.eigh((centred * (weight / weight.sum())[:, None]).T @ centred)
    whitening = vectors @ torch.diag((values + 0.05 * values.mean()).rsqrt()) @ vectors.T
    wanted = centred @ whitening
    wanted = wanted / _mean(wanted.pow(2).sum(-1, keepdim=True), weight).sqrt()
    given = torch.cat([known, torch.ones(len(known), 1)], 1)
    return _least_squares(given, wanted, weight, 1e-3).T, whitening


def _mean(rows: Tensor, weight: Tensor) -> Tensor:
    return (rows * weight[:, None]).sum(0) / weight.sum()


def _readout(rows: Tensor, wanted: Tensor, ridge: float, balanced: int = 0) -> Tensor:
    """[h]: least squares; the last `balanced` rows count as much as all the others."""
    weight = torch.ones(len(rows))
    if balanced:
        weight[-balanced:] = (len(rows) - balanced) / balanced
    return _least_squares(rows, wanted, weight, ridge)


def _least_squares(rows: Tensor, wanted: Tensor, weight: Tensor, ridge: float) -> Tensor:
    squares = (rows * weight[:, None]).T @ rows
    squares = squares + ridge * squares.diag().mean() * torch.eye(len(squares))
    return torch.linalg.solve(squares, (rows * weight[:, None]).T @ wanted)
