"""EAGLE-2's dynamic tree (arXiv 2406.16858): expand by confidence, then keep the best nodes.

A path's confidence is the product of the draft's probabilities along it, from the raw softmax at temperature 1 whatever
the sampling temperature.  Level by level the `width` most confident open nodes of the last level are extended by their
`width` likeliest tokens; of everything that was made the `nodes` most confident stay, shallower ones first among equal
ones, which leaves a connected tree.

Losslessness.  Nodes are chosen by search, so the law is a point law, also when the target samples: any verifier that
takes point laws is exact.  Scoring these children with the draft's probabilities would not be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec.errors import UserError
from specdec.growth.grower import Grower, GrowingTree
from specdec.growth.levels import Always, LevelRule
from specdec.tree import ROOT, Draft

if TYPE_CHECKING:
    from specdec.drafters.base import DraftModel


class Eagle2(Grower):
    """`width`: beam and children a node; `nodes`: how many stay at most; `level_rule`: `levels.py`."""

    def __init__(
        self, model: DraftModel, width: int = 10, nodes: int | None = None, level_rule: LevelRule | None = None
    ):
        super().__init__(model)
        for name, value in (("width", width), ("nodes", 1 if nodes is None else nodes)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"eagle2: {name} = {value!r}: must be an integer of 1 or more")
        self.width, self.nodes, self.level_rule = width, nodes, level_rule or Always()

    def rows(self, depth: int, nodes: int) -> int:
        return self.width * max(0, depth - 1)

    def grow(self, depth: int, nodes: int) -> Draft:
        tree, beam = GrowingTree(self.model, self._eos), [ROOT]
        for level in range(1, depth + 1):
            choices = tree.likeliest(tree.feed(beam), self.width)
            made = [
                tree.add(token, node, confidence)
                for node, row in zip(beam, choices, strict=True)
                for token, confidence in row
            ]
            beam = tree.order([node for node in made if tree.is_open(node)])[: self.width]
            if level == depth:
                stopped = self._edge
            elif not beam:
                stopped = "end_of_text"
            elif not self.level_rule.more(level, [tree.scores[node] for node in beam]):
                stopped = self.level_rule.name
            else:
                continue
            break
        return tree.best(min(nodes, self.nodes or nodes), stopped)
