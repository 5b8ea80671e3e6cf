"""Degenerate loops: a small model that repeats itself flatters every draft.

One filter serves both sides: it keeps such text out of training data and flags evaluation rows, whose headline figures
leave flagged rows out of every arm.
"""

from __future__ import annotations

from collections.abc import Sequence

PERIODS = range(1, 49)
REPEATS = 3
SHORTEST = 24
"""A loop is a run of at least this many tokens in which a phrase of 1 to 48 tokens stands three times in a row."""


def loop_start(ids: Sequence[int]) -> int | None:
    """Where the first loop begins, or None."""
    starts = []
    for period in PERIODS:
        needed = max(REPEATS * period, SHORTEST) - period
        run = 0
        for i in range(period, len(ids)):
            run = run + 1 if ids[i] == ids[i - period] else 0
            if run >= needed:
                starts.append(i - run - period + 1)
                break
    return min(starts, default=None)


def is_loop(ids: Sequence[int]) -> bool:
    return loop_start(ids) is not None
