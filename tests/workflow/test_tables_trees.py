"""Tables of trees, rules and ablation from synthetic cells, against numbers worked out from their rounds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.workflow import synthetic
from tests.workflow.conftest import ROOT
from tests.workflow.test_tables import SHARED, build
from workflow.study import columns
from workflow.study.config import load_mapping
from workflow.study.experiments import all_cells, cells_for_table
from workflow.study.measured import load

FORM = ["shape", "nodes", "verifier", "lossless"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, raw) -> Path:
    root = tmp_path_factory.mktemp("study")
    config = load_mapping(raw)
    synthetic.write_cells(root, config, all_cells(config), ROOT)
    return root


def test_columns_are_those_of_the_other_tables_and_the_form():
    assert list(columns.COLUMNS["trees"]) == list(columns.COLUMNS["verification"]) == [*SHARED, *FORM]
    gain = ["improvement", "over", "gain", "gain_low", "gain_high"]
    assert list(columns.COLUMNS["ablation"]) == [*SHARED, *FORM, *gain]


def test_an_acceptance_rate_is_a_chains(config, folder):
    rows = build(config, "trees", folder)
    assert [row["shape"] for row in rows] == ["chain", "chain", "static", "eagle2", "eagle2", "opt_tree"]
    assert [row["acceptance_rate"] is None for row in rows] == [True, False, True, True, True, True]
    assert all(row["acceptance_length"] is not None for row in rows)
    assert rows[0]["policy"] == "ar" and rows[0]["nodes"] == 0


def test_only_typical_acceptance_is_lossy(config, folder):
    rows = build(config, "verification", folder)
    assert {row["verifier"] for row in rows if not row["lossless"]} == {"typical"}
    assert {row["temperature"] for row in rows} == {1.0}


def test_gains_are_over_the_improvement_named(config, folder):
    rows = {row["improvement"]: row for row in build(config, "ablation", folder)}
    assert list(rows) == [None, "none", "shape", "depth", "both", "eagle2", "ddd"]
    assert rows["none"]["gain"] == rows["none"]["gain_low"] == rows["none"]["gain_high"] == 1
    for name, row in rows.items():
        if name:
            assert row["over"] == ("eagle2" if name == "ddd" else "none")
            assert row["gain"] == pytest.approx(row["speedup"] / rows[row["over"]]["speedup"])
            assert row["gain_low"] <= row["gain"] <= row["gain_high"]
    policies = [(row["shape"], row["policy"]) for row in (rows[name] for name in ("none", "shape", "depth", "both"))]
    assert policies == [("chain", "fixed"), ("opt_tree", "fixed"), ("chain", "cost"), ("opt_tree", "cost")]


def test_expected_and_realised_are_of_the_same_rounds(config, folder):
    rows = {(row["shape"], row["policy"], row["verifier"]): row for row in build(config, "round_costs", folder)}
    (cell,) = [c for c in cells_for_table(config, "trees") if c.shape == "static"]
    found = load(folder / cell.path).headline
    rounds = [
        (sum(chances), kept)
        for row in found.itertuples()
        for chances, kept, source in zip(row.confidence, row.accepted, row.source, strict=True)
        if source != "cut"
    ]
    row = rows["static", "fixed", "greedy"]
    assert row["expected_length"] == pytest.approx(np.mean([expected for expected, _ in rounds]), rel=1e-5)
    assert row["realised_length"] == pytest.approx(np.mean([kept for _, kept in rounds]))
    assert row["draft_share"] + row["target_share"] + row["other_share"] + row["prefill_share"] == pytest.approx(1)
    assert rows["chain", "ar", "greedy"]["expected_length"] is None


def test_every_node_stands_in_one_bin(config, folder):
    rows = build(config, "confidence", folder)
    for cell in cells_for_table(config, "confidence"):
        own = [r for r in rows if (r["shape"], r["policy"], r["k"]) == (cell.shape, cell.policy, cell.k)]
        found = load(folder / cell.path).headline
        assert sum(row["guesses"] for row in own) == sum(len(c) for rounds in found.confidence for c in rounds)
        assert sum(row["kept"] for row in own) == sum(len(p) for rounds in found.path for p in rounds)
        assert all(row["low"] <= row["mean_confidence"] <= row["high"] for row in own)


def test_the_example_ends_in_the_targets_own_token(config, folder):
    *nodes, last = build(config, "example_tree", folder)
    assert [json.loads(row["text"]) for row in nodes] == [node["text"] for node in synthetic.EXAMPLE["nodes"]]
    assert [row["parent"] for row in nodes] == [None, None, 0, 0]
    assert (json.loads(last["text"]), last["parent"], last["confidence"]) == (" sat", 2, None)


def test_a_lossy_rule_is_set_against_the_exact_one_of_its_chain(config, folder):
    (row,) = build(config, "lossy", folder)
    assert (row["verifier"], row["exact_verifier"], row["shape"]) == ("typical", "rejection", "chain")
    assert row["differing_share"] == pytest.approx(0.2)
    found = {c.verifier: load(folder / c.path) for c in cells_for_table(config, "lossy") if c.policy != "ar"}
    spoken, own = found["typical"].headline, found["typical"].headline_baseline
    assert row["perplexity"] == pytest.approx(np.exp(spoken.nll.sum() / spoken.tokens.sum()))
    assert row["perplexity_ratio"] == pytest.approx(row["perplexity"] / np.exp(own.nll.sum() / own.tokens.sum()))
    assert row["perplexity_ratio_low"] <= row["perplexity_ratio"] <= row["perplexity_ratio_high"]
