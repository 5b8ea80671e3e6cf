"""Tables from synthetic cells: the columns as documented, types kept, comparisons against the right reference."""

from __future__ import annotations

import csv
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specdec.errors import UserError
from tests.workflow import synthetic
from tests.workflow.conftest import ROOT
from workflow.study import columns, tables
from workflow.study.cells import Cell
from workflow.study.config import load_mapping
from workflow.study.experiments import TABLES, all_cells, cells_for_table
from workflow.study.measure_columns import MEASURED_COLUMNS
from workflow.study.measured import measured

SHARED = [
    "pair",
    "draft",
    "policy",
    "k",
    "threshold",
    "temperature",
    "seed",
    "prompts",
    "tokens",
    "rounds",
    "drafted",
    "accepted",
    "acceptance_rate",
    "acceptance_length",
    "tokens_per_round",
    "tokens_per_s",
    "ar_tokens_per_s",
    "speedup",
    "speedup_low",
    "speedup_high",
    "verdict",
    "decode_speedup",
    "decode_speedup_low",
    "decode_speedup_high",
]
AUDIT = [
    "pair",
    "draft",
    "policy",
    "k",
    "dtype",
    "prompts",
    "tokens",
    "identical",
    "first_divergence",
    "gap",
    "near_ties",
    "real_mismatches",
    "shape",
    "nodes",
    "verifier",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, raw) -> Path:
    root = tmp_path_factory.mktemp("study")
    config = load_mapping(raw)
    synthetic.write_cells(root, config, all_cells(config), ROOT)
    synthetic.write_heads(root, config)
    return root


def build(config, name, folder) -> list[dict]:
    return tables.build(config, name, folder).to_pylist()


def test_columns_are_those_of_the_study():
    assert list(columns.COLUMNS["fixed_k"]) == SHARED
    assert list(columns.COLUMNS["dynamic_k"]) == [*SHARED, "gain", "gain_low", "gain_high", "gain_p_holm"]
    assert list(columns.COLUMNS["losslessness"]) == AUDIT


@pytest.mark.parametrize("name", TABLES)
def test_both_files_hold_the_same_and_keep_their_types(config, folder, tmp_path, name):
    table = tables.build(config, name, folder)
    assert table.num_rows > 0
    columns.write(table, tmp_path / f"{name}.csv", tmp_path / f"{name}.parquet")
    assert pq.read_table(tmp_path / f"{name}.parquet").equals(table)
    with (tmp_path / f"{name}.csv").open(encoding="utf-8") as source:
        rows = list(csv.DictReader(source))
    assert list(rows[0]) == list(columns.COLUMNS[name])
    assert len(rows) == table.num_rows
    for row in rows:
        for column, kind in columns.COLUMNS[name].items():
            if kind == pa.int64() and row[column]:
                assert row[column].isdigit(), f"{column} is {row[column]}"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_fixed_k_has_the_baseline_first(config, folder):
    rows = build(config, "fixed_k", folder)
    first = rows[0]
    assert (first["draft"], first["policy"], first["k"]) == ("none", "ar", 0)
    assert first["speedup_low"] <= 1 <= first["speedup_high"]
    assert first["verdict"] == "not distinguishable"
    assert [(row["draft"], row["k"]) for row in rows[1:]] == [
        (draft, k) for draft in ("small", "eagle3", "eagle3_lookup", "ngram") for k in (1, 2, 4, 8)
    ]
    deep = next(row for row in rows if row["draft"] == "eagle3" and row["k"] == 4)
    assert deep["verdict"] == "faster"


def test_gain_is_over_the_calibrated_k(raw, changed, folder):
    known = raw["calibration"]["smollm2"]
    config = changed("calibration/smollm2/eagle3", known["eagle3"] | {"best_k": 2})
    rows = build(config, "dynamic_k", folder)
    reference = next(row for row in rows if (row["draft"], row["policy"], row["k"]) == ("eagle3", "fixed", 2))
    assert (reference["gain"], reference["gain_low"], reference["gain_high"]) == (1, 1, 1)
    for row in (row for row in rows if row["draft"] == "eagle3"):
        assert row["gain"] == pytest.approx(row["speedup"] / reference["speedup"])
        assert row["gain_low"] <= row["gain"] <= row["gain_high"]
        assert (row["gain_p_holm"] is not None) == (row["policy"] not in ("ar", "fixed"))
    assert rows[0]["gain"] is None
    chosen = {row["draft"]: (row["best_k"], row["chosen_on"]) for row in build(config, "best_k", folder)}
    assert chosen["eagle3"] == (2, "calibration") and chosen["small"] == (known["small"]["best_k"], "calibration")


@pytest.mark.parametrize("calibration", [{}, {"smollm2": {"eagle3": {"best_k": 3, "provenance": "elsewhere"}}}])
def test_without_a_calibrated_k_the_best_measured_is_named_as_such(changed, folder, calibration):
    config = changed("calibration", calibration)
    chosen = next(row for row in build(config, "best_k", folder) if row["draft"] == "eagle3")
    speedups = {row["k"]: row["speedup"] for row in build(config, "fixed_k", folder) if row["draft"] == "eagle3"}
    assert chosen["best_k"] == max(speedups, key=speedups.get)
    assert chosen["chosen_on"] == "measured"


def test_what_lies_inside_the_noise_is_not_a_result(config, tmp_path):
    """A draft 1% faster in every prompt, where the baseline differs from itself by a tenth."""
    cells = {}
    for cell in cells_for_table(config, "fixed_k"):
        rows = synthetic.records.read(synthetic.write_cell(tmp_path, config, cell))[0].to_pandas()
        fast = rows["arm"] == "speculative"
        swing = pd.Series([1.1 if i % 4 < 2 else 0.9 for i in range(len(rows))], index=rows.index)
        rows["total_s"] = 1.0
        rows.loc[fast, "total_s"] = 0.99 if cell.policy == "fixed" else swing[fast]
        cells[cell] = measured(rows, cell, "a.parquet")
    result = tables.fixed_k(config, cells)
    assert {row["verdict"] for row in result} == {"not distinguishable"}
    assert all(row["speedup_low"] > 1 for row in result[1:])


def test_losslessness_counts_prompts(config, tmp_path):
    cell = Cell("smollm2", "layer_skip", "fixed", 4)
    path = synthetic.write_cell(tmp_path, config, cell)
    rows, _ = synthetic.records.read(path)
    rows = rows.to_pandas()
    speculative = rows[(rows["arm"] == "speculative") & ~rows["warmup"]].index
    for index, (kind, place, gap) in zip(
        speculative, [("near_tie", 9, 0.001), ("real", 4, 0.5), (None, 7, None)], strict=False
    ):
        rows.loc[index, ["output_sha", "divergence", "first_divergence", "gap"]] = ["other", kind, place, gap]
    found = measured(rows, cell, "a.parquet")
    (row,) = tables.losslessness(config, {cell: found})
    # a difference that nobody has explained counts as a real one
    assert (row["prompts"], row["identical"], row["near_ties"], row["real_mismatches"]) == (12, 9, 1, 2)
    assert (row["first_divergence"], row["gap"]) == (4, 0.5)


def test_cells_of_two_machines_are_not_compared(config, tmp_path):
    for cell in cells_for_table(config, "dynamic_k"):
        other = {"hardware_id": "other"} if cell.policy == "margin" else {}
        synthetic.write_cell(tmp_path, config, cell, **other)
    with pytest.raises(UserError, match="across different values of hardware"):
        tables.build(config, "dynamic_k", tmp_path)


def test_missing_broken_and_unknown(config, folder, tmp_path):
    with pytest.raises(UserError, match="no such file"):
        tables.build(config, "fixed_k", tmp_path)
    path = synthetic.write_cell(tmp_path, config, cells_for_table(config, "fixed_k")[0])
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="none-ar-k0-t0-s0.parquet: not a whole parquet file"):
        tables.build(config, "fixed_k", tmp_path)
    with pytest.raises(UserError, match="fixed_k"):
        tables.build(config, "fixed", folder)


def test_every_column_is_explained():
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    for table, named in (columns.COLUMNS | MEASURED_COLUMNS).items():
        for column in named:
            assert f"`{column}`" in text, f"results/README.md does not explain {column} of {table}"
