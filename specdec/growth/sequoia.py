"""The static tree that fits measured acceptance and costs best (Sequoia, arXiv 2402.12374).

Assumption: whatever the node, its child of rank b is accepted with probability a[b], measured, given that the node was
reached.  Then a tree's expected tokens a round are the sum over its nodes, the root included, of the product of a over
the node's ranks, and the best tree of each size and depth comes out of a dynamic programme over (levels left, first
rank still free, nodes left).  Of all sizes and depths that one is taken whose round costs least time a token.

Losslessness.  Measurements of other texts decide the shape, before anything is drawn: the tree is as exact as
`StaticTree` or `SampledTree`, which draw its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specdec.errors import UserError
from specdec.growth.rank_paths import Path

IMPOSSIBLE = float("-inf")


@dataclass(frozen=True)
class Fitted:
    """`paths` for `StaticTree`; `tokens` expected a round; `cost` of a round, in the unit of the costs given."""

    paths: tuple[Path, ...]
    tokens: float
    cost: float


def fit(
    acceptance: Sequence[float],
    nodes: int,
    depth: int,
    draft_cost: float = 0.0,
    verify_cost: Callable[[int], float] = lambda rows: 1.0,
) -> Fitted:
    """The best tree of at most `nodes` drafted nodes and `depth` levels.

    `draft_cost`: time of one draft level; `verify_cost(rows)`: time of a target pass over that many rows, the root's
    among them.  Costs share one unit.
    """
    if not acceptance or any(not 0 <= a <= 1 for a in acceptance):
        raise UserError(f"sequoia: acceptance = {list(acceptance)}: must be probabilities by rank, at least one")
    if nodes < 1 or depth < 1:
        raise UserError(f"sequoia: nodes = {nodes}, depth = {depth}: both must be 1 or more")
    best = _tables(acceptance, nodes, depth)
    fitted = None
    for levels in range(1, depth + 1):
        for count in range(1, nodes + 1):
            tokens = 1.0 + best[levels][0][count][0]
            cost = levels * draft_cost + verify_cost(count + 1)
            if tokens > 0 and (fitted is None or cost / tokens < fitted[0]):
                fitted = cost / tokens, levels, count, tokens, cost
    _, levels, count, tokens, cost = fitted
    paths = sorted(_paths(best, levels, count), key=lambda path: (len(path), path))
    return Fitted(tuple(paths), tokens, cost)


def _tables(acceptance: Sequence[float], nodes: int, depth: int) -> list:
    """best[levels][rank][n]: what n nodes are worth as children of rank `rank` and beyond, with all below them.

    A pair: the value (-inf where n nodes do not fit into `levels` levels) and how many go to `rank`, itself included.
    """
    ranks, none = len(acceptance), (IMPOSSIBLE, 0)
    best = [[[(0.0, 0)] + [none] * nodes for _ in range(ranks + 1)]]
    for _ in range(depth):
        below, level = best[-1][0], [[(0.0, 0)] + [none] * nodes for _ in range(ranks + 1)]
        for rank in reversed(range(ranks)):
            beyond = level[rank + 1]
            for n in range(1, nodes + 1):
                choices = [
                    (acceptance[rank] * (1.0 + below[size - 1][0]) + beyond[n - size][0], size)
                    for size in range(1, n + 1)
                    if IMPOSSIBLE not in (below[size - 1][0], beyond[n - size][0])
                ]
                level[rank][n] = max(choices, default=none)
        best.append(level)
    return best


def _paths(best: list, levels: int, count: int, rank: int = 0, prefix: Path = ()) -> list[Path]:
    """The nodes behind best[levels][rank][count], under the node `prefix`."""
    if count == 0:
        return []
    size = best[levels][rank][count][1]
    here = (*prefix, rank)
    return [
        here,
        *_paths(best, levels - 1, size - 1, 0, here),
        *_paths(best, levels, count - size, rank + 1, prefix),
    ]
