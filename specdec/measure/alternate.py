"""Timing several things on a machine that drifts: each in turn, many times over, and medians with intervals.

The one idea: a slow minute must hit everything that is compared.  Every repetition goes once through all calls, in an
order drawn anew, so that neither drift nor what ran just before sides with one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
SEED = 20_240_229
LEVEL = 0.95


@dataclass(frozen=True)
class Median:
    """A median with its 95% bootstrap interval (None of fewer than three samples)."""

    value: float
    low: float | None
    high: float | None


def median(samples: Sequence[float]) -> Median:
    """Percentile bootstrap of the median: with a fixed seed, so that equal samples give equal intervals."""
    values = np.asarray(samples, dtype=float)
    if values.size == 0 or not all(map(math.isfinite, values)):
        raise ValueError("a median needs finite samples")
    if values.size < 3:
        return Median(float(np.median(values)), None, None)
    picks = np.random.default_rng(SEED).integers(values.size, size=(RESAMPLES, values.size))
    low, high = np.quantile(np.median(values[picks], axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Median(float(np.median(values)), float(low), float(high))


def alternate(
    calls: Mapping[Hashable, Callable[[], float]], repeats: int, warmup: int = 1
) -> dict[Hashable, list[float]]:
    """Seconds of each call, `repeats` samples each.  A call runs its work once and returns the seconds it took.

    The first `warmup` rounds are thrown away: the first call of a shape pays for memory that later ones find ready.
    """
    rng = np.random.default_rng(SEED)
    names = list(calls)
    samples: dict[Hashable, list[float]] = {name: [] for name in names}
    for turn in range(warmup + repeats):
        for index in rng.permutation(len(names)):
            seconds = calls[names[index]]()
            if turn >= warmup:
                samples[names[index]].append(seconds)
    return samples
