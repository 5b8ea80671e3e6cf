"""A draft: candidate tokens and how they hang together.  A chain is a tree with one child a node.

Nodes come parents first; siblings stand in the order they were drawn.  `law` says how they were chosen: `point`
(deterministically; q is one-hot) or sampled `with_replacement` / `without_replacement` from the rows of `q`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

POINT, WITH_REPLACEMENT, WITHOUT_REPLACEMENT = "point", "with_replacement", "without_replacement"
LAWS = (POINT, WITH_REPLACEMENT, WITHOUT_REPLACEMENT)
ROOT = -1


@dataclass(frozen=True)
class Early:
    """What the target's first `layers` layers left of a chain's first len(hidden) rows of [root, node 0, ...].

    Their keys and values of these layers stand in the target's cache, in the slots behind what is committed.
    """

    layers: int
    hidden: Tensor


@dataclass(frozen=True)
class Draft:
    """Proposed nodes: `tokens[j]` hangs under node `parents[j]` (-1: the root, the last committed token).

    `q` [n, V] holds in row j the law in force when node j was drawn, over the target's ids; None for a point law.
    `stopped` says why drafting ended.  `confidence` [n] is the chance that the draft gives to the path to each node,
    the product of its probabilities along it; empty where it has none.  `early`: work of the target's that drafting has
    done already, from drafts made of its first layers.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    law: str = POINT
    q: Tensor | None = None
    stopped: str = "none"
    confidence: tuple[float, ...] = ()
    early: Early | None = None
    depths: tuple[int, ...] = field(init=False)

    def __post_init__(self):
        depths: list[int] = []
        for j, parent in enumerate(self.parents):
            if not ROOT <= parent < j:
                raise ValueError(f"node {j} has parent {parent}: parents come before their children, the root is -1")
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        object.__setattr__(self, "depths", tuple(depths))
        if len(self.tokens) != len(self.parents):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.parents)} parents")
        if self.confidence and len(self.confidence) != len(self.tokens):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.confidence)} confidences")
        if self.law not in LAWS:
            raise ValueError(f"law {self.law!r} is none of {LAWS}")
        if (self.law == POINT) != (self.q is None) and self.tokens:
            raise ValueError("a point law has no q rows, a sampled law has one row a node")
        if self.law != WITH_REPLACEMENT and len(set(zip(self.parents, self.tokens, strict=True))) < len(self):
            raise ValueError("equal siblings: a point law merges them, drawing without replacement cannot make them")

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int],
        law: str = POINT,
        q: Tensor | None = None,
        stopped: str = "none",
        confidence: Sequence[float] = (),
        early: Early | None = None,
    ) -> Draft:
        parents = tuple(range(-1, len(tokens) - 1))
        return cls(tuple(tokens), parents, law if tokens else POINT, q, stopped, tuple(confidence), early)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        return all(parent == j - 1 for j, parent in enumerate(self.parents))

    @property
    def depth(self) -> int:
        return max(self.depths, default=0)

    def positions(self, root: int) -> list[int]:
        """Text positions of the rows [root, node 0, ...]: siblings share one."""
        return [root, *(root + depth for depth in self.depths)]

    def mask(self) -> Tensor:
        """[n + 1, n + 1], bool: which of the rows [root, node 0, ...] each row may see, itself among them."""
        mask = np.eye(len(self) + 1, dtype=bool)  # a row at a time costs torch ten times as much
        mask[:, 0] = True
        for j, parent in enumerate(self.parents):
            mask[j + 1] |= mask[parent + 1]
        return torch.from_numpy(mask)

    def children(self, node: int) -> list[int]:
        """Children of `node` (-1: the root), in draw order."""
        return [j for j, parent in enumerate(self.parents) if parent == node]
