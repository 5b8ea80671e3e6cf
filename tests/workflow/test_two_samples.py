"""The test of two samples: right where they are one law, found where they are not, with the power it claims."""

from __future__ import annotations

import numpy as np
import pytest

from workflow.study.two_samples import compare, grouped, power

LAW = np.array([0.4, 0.3, 0.15, 0.1, 0.05])


def sample(rng, size: int, law=LAW) -> dict:
    return {(token,): int(count) for token, count in enumerate(rng.multinomial(size, law)) if count}


def test_rare_continuations_share_a_group():
    table = grouped({(0,): 50, (1,): 3, (2,): 1}, {(0,): 40, (3,): 14})
    assert table.tolist() == [[50, 0, 4], [40, 14, 0]] or table.tolist() == [[50, 4], [40, 14]]
    assert table.sum(axis=1).tolist() == [54, 54]
    assert compare({(0,): 9}, {(0,): 9}, 0.1)["p_value"] is None


def test_false_alarms_are_as_rare_as_they_should_be_and_power_is_what_it_says():
    rng = np.random.default_rng(1)
    shift, size, runs = 0.1, 600, 300
    moved = (1 - shift) * LAW
    moved[0] += shift
    same = [compare(sample(rng, size), sample(rng, size), shift) for _ in range(runs)]
    other = [compare(sample(rng, size), sample(rng, size, moved), shift) for _ in range(runs)]
    alarms = np.mean([result["p_value"] < 0.05 for result in same])
    found = np.mean([result["p_value"] < 0.05 for result in other])
    claimed = np.mean([result["power"] for result in same])
    assert alarms < 0.05 + 3 * np.sqrt(0.05 * 0.95 / runs)
    assert found == pytest.approx(claimed, abs=0.12)


def test_power_grows_with_the_samples_and_with_the_fault():
    table = np.array([100 * LAW, 100 * LAW])
    assert power(table, 0.05) < power(table, 0.3) < power(10 * table, 0.3)
    assert power(table, 0.0) == pytest.approx(0.05)
