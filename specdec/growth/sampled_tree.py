"""A tree whose children are drawn from the draft's law (SpecInfer, arXiv 2305.09781; EAGLE-1, arXiv 2401.15077).

Losslessness.  Row j of q is the law in force when node j was drawn: without replacement the node's law with its earlier
siblings taken out and renormalised, with replacement the node's law itself.  Where a node has children, and how many,
depends on its own path alone (the shape, an end of text above it, a law whose mass is used up), never on other branches
nor on what would have been drawn: every drawn node is kept.  A verifier that tests siblings in draw order against these
rows is then exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdec.errors import UserError
from specdec.growth.grower import GrowingTree
from specdec.growth.rank_paths import Shape
from specdec.growth.static_tree import StaticTree
from specdec.tree import WITH_REPLACEMENT, WITHOUT_REPLACEMENT, Draft

if TYPE_CHECKING:
    from specdec.drafters.base import DraftModel


class SampledTree(StaticTree):
    """`widths`: as the paths of `StaticTree`; rank r is the r-th draw, so ranks of siblings leave none out.

    A greedy draft has nothing to draw: it takes the likeliest tokens, a point law, as `StaticTree` does.
    """

    def __init__(self, model: DraftModel, widths: Shape = (2, 2, 2), replacement: bool = False):
        super().__init__(model, widths)
        self.replacement = replacement
        seen = set()
        for path in self.paths:
            if path[-1] and (*path[:-1], path[-1] - 1) not in seen:
                raise UserError(f"sampled tree: path {list(path)}: the draw before it must stand before it")
            seen.add(path)

    def grow(self, depth: int, nodes: int) -> Draft:
        self._q: list[Tensor] = []
        return super().grow(depth, nodes)

    def _children(self, tree: GrowingTree, logits: Tensor, counts: Sequence[int]) -> list[list]:
        if self._sampling.greedy:
            return super()._children(tree, logits, counts)
        return [self._draws(self._law(row), count) for row, count in zip(logits, counts, strict=True)]

    def _draws(self, law: Tensor, count: int) -> list[tuple[int, Tensor, float]]:
        """`count` draws, each with the law in force and its log-probability in `law`; fewer when no mass is left."""
        draws, q = [], law
        for _ in range(count):
            token = self._stream.draw(q)
            draws.append((token, q, math.log(float(law[token]))))
            if not self.replacement:
                q = q.clone()
                q[token] = 0.0
                mass = q.sum()
                if not mass > 0:
                    break
                q = q / mass
        return draws

    def _add(self, tree: GrowingTree, choice: tuple, parent: int) -> int:
        if self._sampling.greedy:
            return super()._add(tree, choice, parent)
        token, q, confidence = choice
        self._q.append(q)
        return tree.add(token, parent, confidence)

    def _draft(self, tree: GrowingTree, stopped: str) -> Draft:
        if not self._q:
            return super()._draft(tree, stopped)
        law = WITH_REPLACEMENT if self.replacement else WITHOUT_REPLACEMENT
        return tree.part(range(len(tree)), stopped, law, torch.stack(self._q))
