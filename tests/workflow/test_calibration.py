"""Numbers that follow from a calibration, worked out by hand; and files that are none."""

from __future__ import annotations

import json
import math

import pytest

from specdec.errors import UserError
from tests.workflow.conftest import ROOT
from workflow.study import run_shape
from workflow.study.calibration import COMMITTED, Calibration, interpolate
from workflow.study.cells import Cell
from workflow.study.plan import Plan

KNOWN = Calibration(
    subject={"draft": "d"},
    provenance={},
    target_ms={1: 10.0, 2: 11.0, 5: 12.0, 9: 20.0},
    draft_ms={1: 2.0, 4: 2.3, 8: 3.0},
    root_ms=2.0,
    tested=[100, 100],
    hits=[[70, 12, 3], [50, 8, 7]],
    bins=[[0.0, 10, 1]],
)


def test_costs_are_in_target_passes():
    assert KNOWN.target_cost(1) == 1 and KNOWN.target_cost(9) == 2
    assert KNOWN.draft_cost(1) == pytest.approx(0.2)
    # a step, and a fourth of what four more rows add to a pass: 0.2 + (1.2 - 1) / 4
    assert KNOWN.token_cost(4) == pytest.approx(0.25)
    assert KNOWN.level_cost(8) == pytest.approx(0.3)


def test_widths_between_are_interpolated_and_the_ends_go_on():
    assert interpolate({2: 4.0, 4: 8.0}, 3) == pytest.approx(6)
    assert [interpolate({2: 4.0, 4: 8.0}, rows) for rows in (1, 2, 4, 9)] == [4, 4, 8, 8]


def test_acceptance_by_rank_and_what_a_beam_must_hold():
    assert KNOWN.acceptance() == [0.6, 0.1, 0.05]
    # a level of width 2 costs 0.21 and is right with 0.7 of the beam's mass
    assert KNOWN.beam_threshold(2) == pytest.approx(math.log(0.21 / 0.7), abs=1e-5)


def test_a_file_comes_back_as_it_was(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(KNOWN.text(), "utf-8")
    assert Calibration.load(path) == KNOWN
    for content in ("", "[]", "{}", json.dumps({"subject": {}})):
        path.write_text(content, "utf-8")
        with pytest.raises(UserError, match="not a calibration file"):
            Calibration.load(path)


def test_methods_read_their_numbers(config):
    def options(policy, shape, nodes=8):
        cell = Cell("smollm2", "layer_skip", policy, 4, shape=shape, nodes=4 if shape == "chain" else nodes)
        return run_shape.engine_options(config, cell, KNOWN)

    assert options("cost", "chain")["threshold"] == KNOWN.token_cost(4)
    assert options("cost", "opt_tree")["shape"] == {"kind": "opt_tree", "delta": KNOWN.level_cost(8)}
    assert options("fixed", "opt_tree")["shape"]["delta"] == 0
    ddd = options("ddd", "eagle2")
    assert ddd["threshold"] == KNOWN.beam_threshold(4) and ddd["shape"]["levels"] == [1, 2, 3]
    paths = options("fixed", "sequoia")["shape"]["paths"]
    assert [0] in paths and [0, 0] in paths and len(paths) <= 8
    with pytest.raises(UserError, match="needs the calibration of the draft layer_skip"):
        run_shape.engine_options(config, Cell("smollm2", "layer_skip", "cost", 4), None)


def test_a_committed_file_is_read_only_for_the_draft_it_was_measured_with(changed, tmp_path):
    config = changed("prompts/files", [str(ROOT / "prompts/chat.jsonl")])
    plan = Plan(config.model_dump(), tmp_path)
    measured = "results/calibration/smollm2/layer_skip.json"
    assert plan.calibration_file("layer_skip").as_posix() == measured
    path = tmp_path / COMMITTED / "smollm2" / "layer_skip.json"
    path.parent.mkdir(parents=True)
    subject = plan.calibration_subject("layer_skip")
    path.write_text(Calibration(**vars(KNOWN) | {"subject": subject}).text(), "utf-8")
    assert plan.calibration_file("layer_skip") == COMMITTED / "smollm2" / "layer_skip.json"
    for other in ({"study": "full"}, {"run": config.run.model_dump() | {"dtype": "float32"}}):
        assert Plan(config.model_dump() | other, tmp_path).calibration_file("layer_skip").as_posix() == measured


def test_committed_files_fit_the_shipped_configuration(config):
    """A draft that was changed since makes the default study measure anew; say so here rather than to a user."""
    for path in (ROOT / COMMITTED / config.pair).glob("*.json"):
        plan = Plan(config.model_dump(), ROOT)
        assert Calibration.load(path).subject == plan.calibration_subject(path.stem), path
