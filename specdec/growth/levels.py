"""How many levels a beam drafts: rules that look at the beam as a whole.

Losslessness.  A level rule changes only the shape of a tree of point law, before the target is asked.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import ClassVar

from specdec.errors import UserError


class LevelRule:
    """Never stops: as many levels as the budget allows."""

    name: ClassVar[str] = "fixed"

    def more(self, level: int, scores: Sequence[float]) -> bool:
        """Draft another level behind the first `level`?  `scores`: log-confidences of the paths to be extended."""
        return True


class Always(LevelRule):
    """Every level."""


class Ddd(LevelRule):
    """Dynamic depth decoding (arXiv 2409.00142): stop when the beam covers too little probability.

    Behind the levels named, drafting ends if log(sum of exp(scores)), the log of the beam's mass, is below `threshold`.
    The paper looks at few levels because a look costs a synchronisation on a GPU.  A path that ended the text is not
    extended and does not count as the beam's.
    """

    name = "ddd"

    def __init__(self, levels: Collection[int] = (5, 7, 9), threshold: float = -0.3):
        if any(isinstance(level, bool) or not isinstance(level, int) or level < 1 for level in levels):
            raise UserError(f"ddd: levels = {list(levels)}: must be integers of 1 or more")
        if isinstance(threshold, bool) or not threshold <= 0:
            raise UserError(f"ddd: threshold = {threshold}: must be 0 or less, the log of a probability")
        self.levels, self.threshold = frozenset(levels), threshold

    def more(self, level: int, scores: Sequence[float]) -> bool:
        return level not in self.levels or mass(scores) >= self.threshold


def mass(scores: Sequence[float]) -> float:
    """log(sum of exp(scores))."""
    largest = max(scores)
    return largest + math.log(sum(math.exp(score - largest) for score in scores))
