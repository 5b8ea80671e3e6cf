"""The table of drafts and those of trainings: every number by its definition."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from specdec.errors import UserError
from tests.workflow import synthetic
from tests.workflow.conftest import ROOT
from workflow.study import metrics, tables
from workflow.study.cells import Cell
from workflow.study.config import load_mapping
from workflow.study.experiments import RECORDS, cells_for_table
from workflow.study.measured import load, measured


@pytest.fixture(scope="module")
def folder(tmp_path_factory, raw) -> Path:
    root = tmp_path_factory.mktemp("study")
    config = load_mapping(raw)
    synthetic.write_cells(root, config, cells_for_table(config, "drafts"), ROOT)
    synthetic.write_heads(root, config)
    return root


@pytest.fixture(scope="module")
def rows(raw, folder) -> list[dict]:
    return build(load_mapping(raw), "drafts", folder)


def build(config, name, folder) -> list[dict]:
    return tables.build(config, name, folder).to_pylist()


def test_every_draft_is_there_on_both_sets_and_the_studied_ones_at_every_depth(rows):
    whole = [(row["draft"], row["k"], row["prompt_set"]) for row in rows if row["category"] == "all"]
    deep = [(draft, k, "project") for draft in ("small", "eagle3", "eagle3_lookup", "ngram") for k in (1, 2, 4, 8)]
    level = {"eagle3_whole": (4,), "eagle1": (4,), "small_restricted": (2, 4), "layer_skip": (4,)}
    level = [(draft, k, "project") for draft, depths in level.items() for k in depths]
    own = [(draft, 4, "own_kind") for draft, k, _ in [*deep, *level] if k == 4]
    assert whole == [("none", 0, "project"), *deep, *level, ("none", 0, "own_kind"), *own]
    one = [row for row in rows if (row["draft"], row["k"], row["prompt_set"]) == ("eagle1", 4, "project")]
    assert one[0]["category"] == "all" and len({row["category"] for row in one}) == len(one) > 2
    for name in ("prompts", "tokens", "rounds", "drafted", "accepted", "rows"):
        assert one[0][name] == sum(row[name] for row in one[1:]), name
    assert {row["category"] for row in rows if row["prompt_set"] == "own_kind"} == {"all"}, "one category is no split"


def test_the_full_study_compares_every_draft_at_every_depth(changed):
    config = changed("study", "full")
    cells, config_drafts = cells_for_table(config, "drafts"), list(config.pair_in_force().drafts)
    assert {"small", "small_restricted", "eagle3", "eagle3_whole"} < set(config_drafts)
    for prompt_set in ("project", "own_kind"):
        found = {(c.draft, c.k) for c in cells if c.prompt_set == prompt_set and c.policy == "fixed"}
        assert found == {(d, k) for d in config_drafts for k in (1, 2, 4, 8)}


@pytest.mark.parametrize(("chosen", "depths"), [(3, {3, 4}), (4, {4}), (None, {4})])
def test_a_draft_is_also_decoded_at_the_depth_that_calibration_chose_for_it(changed, chosen, depths):
    cells = cells_for_table(changed("calibration/smollm2/small_restricted/best_k", chosen), "drafts")
    assert {c.k for c in cells if c.draft == "small_restricted" and c.prompt_set == "project"} == depths


def test_the_cost_of_a_draft_step_is_in_baseline_steps(config):
    cell = Cell("smollm2", "eagle3", "fixed", 4)
    rows = synthetic.rows_of(
        config, cell, [synthetic.Prompt("a", "c", ("text",)), synthetic.Prompt("b", "c", ("text",))]
    )
    for row in rows:
        row["draft_s"] = (
            [0.003 * drafted for drafted in row["drafted"]] if row["arm"] == "speculative" else [0.0] * row["rounds"]
        )
        row["decode_s"] = 0.02 * row["tokens"] if row["arm"] == "ar" else 1.0
    import pandas as pd

    found = measured(pd.DataFrame(rows), cell, "a.parquet")
    assert metrics.cost_ratio(found) == pytest.approx(0.003 / 0.02)
    assert metrics.time_shares(found)["cost_ratio"] == metrics.cost_ratio(found)


def test_a_draft_that_guessed_nothing_has_no_cost(rows):
    assert rows[0]["policy"] == "ar" and rows[0]["cost_ratio"] is None
    assert all(row["cost_ratio"] > 0 for row in rows if row["policy"] != "ar")


def test_acceptance_is_conditional_and_stops_at_k(rows, folder):
    found = load(folder / Cell("smollm2", "eagle3", "fixed", 4).path)
    known = [place.conditional for place in metrics.positions_of(found)]
    (row,) = (
        row
        for row in rows
        if (row["draft"], row["k"], row["prompt_set"], row["category"]) == ("eagle3", 4, "project", "all")
    )
    assert [row[f"acceptance_at_{place}"] for place in range(1, 9)] == [*known, None, None, None, None]


def test_loops_are_left_out_of_both_arms_and_counted(config, folder, tmp_path):
    cell = Cell("smollm2", "eagle3", "fixed", 4)
    prompts = [synthetic.Prompt(str(i), f"category {i % 2}", ("text",)) for i in range(8)]
    path = synthetic.write_cell(tmp_path, config, cell, prompts)
    frame = synthetic.records.read(path)[0].to_pandas()
    frame.loc[(frame.prompt_id == "3") & (frame.arm == "ar"), "loop"] = True
    found = measured(frame, cell, "a.parquet")
    whole, first, second = tables.drafts(config, {cell: found}, folder)
    assert (whole["rows"], whole["rows_looped"], whole["prompts"]) == (8, 1, 7)
    assert (first["rows_looped"], first["prompts"], second["rows_looped"], second["prompts"]) == (0, 4, 1, 3)
    clean = frame[(frame.prompt_id != "3") & ~frame.warmup & (frame.arm == "speculative")]
    assert whole["tokens"] == clean.tokens.sum() and whole["drafted"] == sum(map(sum, clean.drafted))


def test_what_a_draft_took_stands_beside_it(rows, folder):
    record, small = (
        json.loads((folder / f"checkpoints/smollm2/{draft}/training.json").read_text()) for draft in ("eagle3", "small")
    )
    for row in rows:
        trained = (row["train_tokens"], row["train_token_passes"], row["train_hours"])
        if row["draft"] in ("eagle3", "eagle3_whole", "eagle3_lookup"):
            assert trained == (500, record["token_passes"], pytest.approx(record["seconds"] / 3600))
        elif row["draft"] in ("small", "small_restricted"):
            assert trained == (500, small["token_passes"], pytest.approx(small["seconds"] / 3600))
        elif row["draft"] != "eagle1":
            assert trained == (None, None, None)


def test_trainings_have_a_row_a_head_and_curves_a_row_a_measurement(config, folder):
    rows = build(config, "training", folder)
    assert [(row["draft"], row["method"], row["vocabulary"], row["steps"]) for row in rows] == [
        ("small", "distill", 8192, None),
        ("eagle3", "eagle3", 8192, 4),
        ("eagle1", "eagle1", None, 1),
    ]
    assert (rows[0]["taps"], rows[0]["prompt"]) == ("0 1 28", None)
    first = rows[1]
    assert (first["written"], first["dropped"], first["dropped_loop"], first["dropped_too_long"]) == (824, 104, 100, 0)
    assert first["epochs"] == first["token_passes"] / 500 and first["taps"] == "2 15 27" and first["head_bytes"] == 1000
    curves = build(config, "training_curves", folder)
    assert [row["passes"] for row in curves if row["draft"] == "eagle1"] == [1000, 2000, 3000]
    assert {row["stage"] for row in curves} == {1}


def test_a_curve_goes_on_where_the_training_before_it_ended(config, folder, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(folder, path)
    record = path / config.head_path("eagle1") / "training.json"
    old = json.loads(record.read_text())
    before = old | {"token_passes": 5000, "seconds": 7200.0}
    record.write_text(json.dumps(old | {"before": before}))
    rows = [row for row in build(config, "training_curves", path) if row["draft"] == "eagle1"]
    assert [(row["stage"], row["passes"]) for row in rows] == [
        *((1, passes) for passes in (1000, 2000, 3000)),
        *((2, passes) for passes in (6000, 7000, 8000)),
    ]
    assert rows[3]["hours"] == pytest.approx(rows[0]["hours"] + 2)


def test_curves_of_other_sizes_follow_and_say_that_their_weights_are_not_kept(config, folder, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(folder, path)
    (path / config.sizes_path()).mkdir()
    (path / config.sizes_path() / "small_2_layers.json").write_text(json.dumps(synthetic.record_of("distill", 2)))
    rows = build(config, "training_curves", path)
    kept = {(row["draft"], row["layers"]) for row in rows if row["shipped"]}
    assert kept == {("small", 3), ("eagle3", None), ("eagle1", None)}
    assert {(row["draft"], row["layers"]) for row in rows if not row["shipped"]} == {("small_2_layers", 3)}


def test_ablations_name_what_they_change(config, folder):
    base, other = build(config, "training_ablations", folder)
    assert (base["name"], base["changes"]) == ("base", None)
    assert other["changes"] == "steps = 1, noise = None" and other["tokens_per_round"] == 1.3


def test_a_target_that_was_trained_itself_has_a_row_with_what_it_was_before(config, folder, tmp_path):
    (row,) = build(config, "training_layerskip", folder)
    assert (row["exit"], row["layers"], row["taught"], row["held_out"]) == (6, 30, "4 6", 20)
    assert (row["untrained_tokens_per_round"], row["tokens_per_round"]) == (1.0, pytest.approx(1.2))
    assert (row["agreement"], row["divergence"], row["hours"]) == (0.9, 0.2, pytest.approx(0.02))
    other = tmp_path / config.layerskip_path()
    other.parent.mkdir(parents=True)
    other.write_text(json.dumps(synthetic.record_of("eagle1", 2)))
    with pytest.raises(UserError, match=r"layerskip\.json: its method is eagle1; a record of layerskip is expected"):
        build(config, "training_layerskip", tmp_path)


def test_without_any_training_the_tables_are_empty(config, tmp_path):
    for name in RECORDS:
        assert build(config, name, tmp_path) == []


def test_a_broken_record_is_named(config, tmp_path):
    synthetic.write_heads(tmp_path, config)
    path = tmp_path / "checkpoints/smollm2/eagle3/training.json"
    content = json.loads(path.read_text())
    content["text"]["dropped"]["boring"] = 3
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="unknown reasons: {'boring': 3}"):
        build(config, "training", tmp_path)
    path.write_text("{")
    with pytest.raises(UserError, match=r"training\.json: not JSON"):
        build(config, "training", tmp_path)
