"""Intervals, verdicts and p-values.  The one idea: the prompt is the unit, and arms are paired by prompt.

Every figure is a ratio of sums over prompts; its interval comes from resampling prompts, all arms of a prompt together.
Rounds and repetitions of one prompt are not independent, so they are summed before anything is resampled.

Percentile bootstrap throughout: BCa needs a jackknife that breaks down where prompts agree or one of them decides the
ratio, and a table should hold one kind of interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from statsmodels.stats.multitest import multipletests

RESAMPLES = 10_000
SEED = 20_240_229
LEVEL = 0.95

ENOUGH_SAMPLES = {0.5: 1, 0.9: 64, 0.95: 130, 0.97: 219, 0.99: 662}
"""Samples that a percentile needs before it may be printed (MLPerf's early-stopping rule)."""

ENOUGH_PROMPTS = 6
"""Prompts that a verdict needs: with fewer, even a sign test in which all agree stays above 5%."""

FASTER, SLOWER, OPEN = "faster", "slower", "not distinguishable"


@dataclass(frozen=True)
class Arm:
    """Seconds and tokens by prompt, in the order of `prompts`."""

    prompts: tuple[str, ...]
    seconds: np.ndarray
    tokens: np.ndarray

    def take(self, prompts: Sequence[str]) -> Arm:
        """The same arm on some of its prompts, in the given order."""
        place = {name: index for index, name in enumerate(self.prompts)}
        chosen = [place[name] for name in prompts]
        return Arm(tuple(prompts), self.seconds[chosen], self.tokens[chosen])


@dataclass(frozen=True)
class Estimate:
    """A ratio with its interval and the number of prompts; None where there is not enough to say."""

    value: float | None
    low: float | None = None
    high: float | None = None
    prompts: int = 0


def speedup(baseline: Arm, speculative: Arm) -> Estimate:
    """(baseline seconds / baseline tokens) / (speculative seconds / speculative tokens), sums over prompts."""
    return _interval(_speedup, _columns(baseline, speculative))


def rate(arm: Arm) -> Estimate:
    """Tokens a second, sums over prompts."""
    seconds, tokens = (np.asarray(column, dtype=float) for column in (arm.seconds, arm.tokens))
    return _interval(lambda s, n, axis=-1: n.sum(axis) / s.sum(axis), (seconds, tokens))


def mean_of_ratios(baseline: Arm, speculative: Arm) -> float | None:
    """The mean of each prompt's own speedup: every prompt counts the same, however long its answer."""
    ratios = _per_prompt(_columns(baseline, speculative))
    return float(np.mean(ratios)) if ratios.size else None


def gain(new: tuple[Arm, Arm], old: tuple[Arm, Arm]) -> Estimate:
    """How much faster one policy is than another: the ratio of their pooled speedups, each over its own baseline.

    `new` and `old` are (baseline, speculative) on the same prompts; prompts are resampled jointly.
    """
    return _interval(_gain, _columns(*new) + _columns(*old))


def perplexity_ratio(new: Arm, old: Arm) -> Estimate:
    """exp of the difference of two texts' nats a token: the perplexity of one over the other's.  `seconds` are nats."""
    return _interval(_perplexity_ratio, _columns(new, old))


def gain_p_value(new: tuple[Arm, Arm], old: tuple[Arm, Arm]) -> float | None:
    """Two-sided p-value of `no gain`: signs of the log gains of the prompts are flipped, all of them where few."""
    logs = np.log(_per_prompt(_columns(*new)) / _per_prompt(_columns(*old)))
    if logs.size < 2:
        return None
    if np.allclose(logs, 0):
        return 1.0
    result = stats.permutation_test(
        (logs,),
        np.mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES - 1,
        rng=np.random.default_rng(SEED),
    )
    return float(result.pvalue)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's adjustment of one family; what is None stays None and does not count."""
    known = [p for p in p_values if p is not None]
    adjusted = iter(multipletests(known, method="holm")[1]) if known else iter(())
    return [None if p is None else float(next(adjusted)) for p in p_values]


def verdict(estimate: Estimate, noise: Estimate | None = None) -> str:
    """What may be said: nothing where the interval contains 1, or lies inside what the baseline against itself shows,
    or rests on too few prompts."""
    if estimate.low is None or estimate.high is None or estimate.prompts < ENOUGH_PROMPTS:
        return OPEN
    if estimate.low <= 1 <= estimate.high:
        return OPEN
    band = noise is not None and noise.low is not None and noise.high is not None
    if band and noise.low <= estimate.low and estimate.high <= noise.high:
        return OPEN
    return FASTER if estimate.low > 1 else SLOWER


def percentile(samples: Sequence[float], share: float) -> float | None:
    """A percentile, or None where there are too few samples to print it."""
    if share not in ENOUGH_SAMPLES:
        raise ValueError(f"no rule says how many samples the percentile {share} needs")
    values = np.asarray(samples, dtype=float)
    return float(np.quantile(values, share)) if values.size >= ENOUGH_SAMPLES[share] else None


# -- the arithmetic -------------------------------------------------------------------------------


def _columns(baseline: Arm, speculative: Arm) -> tuple[np.ndarray, ...]:
    if baseline.prompts != speculative.prompts:
        raise ValueError("arms are paired by prompt: both need the same prompts in the same order")
    columns = (baseline.seconds, baseline.tokens, speculative.seconds, speculative.tokens)
    return tuple(np.asarray(column, dtype=float) for column in columns)


def _speedup(ar_s, ar_n, sp_s, sp_n, axis=-1):
    return (ar_s.sum(axis) / ar_n.sum(axis)) / (sp_s.sum(axis) / sp_n.sum(axis))


def _gain(a_s, a_n, b_s, b_n, c_s, c_n, d_s, d_n, axis=-1):
    return _speedup(a_s, a_n, b_s, b_n, axis) / _speedup(c_s, c_n, d_s, d_n, axis)


def _perplexity_ratio(new_nats, new_n, old_nats, old_n, axis=-1):
    return np.exp(new_nats.sum(axis) / new_n.sum(axis) - old_nats.sum(axis) / old_n.sum(axis))


def _per_prompt(columns: tuple[np.ndarray, ...]) -> np.ndarray:
    ar_s, ar_n, sp_s, sp_n = columns
    return (ar_s / ar_n) / (sp_s / sp_n)


def _interval(statistic, columns: tuple[np.ndarray, ...]) -> Estimate:
    """The pooled value, and its percentile interval where there are at least two prompts."""
    size = len(columns[0])
    if size == 0 or any(column.sum() <= 0 for column in columns):
        return Estimate(None, prompts=size)
    value = float(statistic(*columns))
    if size == 1:
        return Estimate(value, prompts=1)
    result = stats.bootstrap(
        columns,
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(SEED),
    )
    return Estimate(value, float(result.confidence_interval.low), float(result.confidence_interval.high), size)
