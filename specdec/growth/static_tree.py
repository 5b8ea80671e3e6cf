"""A tree of a fixed shape: each node's likeliest tokens, by rank (EAGLE-1, arXiv 2401.15077; Medusa, 2401.10774).

Losslessness.  Children are the top-ranked tokens, chosen without chance: a point law.  Any verifier that takes point
laws is exact for every such tree, because the proposal is fixed before the verifier makes its first draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from specdec.growth.grower import Grower, GrowingTree
from specdec.growth.rank_paths import Path, Shape, fitting, rank_paths
from specdec.tree import ROOT, Draft

if TYPE_CHECKING:
    from specdec.drafters.base import DraftModel


class StaticTree(Grower):
    """`paths`: a preset's name, widths by level, or a list of rank paths (`rank_paths.py`)."""

    def __init__(self, model: DraftModel, paths: Shape = "eagle1"):
        super().__init__(model)
        self.paths = rank_paths(paths)

    def grow(self, depth: int, nodes: int) -> Draft:
        """What the shape asks for is decided before anything is drawn, so that no node depends on another branch."""
        plan = fitting(self.paths, depth, nodes)
        tree, node_of = GrowingTree(self.model, self._eos), {(): ROOT}
        for level in range(1, len(plan[-1]) + 1):
            ranks: dict[Path, list[int]] = {}
            for path in plan:
                if len(path) == level and path[:-1] in node_of and tree.is_open(node_of[path[:-1]]):
                    ranks.setdefault(path[:-1], []).append(path[-1])
            if not ranks:
                return self._draft(tree, "end_of_text")
            logits = tree.feed([node_of[parent] for parent in ranks])
            children = self._children(tree, logits, [max(wanted) + 1 for wanted in ranks.values()])
            for (parent, wanted), found in zip(ranks.items(), children, strict=True):
                for rank in wanted:
                    if rank < len(found):
                        node_of[*parent, rank] = self._add(tree, found[rank], node_of[parent])
        return self._draft(tree, self._edge if level == depth else "shape")

    def _children(self, tree: GrowingTree, logits: Tensor, counts: Sequence[int]) -> list[list]:
        """For each row at least as many choices as asked for, in order of rank, where there are as many."""
        return tree.likeliest(logits, max(counts))

    def _add(self, tree: GrowingTree, choice: tuple, parent: int) -> int:
        return tree.add(choice[0], parent, choice[1])

    def _draft(self, tree: GrowingTree, stopped: str) -> Draft:
        return tree.part(range(len(tree)), stopped)
