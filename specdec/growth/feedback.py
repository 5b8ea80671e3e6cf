"""A threshold that follows the measured acceptance: the update of Draft & Verify (arXiv 2309.08168)."""

from __future__ import annotations

STEP, KEEP = 0.01, 0.9
"""How far the threshold is pulled, and how much of it stays at each update."""


class Feedback:
    """Rises while the acceptance rate is below `wanted`, falls while it is not; within 0 and 1.

    The rate is averaged over rounds with halving weights, the first round's taken whole.  A draft that reached its full
    length says nothing against the threshold, which then stays.
    """

    def __init__(self, start: float, wanted: float = 0.9):
        self.value, self.wanted = start, wanted
        self.rate: float | None = None

    def update(self, drafted: int, accepted: int, full: bool) -> None:
        if not drafted:
            return
        rate = accepted / drafted
        self.rate = rate if self.rate is None else (self.rate + rate) / 2
        if self.rate < self.wanted:
            aim = self.value + STEP
        elif full:
            aim = self.value
        else:
            aim = self.value - STEP
        self.value = min(1.0, max(0.0, KEEP * self.value + (1 - KEEP) * aim))
