"""Cells of trees, rules and policies on tiny random models: every legal one runs, and greedy ones say what the baseline
says."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import yaml

from specdec import records
from specdec.errors import UserError
from tests.helpers import tiny
from tests.workflow.conftest import ROOT
from workflow.study import legal, measuring
from workflow.study.calibration import Calibration
from workflow.study.cells import Cell
from workflow.study.config import StudyConfig, load_mapping
from workflow.study.run_cell import run_cell
from workflow.study.run_continuations import continuations
from workflow.study.two_samples import compare

TOKENS = 14
WORDS = ("fox", "dog", "cat", "mat", "stop", "target", "span", "over")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cells")
    tiny.checkpoint(folder / "target", "qwen3", layers=3, max_position_embeddings=512)
    tiny.checkpoint(folder / "draft", "qwen3", layers=1, max_position_embeddings=512)
    questions = [{"question_id": i, "category": "letters", "turns": [f"say {word}"]} for i, word in enumerate(WORDS)]
    (folder / "few.jsonl").write_text("\n".join(map(json.dumps, questions)), "utf-8")
    return folder


@pytest.fixture(scope="module")
def raw(folder) -> dict:
    config = yaml.safe_load((ROOT / "config.yaml").read_text("utf-8"))
    config["pair"] = "qwen3"
    config["models"]["qwen3-1.7b"]["path"] = str(folder / "target")
    config["models"]["qwen3-0.6b"]["path"] = str(folder / "draft")
    pair = config["pairs"]["qwen3"]
    pair["drafts"]["layer_skip"]["layers"] = 2
    pair["extra_prompt_files"] = []
    config["prompts"] |= {"files": [str(folder / "few.jsonl")], "calibration_per_category": 4}
    config["run"] |= {"dtype": "float32", "threads": 1, "warmup": 0}
    config["studies"]["default"] |= {"per_category": 2, "max_new_tokens": TOKENS}
    return config


@pytest.fixture(scope="module")
def config(raw) -> StudyConfig:
    return load_mapping(raw)


@pytest.fixture(scope="module")
def calibrations(config, folder) -> dict[str, Path]:
    found = {}
    for draft in ("small", "layer_skip"):
        path = folder / f"{draft}.json"
        path.write_text(measuring.calibrate(config, draft, {"draft": draft}, tokens=24).text(), "utf-8")
        found[draft] = path
    return found


def run(config: StudyConfig, cell: Cell, folder: Path, calibrations: dict[str, Path]):
    path = folder / cell.path
    known = calibrations[cell.draft] if legal.needs_calibration(config, cell) else None
    run_cell(config, legal.check(config, cell), path, known)
    table, metadata = records.read(path)
    return table.to_pandas(), metadata


def shapes(config: StudyConfig) -> list[str]:
    return ["chain", *config.shapes]


SHAPES = ("chain", *yaml.safe_load((ROOT / "config.yaml").read_text("utf-8"))["shapes"])


@pytest.mark.parametrize("draft", ["small", "layer_skip"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_under_every_policy_writes_the_baselines_text(config, folder, calibrations, shape, draft):
    for policy in legal.POLICIES[legal.kind_of(config, shape)]:
        threshold = 0.5 if policy in legal.THRESHOLD_RULES else None
        nodes = 4 if shape == "chain" else 6
        cell = Cell("qwen3", draft, policy, 4, threshold, shape=shape, nodes=nodes, dtype="float32")
        rows, metadata = run(config, cell, folder, calibrations)
        arms = {arm: own.set_index("prompt_id") for arm, own in rows.groupby("arm")}
        assert (arms["ar"].output_sha == arms["speculative"].output_sha).all(), cell.name
        drafted = arms["speculative"].drafted.map(max)
        assert (drafted <= nodes).all() and drafted.max() > 0
        chances = arms["speculative"].confidence
        counts = [len(one) for rounds in chances for one in rounds]
        assert counts == [count for rounds in arms["speculative"].drafted for count in rounds]
        assert chances.map(lambda rounds: max(max(c, default=0) for c in rounds) <= 1 + 1e-6).all()
        example = metadata["example"]
        assert (example is None) == (shape == "chain")
        if example:
            path = [index for index, node in enumerate(example["nodes"]) if node["accepted"]]
            assert [example["nodes"][node]["parent"] for node in path] == [-1, *path][: len(path)]


def test_a_draft_that_proposes_in_one_go_needs_no_shape(config, folder, calibrations):
    rows, _ = run(config, Cell("qwen3", "ngram", "fixed", 4, dtype="float32"), folder, calibrations)
    assert rows[rows.arm == "speculative"].confidence.map(lambda rounds: sum(map(len, rounds))).sum() == 0


@pytest.mark.parametrize("verifier", list(legal.VERIFIERS))
@pytest.mark.parametrize("shape", ["chain", "sampled", "sampled_with", "static", "coarse_fine"])
def test_every_rule_runs_where_it_is_legal_and_is_refused_elsewhere(config, folder, calibrations, shape, verifier):
    cell = Cell("qwen3", "small", "fixed", 3, temperature=1.0, shape=shape, verifier=verifier, dtype="float32")
    try:
        legal.check(config, cell)
    except UserError as error:
        assert any(word in str(error) for word in ("not exact for", "exact at temperature 0 only"))
        return
    rows, _ = run(config, cell, folder, calibrations)
    assert (rows.tokens == TOKENS).all() and (rows.nll > 0).all()
    told = rows[rows.arm == "speculative"].differing.notna()
    assert told.all() == (verifier == "typical" and shape == "chain")


def test_matching_samples_writes_the_baselines_own_draws(config, folder, calibrations):
    """One draw a token from the same stream: the text is the baseline's, token for token, also above temperature 0."""
    cell = Cell("qwen3", "small", "fixed", 3, temperature=1.0, verifier="sample_and_match", dtype="float32")
    rows, _ = run(config, cell, folder, calibrations)
    arms = {arm: own.set_index("prompt_id").output_sha for arm, own in rows.groupby("arm")}
    assert (arms["ar"] == arms["speculative"]).all()


def test_a_calibration_counts_what_the_draft_guesses(config, calibrations):
    """Layer skipping after all layers is the target: its first guess is always right, at every depth."""
    data = copy.deepcopy(config.model_dump())
    data["pairs"]["qwen3"]["drafts"]["layer_skip"]["layers"] = 3
    known = measuring.calibrate(load_mapping(data), "layer_skip", {}, tokens=24)
    assert known.tested[0] > 0 and [row[0] for row in known.hits] == known.tested
    assert known.acceptance()[0] == 1 and sum(known.acceptance()) == 1
    other = Calibration.load(calibrations["small"])
    assert 0 < sum(other.acceptance()) < 1 and sum(other.tested) * measuring.RANKS == sum(b[1] for b in other.bins)
    assert sum(b[2] for b in other.bins) == sum(map(sum, other.hits))
    assert set(other.target_ms) == set(measuring.WIDTHS) and min(other.draft_ms) == 1


def test_continuations_of_an_exact_rule_pass_and_of_a_lossy_one_do_not(raw):
    data = copy.deepcopy(raw)
    data["experiments"]["verification"]["distribution"] = {"continuations": 500, "tokens": 2, "shift": 0.3}
    config = load_mapping(data)
    cells = {
        name: Cell("qwen3", draft, policy, k, temperature=1.0, verifier=verifier, dtype="float32")
        for name, draft, policy, k, verifier in (
            ("plain", "none", "ar", 0, None),
            ("exact", "layer_skip", "fixed", 1, "rejection"),
            ("lossy", "layer_skip", "fixed", 1, "typical"),
        )
    }
    counts = {}
    for name, cell in cells.items():
        found = continuations(config, cell)
        counts[name] = {tuple(tokens): count for tokens, count in found["counts"]}
        assert sum(counts[name].values()) == 500
    exact, lossy = (compare(counts["plain"], counts[name], 0.3) for name in ("exact", "lossy"))
    assert exact["p_value"] > 1e-3 and exact["power"] > 0.9
    assert lossy["p_value"] < 1e-3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_static_cells_hold_the_texts_of_eager_ones_and_say_what_they_are(raw, folder, temperature):
    """What fixed buffers do not cover is decoded eagerly in both arms."""
    data = copy.deepcopy(raw)
    data["run"]["static"] = True
    static, eager = load_mapping(data), load_mapping(raw)
    cells = [
        Cell("qwen3", "none", "ar", 0, temperature=temperature, dtype="float32"),
        Cell("qwen3", "small", "fixed", 3, temperature=temperature, dtype="float32"),
        Cell("qwen3", "ngram", "fixed", 3, temperature=temperature, dtype="float32"),
        Cell("qwen3", "small", "history", 3, temperature=temperature, dtype="float32"),
    ]
    for cell in cells:
        tables = []
        for name, config in (("static", static), ("eager", eager)):
            path = folder / name / cell.path
            run_cell(config, cell, path)
            tables.append(records.read(path)[0].to_pandas())
        mine, theirs = tables
        covered = cell.draft in ("none", "small") and cell.policy in ("ar", "fixed")
        assert set(mine["static"]) == {covered} and not theirs["static"].any()
        for column in ("output_sha", "rounds", "accepted", "drafted", "source", "stopped"):
            assert [str(value) for value in mine[column]] == [str(value) for value in theirs[column]], column
