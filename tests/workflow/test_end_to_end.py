"""The whole way on tiny random models, offline: the shipped pair entry `qwen3`, from prompts to the PDF."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pypdfium2
import pytest
import yaml

from specdec.records import read
from tests.helpers import tiny
from tests.workflow.conftest import ROOT

pytestmark = pytest.mark.workflow

TOKENS = 12
WORDS = ("fox", "dog", "cat", "mat", "stop", "target", "span", "over")


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A copy of the project whose Qwen3 models are tiny random ones, and whose study is a few tokens long."""
    project = tmp_path_factory.mktemp("study") / "tiny 推测"
    project.mkdir()
    for name in ("workflow", "specdec", "env", "report_templates"):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Snakefile", project)
    tiny.checkpoint(project / "models" / "target", "qwen3", layers=3, max_position_embeddings=4096)
    tiny.checkpoint(project / "models" / "draft", "qwen3", layers=1, max_position_embeddings=4096)
    config = yaml.safe_load((ROOT / "config.yaml").read_text("utf-8"))
    config["pair"] = "qwen3"
    config["models"]["qwen3-1.7b"]["path"] = "models/target"
    config["models"]["qwen3-0.6b"]["path"] = "models/draft"
    config["pairs"]["qwen3"]["drafts"]["layer_skip"]["layers"] = 1
    config["pairs"]["qwen3"]["extra_prompt_files"] = []
    config["prompts"]["files"] = ["few.jsonl"]
    config["run"]["dtype"] = "float32"
    config["experiments"]["fixed_k"]["k"] = [3]
    config["experiments"]["dynamic_k"] |= {"k": 3, "rules": ["margin", "history"], "thresholds": {"margin": [0.5]}}
    config["experiments"]["losslessness"]["dtypes"] = []
    config["experiments"]["trees"] |= {"k": 3, "deepest": 3, "nodes": [4]}
    config["experiments"]["verification"] |= {"k": 3, "nodes": 4}
    config["experiments"]["verification"]["rules"] = {"chain": ["rejection", "typical"]}
    config["experiments"]["ablation"] |= {"k": 3, "deepest": 3, "nodes": 4}
    config["studies"]["default"] |= {"per_category": None, "max_new_tokens": TOKENS, "rules": None}
    config["studies"]["default"]["trees"] = {"contenders": ["opt_tree", "sequoia"], "nodes": None}
    config["experiments"]["cost_model"] = {"widths": [1, 2, 4], "contexts": [32, 64], "repeats": 3}
    config["experiments"]["profile"] = {"tokens": 4, "widths": [1, 4], "context": 32, "repeats": 3}
    config["experiments"]["long_context"] = {"in_report": True, "contexts": [16, 48, 96], "outputs": 8, "window": 4}
    config["calibration"] = {}
    config["prompts"]["calibration_per_category"] = 2
    questions = [{"question_id": i, "category": "letters", "turns": [f"say {word}"]} for i, word in enumerate(WORDS)]
    (project / "few.jsonl").write_text("\n".join(map(json.dumps, questions)), "utf-8")
    (project / "config.yaml").write_text(yaml.safe_dump(config), "utf-8")
    command = [sys.executable, "-m", "snakemake", "--cores", "2"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, env=os.environ | {"NO_COLOR": "1"})
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    return project


def test_the_report_is_there_and_speaks_of_the_pair(project):
    document = pypdfium2.PdfDocument(project / "results" / "report.pdf")
    text = "".join(page.get_textpage().get_text_range() for page in document)
    assert len(document) > 5 and "Qwen3-1.7B" in text


def test_every_cell_holds_both_arms_of_every_prompt_at_full_length(project):
    cells = sorted((project / "results" / "cells" / "qwen3").glob("*.parquet"))
    assert len(cells) == 15
    for cell in cells:
        table, metadata = read(cell)
        rows = table.to_pandas()
        assert set(rows.arm) == {"ar", "speculative"} and rows.prompt_id.nunique() == len(WORDS) - 2
        assert (rows.tokens <= TOKENS).all() and (rows.output_ids.map(len) == rows.tokens).all()
        assert (rows.drafted.map(sum) >= rows.accepted.map(sum)).all()
        assert set(metadata) >= {"hardware", "environment", "model", "code"}


def test_greedy_output_of_every_cell_is_the_baselines(project):
    table = pd.read_csv(project / "results" / "tables" / "losslessness.csv")
    assert len(table) >= 5 and (table.identical == table.prompts).all() and (table.real_mismatches == 0).all()


def test_a_second_run_has_nothing_to_do(project):
    command = [sys.executable, "-m", "snakemake", "--cores", "1"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, env=os.environ | {"NO_COLOR": "1"})
    assert "Nothing to be done" in done.stdout + done.stderr


def test_costs_and_predictions_cover_the_pair(project):
    folder = project / "results" / "tables"
    tables = {name: pd.read_csv(folder / f"{name}.csv") for name in ("cost_model", "predicted", "roofline")}
    costs = tables["cost_model"]
    absent = costs.note.fillna("").str.startswith("missing")
    timed = costs[~absent]
    assert set(timed.model) >= {"qwen3-1.7b", "small", "layer_skip", "ngram"}
    assert (timed.groupby("model").size() == 6).all() and (timed.ms > 0).all()
    assert (timed[(timed.role == "target") & (timed.width == 1)].cost_ratio == 1).all()
    assert costs[absent].ms.isna().all() and set(costs[absent].model) >= {"eagle3", "eagle3_public"}
    assert len(tables["predicted"]) >= 5 and tables["predicted"].predicted_speedup.notna().all()
    assert tables["roofline"].point.tolist() == ["memory_limit", "arithmetic_limit", "ar", "verification"]
    assert len(pd.read_csv(folder / "long_context.csv")) == 6
