"""Predictions against cells whose times follow the cost table exactly, and what happens where something is missing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from specdec.errors import UserError
from tests.helpers import measured_tables
from tests.helpers.measured_tables import STEP_MS, TARGET, verify
from tests.workflow import synthetic
from workflow.study import columns, predicted
from workflow.study.cells import Cell
from workflow.study.config import load_mapping
from workflow.study.experiments import timed_cells
from workflow.study.measured import measured
from workflow.study.predicted import CostTable
from workflow.study.prompts import Prompt

COSTS = {"layer_skip": 0.5, "ngram": 0.01}


@pytest.fixture(scope="module")
def table() -> CostTable:
    return CostTable(measured_tables.cost_rows(COSTS))


def test_between_the_measured_widths_a_pass_is_interpolated(table):
    assert table.target == TARGET and table.drafts == ["layer_skip", "ngram"]
    assert table.unit(128) == pytest.approx(STEP_MS * 1.125)
    for width in (1, 2, 4, 7, 32):
        assert table.verify(width, 300) == pytest.approx(verify(width))
    assert table.step("layer_skip", 1, 200) == pytest.approx(0.5)
    assert table.step("nobody", 1, 200) is None and table.costs("nobody", False, 200) is None


def test_a_step_by_step_draft_pays_by_token_and_a_look_up_once_a_round(table):
    assert table.costs("layer_skip", False, 128).price(4) == pytest.approx(4 * 0.5 + verify(5))
    assert table.costs("ngram", True, 128).price(4) == pytest.approx(0.01 + verify(5))


def test_two_targets_in_one_table_are_kept_apart(tmp_path):
    rows = measured_tables.cost_rows(COSTS, timing_only=True)
    measured_tables.write(tmp_path, {"cost_model": rows})
    first, second = predicted.read_costs(tmp_path / "cost_model.parquet")
    assert (first.target, first.drafts) == (TARGET, ["layer_skip", "ngram"])
    assert (second.target, second.drafts) == ("qwen3-1.7b", ["qwen3-0.6b"])


def test_a_table_without_its_target_is_refused():
    with pytest.raises(UserError, match="no times of the target"):
        CostTable([row for row in measured_tables.cost_rows(COSTS) if row["role"] == "draft"])


def test_break_even_is_where_the_yield_meets_the_price(config, table):
    rows = predicted.break_even_rows(config, [table])
    columns.to_arrow("break_even", rows)
    assert {(row["draft"], row["k"]) for row in rows} == {(d, k) for d in COSTS for k in (1, 2, 4, 8)}
    first = next(row for row in rows if row["draft"] == "layer_skip" and row["k"] == 1)
    # one guess: 1 + alpha = 0.5 + 1.05
    assert first["break_even_acceptance"] == pytest.approx(0.55)
    assert first["price"] == pytest.approx(1.55) and first["verify_ratio"] == pytest.approx(1.05)


@pytest.fixture(scope="module")
def cells(tmp_path_factory, raw):
    """Every drafting cell of the study, written below a folder."""
    folder, config = tmp_path_factory.mktemp("cells"), load_mapping(raw)
    for cell in timed_cells(config):
        synthetic.write_cell(folder, config, cell)
    return folder


def test_every_drafting_cell_is_a_row_and_chains_follow_the_formula(config, cells):
    costs = dict.fromkeys(config.pair_in_force().drafts, 0.1) | COSTS
    rows = predicted.predicted_rows(config, CostTable(measured_tables.cost_rows(costs)), cells)
    columns.to_arrow("predicted", rows)
    assert [(row["draft"], row["policy"], row["k"], row["shape"]) for row in rows] == [
        (cell.draft, cell.policy, cell.k, cell.shape) for cell in timed_cells(config)
    ]
    for row in rows:
        chain = row["shape"] == "chain"
        assert row["predicted_speedup"] == pytest.approx(row["predicted_tokens_per_round"] / row["price"])
        assert row["error"] == pytest.approx(row["predicted_speedup"] / row["decode_speedup"] - 1)
        plain = chain and row["policy"] == "fixed" and row["draft"] != "ngram"
        assert (row["predicted_independent"] is not None) == plain
        assert (row["break_even_acceptance"] is not None or row["price"] > row["k"] + 1) == chain
        assert (row["note"] == predicted.LEVELS) == (not chain)
    best = {}
    for row in rows:
        group = (row["draft"], row["temperature"], row["seed"], row["prompt_set"])
        best.setdefault(group, set()).add(row["predicted_best_k"])
    assert all(len(depths) == 1 for depths in best.values()), "one best K a draft, whatever the cell"
    # half of the guesses right at half a step each, with a dearer pass: nothing pays
    assert best["layer_skip", 0.0, 0, "project"] == {0} and best["ngram", 0.0, 0, "project"] != {0}


def test_the_yield_is_that_of_the_rounds_as_they_were_drafted(config, tmp_path, table):
    """Rounds that look one and two ahead, all of the first and half of the second accepted."""
    cell = Cell(config.pair, "layer_skip", "fixed", 2)
    rng = np.random.default_rng(0)
    prompt = Prompt("0", "c", ("t",))
    accepted, drafted = [2, 1, 1, 0], [2, 2, 1, 0]
    config_rows = [synthetic.row_of(config, cell, prompt, "ar", rng)]
    config_rows.append(synthetic.row_of(config, cell, prompt, "speculative", rng, accepted=accepted, drafted=drafted))
    config_rows[0]["tokens"] = config_rows[1]["tokens"]
    found = measured(pd.DataFrame(config_rows), cell, "x")
    row = predicted._predicted(config, table, cell, found, None)
    assert row["predicted_tokens_per_round"] == pytest.approx((2.5 + 2.5 + 2 + 1) / 4)
    assert row["alpha"] == pytest.approx(4 / 5)
    prices = [0.5 * d + verify(d + 1) for d in drafted]
    assert row["price"] == pytest.approx(sum(prices) / 4)
    assert row["predicted_best_k"] is None


def test_a_draft_that_was_not_timed_is_a_row_that_says_so(config, cells):
    table = CostTable(measured_tables.cost_rows({"ngram": 0.01}))
    rows = [row for row in predicted.predicted_rows(config, table, cells) if row["draft"] != "ngram"]
    assert rows and all(row["note"] == predicted.NOT_TIMED and row["predicted_speedup"] is None for row in rows)
    assert all(row["decode_speedup"] is not None for row in rows)
