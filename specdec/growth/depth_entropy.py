"""Depth rules from the entropy of the draft's law, which bounds its acceptance from below.

By Pinsker's inequality a token drawn from q is accepted with probability at least 1 - sqrt(KL(q || p) / 2), and KL is
the draft's cross-entropy to the target less its own entropy H.  Where the cross-entropy is a near-constant multiple of
H, the bound is 1 - sqrt(c H).

Losslessness: both look at the law, not at the token drawn from it, and at past rounds; the token is kept.
"""

from __future__ import annotations

import math

from torch import Tensor

from specdec.growth.depth import DepthRule, entropy
from specdec.growth.feedback import Feedback


class Svip(DepthRule):
    """Ends after a token whose law had sqrt(H) above the threshold (SVIP, arXiv 2411.18462)."""

    name = "svip"
    range = (0.0, float("inf"))

    def after(self, depth: int, logits: Tensor, token: int) -> bool:
        return math.sqrt(max(0.0, entropy(logits))) <= self.threshold


class AdaEdl(DepthRule):
    """Ends after a token whose law had the bound 1 - sqrt(g H) below a moving threshold (AdaEDL, arXiv 2410.18351).

    `threshold` is where each prompt starts; it then rises while fewer tokens than wanted are accepted and falls while
    more are (`feedback.py`).  g is the constant c of the module's bound.
    """

    name = "adaedl"
    range = (0.0, 1.0)

    def __init__(self, k: int, threshold: float, g: float = 0.2):
        super().__init__(k, threshold)
        self.g, self.level = g, Feedback(threshold)

    def reset(self) -> None:
        self.level = Feedback(self.threshold)

    def after(self, depth: int, logits: Tensor, token: int) -> bool:
        return 1 - math.sqrt(self.g * max(0.0, entropy(logits))) >= self.level.value

    def observe(self, drafted: int, accepted: int) -> None:
        self.level.update(drafted, accepted, full=drafted >= self.k)
