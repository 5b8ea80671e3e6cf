"""How deep to draft: rules that look at the draft's confidence or at what was accepted before.

Losslessness.  A rule may refuse a draw (`before`) from quantities that do not depend on the token drawn, or end the
round after a draw (`after`), *and what was drawn is kept and verified*.  Then every drafted token was drawn from
exactly the q that verification uses.  Discarding a drawn token because of what it is would change the law of those
that stay.

Logits are the draft's raw ones, over its own vocabulary, at temperature 1 whatever the sampling temperature; entropy
is in nats.  The confidence rules here end a round *after* the token whose law was unsure: its step has been paid for,
and one more row in the target's pass costs little.  So a round drafts at least one token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor


class DepthRule:
    """Never stops: the base of all rules."""

    name: ClassVar[str] = "fixed"
    range: ClassVar[tuple[float, float] | None] = None
    """The thresholds allowed, or None for a rule that takes none."""
    needs_kinds: ClassVar[bool] = False
    """Is it made with a third argument, the kind of every id (`depth_text.py`)?"""

    def __init__(self, k: int, threshold: float | None = None):
        self.k, self.threshold = k, threshold
        self.text: list[int] = []
        self.vocabulary: Tensor | None = None

    def begin(self, prompt: Sequence[int], vocabulary: Tensor | None = None) -> None:
        """A new prompt, in ids of the target; `vocabulary` [V_d]: the id of each logit column, None if identical."""
        self.text, self.vocabulary = list(prompt), vocabulary
        self.reset()

    def read(self, tokens: Sequence[int]) -> None:
        """These tokens were added to the text."""
        self.text += tokens

    def reset(self) -> None:
        """Forget what earlier prompts taught."""

    def before(self, depth: int, logits: Tensor) -> bool:
        """May the token at `depth` (0 is the first) be drawn?  logits [V]."""
        return True

    def after(self, depth: int, logits: Tensor, token: int) -> bool:
        """May drafting go on after this token (a target id) was drawn?  Not asked once the budget is used up."""
        return True

    def observe(self, drafted: int, accepted: int) -> None:
        """What became of the last draft."""


class Fixed(DepthRule):
    """K tokens every round.  Lossless: it looks at nothing."""


class MaxProbability(DepthRule):
    """Ends after a token whose law had its largest probability below the threshold; the threshold itself is confident.

    Lossless: the largest probability belongs to the law, not to the token drawn, and the token is kept.
    Used as a drafting criterion by Kangaroo (arXiv 2404.18911) and, on the token drawn, by Transformers' assistant.
    """

    name = "max_prob"
    range = (0.0, 1.0)

    def after(self, depth: int, logits: Tensor, token: int) -> bool:
        return largest_probability(logits) >= self.threshold


class Margin(DepthRule):
    """Ends after a token whose law had its two largest probabilities less than the threshold apart.

    Lossless for the same reason as `max_prob`.  The difference of the top two softmax probabilities is a known
    confidence measure for early exits (CALM, arXiv 2207.07061); no primary source uses it to end a draft, so its
    threshold is tuned.
    """

    name = "margin"
    range = (0.0, 1.0)

    def after(self, depth: int, logits: Tensor, token: int) -> bool:
        z = wide(logits)
        top = z.softmax(-1).topk(min(2, len(z))).values.tolist()
        return top[0] - sum(top[1:]) >= self.threshold


class Entropy(DepthRule):
    """Ends after a token whose law had an entropy above the threshold, in nats.

    Lossless for the same reason as `max_prob`.  The entropy bounds the acceptance probability from below when the
    draft's cross-entropy to the target is a near-constant multiple of it (SVIP, arXiv 2411.18462, which tests its
    square root).
    """

    name = "entropy"
    range = (0.0, float("inf"))

    def after(self, depth: int, logits: Tensor, token: int) -> bool:
        return entropy(logits) <= self.threshold


class History(DepthRule):
    """Starts at K/2, grows by two after a fully accepted draft, else shrinks by one, within 1 and K.

    Lossless: it looks at past rounds only.  The schedule is Transformers' "heuristic" (arXiv 2302.01318's
    implementation there), with K as its ceiling.
    """

    name = "history"

    def __init__(self, k: int, threshold: float | None = None):
        super().__init__(k, threshold)
        self.reset()

    def reset(self) -> None:
        self.depth = max(1, self.k // 2)

    def before(self, depth: int, logits: Tensor) -> bool:
        return depth < self.depth

    def after(self, depth: int, logits: Tensor, token: int) -> bool:
        return depth + 1 < self.depth

    def observe(self, drafted: int, accepted: int) -> None:
        if drafted:
            self.depth = min(self.k, self.depth + 2) if accepted == drafted else max(1, self.depth - 1)


def largest_probability(logits: Tensor) -> float:
    """The largest probability of a row [V], at temperature 1.

    By softmax, which is one pass on a CPU; logsumexp is several, and takes a tenth of a small draft's step.
    """
    return float(wide(logits).softmax(-1).amax())


def entropy(logits: Tensor) -> float:
    """The entropy of a row [V] in nats, at temperature 1."""
    z = wide(logits)
    log_q = z.log_softmax(-1)
    return float(-(z.softmax(-1) * log_q.clamp(min=torch.finfo(log_q.dtype).min)).sum())


def wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
