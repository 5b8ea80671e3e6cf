"""Intervals and verdicts against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from workflow.study import statistics as st
from workflow.study.statistics import Arm, Estimate


def arm(seconds, tokens) -> Arm:
    return Arm(tuple(str(i) for i in range(len(seconds))), np.array(seconds, float), np.array(tokens, float))


def test_pooled_is_a_ratio_of_sums():
    # 30 s for 300 tokens against 12 s for 240: 0.1 / 0.05
    baseline, speculative = arm([10, 20], [100, 200]), arm([4, 8], [80, 160])
    assert st.speedup(baseline, speculative).value == pytest.approx(2.0)
    # by prompt: 0.1/0.05 in both
    assert st.mean_of_ratios(baseline, speculative) == pytest.approx(2.0)


def test_pooled_and_mean_of_ratios_differ_where_prompts_do():
    arms = arm([10, 60], [100, 200]), arm([10, 20], [100, 200])
    assert st.speedup(*arms).value == pytest.approx(70 / 30)
    assert st.mean_of_ratios(*arms) == pytest.approx((1 + 3) / 2)


def test_the_interval_of_two_prompts_is_made_of_their_resamples():
    # resamples of two prompts: both the first (1), one of each (4/3), both the second (2); the outer ones 1/4 each
    estimate = st.speedup(arm([1, 1], [1, 1]), arm([1, 0.5], [1, 1]))
    assert estimate.value == pytest.approx(4 / 3)
    assert (estimate.low, estimate.high) == (pytest.approx(1), pytest.approx(2))


def test_intervals_are_the_same_every_time():
    rng = np.random.default_rng(1)
    arms = arm(rng.random(9) + 1, [10] * 9), arm(rng.random(9) + 1, [10] * 9)
    assert st.speedup(*arms) == st.speedup(*arms)


def test_few_and_degenerate_prompts():
    assert st.speedup(arm([], []), arm([], [])) == Estimate(None)
    one = st.speedup(arm([2], [1]), arm([1], [1]))
    assert (one.value, one.low) == (2.0, None)
    same = st.speedup(arm([2] * 8, [1] * 8), arm([2] * 8, [1] * 8))
    assert (same.value, same.low, same.high) == (1, 1, 1)
    assert st.speedup(arm([1], [1]), arm([1], [0])).value is None


def test_arms_must_be_paired():
    with pytest.raises(ValueError, match="paired"):
        st.speedup(arm([1, 1], [1, 1]), arm([1], [1]))


@pytest.mark.parametrize(
    ("low", "high", "noise", "expected"),
    [
        (1.01, 1.2, None, st.FASTER),
        (0.8, 0.99, None, st.SLOWER),
        (0.99, 1.01, None, st.OPEN),
        (1.0, 1.2, None, st.OPEN),
        (None, None, None, st.OPEN),
        (1.01, 1.03, (0.95, 1.05), st.OPEN),
        (1.01, 1.06, (0.95, 1.05), st.FASTER),
        (0.96, 0.99, (0.95, 1.05), st.OPEN),
        (1.2, 1.4, (1.01, 1.02), st.FASTER),
    ],
)
def test_verdicts(low, high, noise, expected):
    band = Estimate(1.0, *noise, prompts=12) if noise else None
    assert st.verdict(Estimate(1.0, low, high, prompts=12), band) == expected


def test_a_verdict_needs_enough_prompts():
    assert st.verdict(Estimate(1.5, 1.4, 1.6, prompts=5)) == st.OPEN
    assert st.verdict(Estimate(1.5, 1.4, 1.6, prompts=6)) == st.FASTER


def test_noise_is_not_taken_for_gain():
    """Baseline against itself with a tenth of noise: the interval holds 1, and what lies inside it is not a result."""
    rng = np.random.default_rng(0)
    first, second = (arm(1 + 0.1 * rng.standard_normal(16), [10] * 16) for _ in range(2))
    band = st.speedup(first, second)
    assert band.low < 1 < band.high
    assert st.verdict(band) == st.OPEN
    inside = Estimate(1.01, 1 + (band.high - 1) / 4, 1 + (band.high - 1) / 2, prompts=16)
    assert st.verdict(inside) == st.FASTER
    assert st.verdict(inside, band) == st.OPEN


def test_gain_is_a_ratio_of_speedups_with_its_own_baselines():
    new = arm([4] * 6, [1] * 6), arm([1] * 6, [1] * 6)  # 4 x on a slow day
    old = arm([2] * 6, [1] * 6), arm([1] * 6, [1] * 6)  # 2 x on a fast one
    found = st.gain(new, old)
    assert (found.value, found.low, found.high) == (2, 2, 2)
    assert st.gain(new, new).value == 1


def test_the_permutation_test_counts_all_signs():
    ones = arm([1] * 8, [1] * 8)
    new, old = (ones, arm([0.5] * 8, [1] * 8)), (ones, ones)
    # all eight log gains alike: only all plus and all minus are as far out, 2 of 2^8
    assert st.gain_p_value(new, old) == pytest.approx(2 / 256)
    assert st.gain_p_value(old, old) == 1.0
    single = arm([1], [1]), arm([0.5], [1])
    assert st.gain_p_value(single, single) is None


def test_holm_by_hand():
    # sorted .01 .03 .04 times 3 2 1, made monotone
    assert st.holm([0.01, None, 0.04, 0.03]) == [pytest.approx(0.03), None, pytest.approx(0.06), pytest.approx(0.06)]
    assert st.holm([None]) == [None]
    assert st.holm([]) == []


@pytest.mark.parametrize(("share", "needed"), [(0.9, 64), (0.95, 130), (0.97, 219), (0.99, 662)])
def test_percentiles_need_samples(share, needed):
    assert st.percentile(range(needed - 1), share) is None
    assert st.percentile(range(needed), share) == pytest.approx(share * (needed - 1))


def test_a_rate_is_tokens_over_seconds_with_prompts_resampled():
    estimate = st.rate(arm([1, 1], [10, 30]))
    assert estimate.value == pytest.approx(20)
    # resamples: both the first (10), one of each (20), both the second (30)
    assert (estimate.low, estimate.high) == (pytest.approx(10), pytest.approx(30))
    assert st.rate(arm([2], [10])) == Estimate(5.0, prompts=1)
