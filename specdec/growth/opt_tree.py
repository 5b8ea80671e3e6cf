"""OPT-Tree (arXiv 2406.17276): the tree of n nodes with the largest expected accepted length, as deep as it pays.

If the draft's probabilities are taken for the target's, a node is accepted with the product of probabilities on its
path, and the expected accepted length of a tree is the sum of that over its nodes.  The n nodes of largest product
maximise it and are connected, since no node exceeds its parent.  They are found level by level: a node beyond the n
best so far cannot have a descendant among them, so only the others are extended.

Stopping.  Another level costs one draft step, `delta` of a target pass; drafting goes on while the last level raised
the expected length by more than that.  (The authors' code tests a level late; this is the rule of the paper.)

Losslessness.  Nodes are chosen by search: a point law, exact with any verifier that takes one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from specdec.errors import UserError
from specdec.growth.grower import Grower, GrowingTree
from specdec.tree import ROOT, Draft

if TYPE_CHECKING:
    from specdec.drafters.base import DraftModel


class OptTree(Grower):
    """`nodes`: the tree's size at most; `delta`: time of a draft step in target passes, measured."""

    def __init__(self, model: DraftModel, nodes: int | None = None, delta: float = 0.2):
        super().__init__(model)
        if nodes is not None and (isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1):
            raise UserError(f"opt_tree: nodes = {nodes!r}: must be an integer of 1 or more")
        if isinstance(delta, bool) or not 0 <= delta < math.inf:
            raise UserError(f"opt_tree: delta = {delta}: must be a number of 0 or more")
        self.nodes, self.delta = nodes, delta

    def rows(self, depth: int, nodes: int) -> int:
        return min(nodes, self.nodes or nodes) * max(0, depth - 1)

    def grow(self, depth: int, nodes: int) -> Draft:
        count = min(nodes, self.nodes or nodes)
        tree, frontier, expected, least = GrowingTree(self.model, self._eos), [ROOT], 0.0, -math.inf
        for level in range(1, depth + 1):
            choices = tree.likeliest(tree.feed(frontier), count)
            for node, row in zip(frontier, choices, strict=True):
                for token, confidence in row:
                    if confidence + tree.score(node) < least:
                        break  # `count` nodes are better already, and what follows is worse
                    tree.add(token, node, confidence)
            best = tree.order(range(len(tree)))[:count]
            least = tree.scores[best[-1]] if len(best) == count else -math.inf
            before, expected = expected, math.fsum(math.exp(tree.scores[node]) for node in best)
            frontier = sorted(node for node in best if tree.depths[node] == level and tree.is_open(node))
            if level == depth:
                stopped = self._edge
            elif not frontier:
                stopped = "complete"  # nothing deeper could enter
            elif expected - before <= self.delta:
                stopped = "delta"
            else:
                continue
            break
        return tree.best(count, stopped)
