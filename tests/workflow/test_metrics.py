"""Every ratio by its definition, and nothing in a headline that does not belong there."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from specdec import records
from specdec.errors import UserError
from tests.workflow import synthetic
from workflow.study import measured, metrics
from workflow.study.cells import Cell
from workflow.study.prompts import Prompt

CELL = Cell("smollm2", "layer_skip", "fixed", 4)
PROMPTS = [Prompt(str(i), "chat", ("x",)) for i in range(8)]


def approx(values):
    return [None if value is None else pytest.approx(value, abs=1e-3) for value in values]


def frame(config, cell=CELL, prompts=PROMPTS, rounds=None) -> pd.DataFrame:
    """Rows as they come out of a file; `rounds` gives (accepted, drafted) for every speculative row."""
    rng = np.random.default_rng(0)
    rows = []
    for prompt in prompts:
        for arm in ("ar", "speculative"):
            accepted, drafted = rounds if rounds and arm == "speculative" else (None, None)
            rows.append(synthetic.row_of(config, cell, prompt, arm, rng, accepted=accepted, drafted=drafted))
    return records.pa.Table.from_pylist(rows, schema=records.SCHEMA).to_pandas()


def measure(rows: pd.DataFrame, cell=CELL) -> measured.Measured:
    return measured.measured(rows, cell, "a.parquet")


def test_three_names_for_three_ratios(config):
    """Accepted [3, 0, 2] of 4 drafted each: length 5/3, tokens per round 8/3, rate 5/12."""
    rows = frame(config, prompts=PROMPTS[:1], rounds=([3, 0, 2], [4, 4, 4]))
    rows.loc[rows["arm"] == "ar", "tokens"] = 8
    found = metrics.counts(measure(rows))
    assert (found.tokens, found.rounds, found.drafted, found.accepted) == (8, 3, 12, 5)
    ratios = metrics.ratios(found)
    assert ratios["acceptance_length"] == pytest.approx(1.667, abs=1e-3)
    assert ratios["tokens_per_round"] == pytest.approx(2.667, abs=1e-3)
    assert ratios["acceptance_rate"] == pytest.approx(5 / 12)
    assert metrics.ratios(found, shape="eagle2")["acceptance_rate"] is None


def test_acceptance_by_position_conditional_and_not():
    found = metrics.positions([3, 0, 2, 4], [4] * 4, [False] * 4, 4)
    assert [place.unconditional for place in found] == approx([0.75, 0.75, 0.5, 0.25])
    assert [place.conditional for place in found] == approx([0.75, 1.0, 0.667, 0.5])
    assert [(place.reached, place.accepted) for place in found] == [(4, 3), (3, 3), (3, 2), (2, 1)]
    assert sum(place.unconditional for place in found) == pytest.approx(2.25)


def test_positions_that_were_not_drafted_or_not_decided_are_not_reached():
    # drafting stopped at 1 and all was kept; a round cut after one token says nothing about the second
    found = metrics.positions([1, 1], [1, 2], [False, True], 2)
    assert [(place.reached, place.accepted, place.conditional) for place in found] == [(2, 2, 1.0), (0, 0, None)]
    assert [place.unconditional for place in found] == [1.0, 0.0]
    assert metrics.positions([], [], [], 1)[0].unconditional is None


def test_pooling_is_neither_prompt_alone(config):
    """Two prompts, four tokens a round and one: the pooled figure is neither."""
    rng = np.random.default_rng(0)
    rows = [
        synthetic.row_of(config, CELL, PROMPTS[i], arm, rng, accepted=accepted, drafted=[4] * len(accepted))
        for i, accepted in enumerate(([3, 3], [0] * 8))
        for arm in ("ar", "speculative")
    ]
    for row in rows:
        row["tokens"] = 8
    table = records.pa.Table.from_pylist(rows, schema=records.SCHEMA).to_pandas()
    assert metrics.ratios(metrics.counts(measure(table)))["tokens_per_round"] == pytest.approx(1.6)


def test_the_baseline_drafts_nothing(config):
    cell = Cell("smollm2", "none", "ar", 0)
    found = measure(frame(config, cell), cell)
    ratios = metrics.ratios(metrics.counts(found))
    assert (ratios["acceptance_rate"], ratios["tokens_per_round"]) == (None, 1.0)
    assert metrics.positions_of(found) == []


def test_a_slow_warm_up_moves_nothing(config):
    rows = frame(config)
    planted = rows.iloc[:2].copy()
    planted["warmup"] = True
    planted[["total_s", "decode_s"]] *= 10
    with_warmup = pd.concat([planted, rows], ignore_index=True)
    assert measure(with_warmup).speedup == measure(rows).speedup
    with pytest.raises(UserError, match="no rows beyond the warm-up"):
        measure(planted)


def test_looped_rows_leave_both_arms_and_are_counted(config):
    rows = frame(config)
    rows.loc[(rows["prompt_id"] == "3") & (rows["arm"] == "speculative"), "loop"] = True
    found = measure(rows)
    assert metrics.counts(found).prompts == 7
    assert len(found.headline) == len(found.headline_baseline) == 7
    details = metrics.details(found)
    assert (details["rows"], details["rows_looped"], details["loop_share"]) == (8, 1, 1 / 8)


def test_greedy_rows_of_unequal_length_are_flagged_and_left_out(config):
    rows = frame(config)
    rows.loc[(rows["prompt_id"] == "2") & (rows["arm"] == "speculative"), "tokens"] = 7
    found = measure(rows)
    assert metrics.counts(found).prompts == 7
    assert metrics.details(found)["rows_unequal"] == 1


def test_drawn_rows_may_differ_in_length(config):
    cell = Cell("smollm2", "layer_skip", "fixed", 4, temperature=1.0)
    rows = frame(config, cell)
    rows.loc[(rows["prompt_id"] == "2") & (rows["arm"] == "speculative"), "tokens"] = 7
    assert metrics.counts(measure(rows, cell)).prompts == 8


def test_nothing_left_is_no_number(config):
    rows = frame(config)
    rows["loop"] = True
    found = measure(rows)
    assert found.speedup.value is None
    assert set(metrics.ratios(metrics.counts(found)).values()) == {None}
    assert metrics.time_shares(found)["draft_share"] is None
    assert metrics.details(found)["ttft_ms"] is None


@pytest.mark.parametrize("column", ["hardware_id", "environment_id", "model_id"])
def test_no_ratio_across_machines(config, column):
    rows = frame(config)
    rows.loc[rows.index[-1], column] = "other"
    with pytest.raises(UserError, match=f"across different values of {column.removesuffix('_id')}"):
        measure(rows)


@pytest.mark.parametrize(
    ("column", "value"), [("prompt_sha", "x"), ("max_new_tokens", 7), ("top_p", 0.5), ("dtype", "x")]
)
def test_no_ratio_where_the_arms_had_other_work(config, column, value):
    rows = frame(config)
    rows.loc[rows.index[-1], column] = value
    with pytest.raises(UserError, match=f"prompt 7, turn 1, repetition 0 has another {column}"):
        measure(rows)


def test_every_row_needs_its_other_arm(config):
    rows = frame(config)
    with pytest.raises(UserError, match="prompt 7, turn 1, repetition 0 was decoded in one arm only"):
        measure(rows.iloc[:-1])
    with pytest.raises(UserError, match="is there twice"):
        measure(pd.concat([rows, rows.iloc[-1:]]))
    with pytest.raises(UserError, match="rows of another cell"):
        measure(rows, Cell("smollm2", "layer_skip", "fixed", 8))


def test_repetitions_are_one_prompt(config):
    rows = frame(config)
    again = rows.copy()
    again["repetition"] = 1
    found = measure(pd.concat([rows, again], ignore_index=True))
    assert metrics.counts(found).prompts == 8
    assert found.speedup.prompts == 8


def test_cells_are_compared_on_the_rows_they_share(config):
    rows, other = frame(config), frame(config)
    other.loc[other["prompt_id"] == "0", "loop"] = True
    first, second = measure(rows), measure(other)
    keys = measured.comparable(first, second)
    assert len(keys) == 7
    assert first.arms(keys=keys)[0].prompts == second.arms(keys=keys)[0].prompts
    other["prompt_sha"] = other["prompt_sha"] + "x"
    with pytest.raises(UserError, match="not the same text in both"):
        measured.comparable(first, measure(other))
    other["hardware_id"] = "other"
    with pytest.raises(UserError, match="across different values of hardware"):
        measured.comparable(first, measure(other))


def test_time_shares_add_up(config):
    shares = metrics.time_shares(measure(frame(config)))
    assert sum(shares[f"{name}_share"] for name in ("draft", "target", "other", "prefill")) == pytest.approx(1)


def test_latency_is_a_round_over_its_tokens():
    rows = pd.DataFrame(
        {
            "draft_s": [[0.1, 0.0]],
            "target_s": [[0.2, 0.2]],
            "other_s": [[0.0, 0.1]],
            "accepted": [[2, 1]],
            "source": [["correction", "cut"]],
        }
    )
    assert metrics.latencies(rows).tolist() == pytest.approx([100, 300])
