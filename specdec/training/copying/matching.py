"""Codes by which a place is found whose last two tokens are the text's: learned from token ids alone, in minutes.

A place p offers B1 z[x_p] + B2 z[x_p-1], the text's end asks with A0 z[x_j+1] + A1 z[x_j], where z is a token's code;
an attention head compares the two, turned by rotary positions, and may look at a sink instead.  It is taught to look
where what followed is what comes now, and at the sink where nothing like that stands in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

NOWHERE = -1e9


@dataclass(frozen=True)
class Match:
    """`asked` and `offered`: two matrices [m, c] each, of the later and the earlier token."""

    asked: tuple[Tensor, Tensor]
    offered: tuple[Tensor, Tensor]
    sharpness: float
    sink: float


class _Matcher(torch.nn.Module):
    def __init__(self, code: int, matched: int, frequencies: Tensor, generator: torch.Generator):
        super().__init__()
        scale = (code / matched) ** 0.5

        def some() -> Tensor:
            full = torch.linalg.qr(torch.randn(code, max(code, matched), generator=generator)).Q
            return full[:, :matched].T.contiguous() * scale if matched <= code else torch.randn(matched, code) / 8

        first, second = some(), some()
        self.a0, self.a1, self.b1, self.b2 = (torch.nn.Parameter(m.clone()) for m in (first, second, first, second))
        self.sharpness = torch.nn.Parameter(torch.tensor(8.0))
        self.sink = torch.nn.Parameter(torch.tensor(12.0))
        self.register_buffer("frequencies", frequencies)

    def forward(self, codes: Tensor) -> Tensor:
        """[n, 1 + n] log-weights of sink and places, for codes of tokens 0 to n + 1; row i stands at token i + 1."""
        later, here, earlier = codes[2:], codes[1:-1], codes[:-2]
        asked = later @ self.a0.T + here @ self.a1.T
        offered = here @ self.b1.T + earlier @ self.b2.T
        angles = torch.arange(len(here))[:, None] * self.frequencies
        turns = torch.polar(torch.ones_like(angles), angles)
        scores = self.sharpness * (_turned(asked, turns) @ _turned(offered, turns).T)
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(), NOWHERE)
        return torch.cat([self.sink.expand(len(here), 1), scores], 1).log_softmax(-1)


def _turned(rows: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(rows.reshape(len(rows), -1, 2).contiguous())
    return torch.view_as_real(pairs * turns).flatten(1)


def places(ids: Tensor) -> Tensor:
    """[n, n], bool: place p is behind the same two tokens as the text's end, and what followed it is what comes."""
    n = len(ids) - 3
    later, here, earlier = ids[2:-1], ids[1:-2], ids[:-3]
    same = (later[:, None] == here[None]) & (here[:, None] == earlier[None]) & torch.ones(n, n).tril(-1).bool()
    return same & (ids[3:, None] == later[None])


def learn(
    texts: Sequence[Sequence[int]],
    codes: Tensor,
    matched: int,
    frequencies: Tensor,
    *,
    updates: int = 4000,
    batch: int = 4,
    seed: int = 0,
    report: Callable[[int], None] = lambda update: None,
) -> Match:
    """`codes` [V, c]; `frequencies` [m / 2] in radians a position.  Deterministic, in the order that the seed gives."""
    generator = torch.Generator().manual_seed(seed)
    matcher = _Matcher(codes.shape[1], matched, frequencies.float(), generator)
    scalars = [matcher.sharpness, matcher.sink]
    matrices = [matcher.a0, matcher.a1, matcher.b1, matcher.b2]
    peaks = (6e-3, 3e-2)
    adam = torch.optim.Adam([{"params": matrices}, {"params": scalars}])
    order: list[int] = []
    for update in range(updates):
        for group, peak in zip(adam.param_groups, peaks, strict=True):
            group["lr"] = peak * min(1.0, (update + 1) / 20) * (1 - update / updates)
        loss = torch.zeros(())
        for _ in range(batch):
            order = order or torch.randperm(len(texts), generator=generator).tolist()
            loss = loss + _loss(matcher, torch.tensor(texts[order.pop()]), codes) / batch
        adam.zero_grad()
        loss.backward()
        adam.step()
        report(update + 1)
    a0, a1, b1, b2 = (matrix.detach() for matrix in matrices)
    return Match((a0, a1), (b1, b2), float(matcher.sharpness.detach()), float(matcher.sink.detach()))


def _loss(matcher: _Matcher, ids: Tensor, codes: Tensor) -> Tensor:
    law, right = matcher(codes[ids[:-1]]), places(ids)
    found = law[:, 1:].masked_fill(~right, NOWHERE).logsumexp(1)
    return -torch.where(right.any(1), found, law[:, 0]).mean()
