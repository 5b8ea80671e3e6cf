"""The weights of a head of two layers that copies, around the weights of a trained head of one.

First layer, three more attention heads: one looks at its own position, one at the position before it, one two before
it, whatever stands there.  They write codes of the tokens there into the stream: of the token that a row embeds for
whoever copies from it, and of its last two tokens for the comparison.

Second layer: one attention head compares and brings the code of what followed, written as a vote for that token; a
second one looks at its own row and takes off the vote of the step before, which comes back with the head's own state.
Neurons of its MLP take the codes out of the stream again.  All else there begins at zero output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdec.models import rotary
from specdec.models.eagle import EagleConfig
from specdec.training.copying.matching import Match
from specdec.training.copying.stream import Sizes, Stream

OFFSETS = 3
REACH = 800
"""Positions over which a head that looks at one offset is told from its neighbours."""
SHARP, GATE = 40.0, 8.0
LENGTH = 0.5
"""Of a code, in sizes of the stream."""
TAKEN_CODES, TAKEN_VOTES = 1.2, 1.1
"""How much of what is there is taken off: a little more than all, since the stream grows in self-fed steps."""


@dataclass(frozen=True)
class Places:
    """Where the circuits' own weights lie: slices of rows of `qkv`, of columns of `o`, and neurons, by layer."""

    qkv: tuple[tuple[slice, ...], tuple[slice, ...]]
    o: tuple[tuple[slice, ...], tuple[slice, ...]]
    neurons: int
    """The first so many of the second layer."""


def shape(config: EagleConfig) -> EagleConfig:
    """Of the grown head."""
    group = config.heads // config.kv_heads
    more = -(-OFFSETS // group)
    return replace(config, layers=2, heads=config.heads + more * group, kv_heads=config.kv_heads + more)


def places(grown: EagleConfig) -> Places:
    """`grown` is `shape` of the head before."""
    d, group = grown.head_dim, grown.heads // grown.kv_heads
    more = -(-OFFSETS // group)
    q, kv = grown.heads * d, grown.kv_heads * d
    new_q, new_kv = more * group * d, more * d
    pair = slice(0, d), slice(group * d, group * d + d)
    return Places(
        qkv=(
            (slice(q - new_q, q), slice(q + kv - new_kv, q + kv), slice(q + 2 * kv - new_kv, q + 2 * kv)),
            (*pair, slice(q, q + 2 * d), slice(q + kv, q + kv + 2 * d)),
        ),
        o=((slice(q - new_q, q),), pair),
        neurons=Sizes(grown.hidden_size, d).reserved,
    )


def grow(
    config: EagleConfig,
    weights: Mapping[str, Tensor],
    stream: Stream,
    match: Match,
    *,
    vote: float = 1.2,
    sink: float = 1.0,
    seed: int = 0,
) -> tuple[EagleConfig, dict[str, Tensor]]:
    """`vote`: how loud; `sink`: how readily it is looked at instead of any place, in units of what was learned."""
    grown, generator = shape(config), torch.Generator().manual_seed(seed)
    made = {name: value.float() for name, value in weights.items()}
    made |= _first_layer(config, grown, made, stream, match)
    made |= _second_layer(grown, stream, match, vote, sink, generator)
    return grown, made


def _first_layer(
    config: EagleConfig, grown: EagleConfig, w: Mapping[str, Tensor], stream: Stream, match: Match
) -> dict[str, Tensor]:
    d, h, sizes, kept = grown.head_dim, grown.hidden_size, Sizes(grown.hidden_size, grown.head_dim), stream.kept
    c, m = sizes.code, sizes.matched
    group, old = grown.heads // grown.kv_heads, [config.heads * d, config.kv_heads * d, config.kv_heads * d]
    count = grown.kv_heads - config.kv_heads
    tokens = torch.cat([stream.one_of_token, torch.zeros(h)])
    keys, queries = _looking(grown, tokens)
    values = torch.zeros(d, 2 * h)
    values[:c, :h] = stream.code[:, :-1] + stream.code[:, -1:] * stream.one_of_token
    values[c] = tokens
    out = torch.zeros(h, count * group * d)
    asked, offered, said, one = _split(stream.codes, m, c)

    def write(offset: int, where: Tensor, what: Tensor) -> None:
        out[:, offset * d : offset * d + what.shape[1]] += LENGTH * stream.size * where @ what

    write(0, said, 2 * torch.eye(c))
    write(0, one, torch.eye(c + 1)[c:])
    write(0, asked, match.asked[0])
    write(1, asked, match.asked[1])
    write(1, offered, match.offered[0])
    write(2, offered, match.offered[1])
    # what learned before neither writes there nor reads from there
    reading = torch.cat([w["qkv"][:, :h], _unread(w["qkv"][:, h:], w["hidden"], kept)], 1)
    q, k, v = reading.split(old)
    new = [queries[i] if i < OFFSETS else torch.zeros(d, 2 * h) for i in range(count * group)]
    return {
        "fc": kept @ w["fc"],
        "qkv": torch.cat([q, *new, k, *[keys] * count, v, *[values] * count]),
        "o": torch.cat([kept @ w["o"], out], 1),
        "down": kept @ w["down"],
        "gate_up": _unread(w["gate_up"], w["post"], kept),
    }


def _second_layer(
    grown: EagleConfig, stream: Stream, match: Match, vote: float, sink: float, generator: torch.Generator
) -> dict[str, Tensor]:
    d, h, n = grown.head_dim, grown.hidden_size, grown.intermediate_size
    sizes = Sizes(h, d)
    c, m, group = sizes.code, sizes.matched, grown.heads // grown.kv_heads
    asked, offered, said, one = _split(stream.codes, m, c)

    def some(*shape: int) -> Tensor:
        return 0.02 * torch.randn(*shape, generator=generator)

    q, k, v = some(grown.heads, d, h), some(grown.kv_heads, d, h), some(grown.kv_heads, d, h)
    o = torch.zeros(h, grown.heads * d)
    for ours in (q[0], q[group], k[0], k[1], v[0], v[1]):
        ours.zero_()
    loud = (match.sharpness * d**0.5) ** 0.5  # on both sides; attention divides by the root of d
    slow = slice(d - m - 2, d - 2)
    q[0][slow], k[0][slow] = asked.T / LENGTH * loud, offered.T / LENGTH * loud
    # both sides of the sink's score shrink as the stream grows, as they do in every other score
    q[0][d - 2], k[0][d - 2] = one[:, 0] / LENGTH * loud, stream.first * loud * sink * match.sink / match.sharpness
    v[0][:c] = said.T / LENGTH / 2
    o[:, :c] = stream.saying * stream.size * vote
    keys, queries = _looking(grown, stream.one_of_row)
    q[group], k[1], v[1][:c] = queries[0], keys, stream.votes.T
    o[:, group * d : group * d + c] = -TAKEN_VOTES * stream.size * stream.votes
    gate, up, down = some(n, h), some(n, h), torch.zeros(h, n)
    gate[: sizes.reserved], up[: sizes.reserved] = GATE * stream.one_of_row, stream.codes.T
    down[:, : sizes.reserved] = -TAKEN_CODES * stream.size / GATE * stream.codes
    return {
        "qkv_1": torch.cat([part.flatten(0, 1) for part in (q, k, v)]),
        "o_1": o,
        "gate_up_1": torch.cat([gate, up]),
        "down_1": down,
        "input_1": torch.ones(h),
        "post_1": torch.ones(h),
    }


def _split(codes: Tensor, matched: int, code: int) -> tuple[Tensor, ...]:
    return codes.split([matched, matched, code, 1], dim=1)


def _unread(weight: Tensor, norm: Tensor, kept: Tensor) -> Tensor:
    """A product behind a norm that no longer sees what is reserved."""
    return (weight * norm) @ kept / norm.where(norm.abs() > 1e-3, torch.ones(()))


def _looking(config: EagleConfig, one: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Rows of a key [d, in] and of `OFFSETS` queries that look at the position so far back; `one` reads a constant.

    A key turned by p and a query turned by j - offset meet in a sum of cosines of j - offset - p.  Its weights are of
    least squares for a peak at 0 and nothing elsewhere, most of all not next to it.
    """
    frequencies = rotary.frequencies(config)
    distance = torch.arange(REACH, dtype=torch.float64)[:, None]
    waves = torch.cos(distance * frequencies)
    care = torch.ones(REACH, dtype=torch.float64)
    care[0], care[1], care[2:6] = 0.0, 200.0, 20.0
    squares = (waves * care[:, None]).T @ waves + 1e-3 * torch.eye(len(frequencies), dtype=torch.float64)
    weights = torch.linalg.solve(squares, waves[0])
    weights = (weights / (waves[0] @ weights)).float()
    side = SHARP * (config.head_dim / 64) ** 0.25 * weights.abs().sqrt()
    key = torch.zeros(config.head_dim, len(one))
    key[0::2] = side[:, None] * one
    queries = []
    for offset in range(OFFSETS):
        angles = (offset * frequencies).float()
        query = torch.zeros_like(key)
        query[0::2] = (side * weights.sign() * torch.cos(angles))[:, None] * one
        query[1::2] = (-side * weights.sign() * torch.sin(angles))[:, None] * one
        queries.append(query)
    return key, queries
