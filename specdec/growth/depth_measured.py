"""Depth rules that need measurements: of what was accepted before, or of what a draft step costs.

Losslessness: they look at past rounds, at the law, and at tokens drawn and kept.  Costs are numbers given from outside,
measured beforehand: a rule that read a clock would make the text depend on how busy the machine is.
"""

from __future__ import annotations

from torch import Tensor

from specdec.growth.depth import DepthRule, largest_probability, wide
from specdec.growth.feedback import Feedback


class DraftVerify(DepthRule):
    """Ends after a token whose own probability was below a moving threshold (Draft & Verify, arXiv 2309.08168).

    `threshold` is where each prompt starts (the authors: 0.8 for greedy drafts, 0.6 for sampled ones); `feedback.py`
    moves it.  It looks at the token drawn, which is allowed because the token is kept.
    """

    name = "draft_verify"
    range = (0.0, 1.0)

    def __init__(self, k: int, threshold: float):
        super().__init__(k, threshold)
        self.level = Feedback(threshold)

    def reset(self) -> None:
        self.level = Feedback(self.threshold)

    def after(self, depth: int, logits: Tensor, token: int) -> bool:
        column = token if self.vocabulary is None else int((self.vocabulary == token).nonzero()[0])
        return float(wide(logits).softmax(-1)[column]) >= self.level.value

    def observe(self, drafted: int, accepted: int) -> None:
        self.level.update(drafted, accepted, full=drafted >= self.k)


class Pid(DepthRule):
    """A controller that holds the acceptance rate at the threshold by moving the depth, within 1 and K.

    In velocity form: each round moves the depth by K times (KP (e - e') + KI e + KD (e - 2 e' + e'')), e the rate less
    the threshold, e' and e'' those of the two rounds before.  Clamping the depth is then all that is needed against
    wind-up.  A plain control law; no primary source uses it here, so the threshold is tuned.
    """

    name = "pid"
    range = (0.0, 1.0)
    KP, KI, KD = 0.3, 0.2, 0.05

    def __init__(self, k: int, threshold: float):
        super().__init__(k, threshold)
        self.reset()

    def reset(self) -> None:
        self._place = float(max(1, self.k // 2))
        self._errors = (0.0, 0.0)

    @property
    def depth(self) -> int:
        return round(self._place)

    def before(self, depth: int, logits: Tensor) -> bool:
        return depth < self.depth

    def after(self, depth: int, logits: Tensor, token: int) -> bool:
        return depth + 1 < self.depth

    def observe(self, drafted: int, accepted: int) -> None:
        if not drafted:
            return
        error, (last, older) = accepted / drafted - self.threshold, self._errors
        move = self.KP * (error - last) + self.KI * error + self.KD * (error - 2 * last + older)
        self._place = min(float(self.k), max(1.0, self._place + self.k * move))
        self._errors = (error, last)


class Cost(DepthRule):
    """Goes on only while another token is expected to bring more than it costs.

    `threshold` is the measured cost of one more drafted token, its step and its row in the target's pass, in target
    passes.  With E the tokens expected of a round that ends now and T = 1 + cost * drafted its time, one more token
    pays if its expected gain is at least cost * E / T: otherwise the round's tokens per time go down.  A drafted token
    is expected to be accepted with the largest probability of its law, the next one, not yet drafted, at the rate
    measured so far in this text.
    """

    name = "cost"
    range = (0.0, float("inf"))

    def __init__(self, k: int, threshold: float):
        super().__init__(k, threshold)
        self.reset()

    def reset(self) -> None:
        self._accepted = self._tested = 0
        self._reach = self._expected = 1.0

    @property
    def rate(self) -> float:
        """Accepted of those tested, one success assumed beforehand: without evidence, hope."""
        return (self._accepted + 1) / (self._tested + 1)

    def before(self, depth: int, logits: Tensor) -> bool:
        if depth == 0:
            self._reach = self._expected = 1.0
        return True

    def after(self, depth: int, logits: Tensor, token: int) -> bool:
        self._reach *= largest_probability(logits)
        self._expected += self._reach
        time = 1 + self.threshold * (depth + 1)
        return self._reach * self.rate >= self.threshold * self._expected / time

    def observe(self, drafted: int, accepted: int) -> None:
        self._accepted += accepted
        self._tested += min(accepted + 1, drafted)
