"""The whole way of a trained draft on a tiny random model: the target writes text, a head learns from it, cells decode
with it, and the tables say so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from specdec.records import read
from tests.helpers import tiny
from tests.workflow.conftest import ROOT

pytestmark = pytest.mark.workflow

TABLES = [f"results/tables/{name}.csv" for name in ("drafts", "training")]


def snakemake(project: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "snakemake", "--cores", "2", *arguments]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, env=os.environ | {"NO_COLOR": "1"})


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    project = tmp_path_factory.mktemp("training") / "tiny 推测"
    project.mkdir()
    for name in ("workflow", "specdec", "env"):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Snakefile", project)
    tiny.checkpoint(project / "models" / "target", "qwen3", layers=4, max_position_embeddings=1024)
    # a random model would rarely write its end of text
    ends = [tiny.EOS, tiny.END, *range(20, 28)]
    tiny.edit_json(project / "models" / "target" / "generation_config.json", eos_token_id=ends)
    config = yaml.safe_load((ROOT / "config.yaml").read_text("utf-8"))
    pair = config["pairs"]["qwen3"]
    pair |= {"drafts": {"eagle3": pair["drafts"]["eagle3"]}, "primary": "eagle3"}
    pair |= {"also": [], "dynamic": [], "optional": [], "extra_prompt_files": []}
    short = {"seed": 0, "rows": 8, "max_user": 12, "max_answer": 16, "capacity": 120, "sampled_share": 0.1}
    recipe = {"method": "eagle3", "at_least": 1.0, "token_passes": 1200, "batch": 4, "vocabulary": 60, "steps": 2}
    config |= {"pair": "qwen3", "draft_source": "train", "draft_recipe": "quick", "calibration": {}}
    config["training"] = {
        "qwen3": {
            "text": {"written": {"answer_tokens": 1500, **short}},
            "drafts": {"eagle3": {"full": recipe, "quick": recipe | {"answer_tokens": 1200, "evaluate_every": 600}}},
        }
    }
    config["models"]["qwen3-1.7b"]["path"] = "models/target"
    config["prompts"] |= {"files": ["few.jsonl"], "calibration_per_category": 0, "own_kind": 3}
    config["run"] |= {"dtype": "float32", "threads": 1}
    config["experiments"]["fixed_k"]["k"] = [2]
    config["experiments"]["dynamic_k"]["rules"] = []
    config["experiments"]["losslessness"]["dtypes"] = []
    config["studies"]["default"] |= {"per_category": None, "max_new_tokens": 8, "draft_depths": [2], "rules": None}
    questions = [{"question_id": word, "category": word[0], "turns": [f"say {word}"]} for word in ("fox", "dog", "dot")]
    (project / "few.jsonl").write_text("\n".join(map(json.dumps, questions)), "utf-8")
    (project / "config.yaml").write_text(yaml.safe_dump(config), "utf-8")
    done = snakemake(project, *TABLES)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    assert "drafts to train: eagle3" in done.stderr
    return project


def test_the_head_is_trained_on_what_the_target_wrote(project):
    record = json.loads((project / "resources/drafts/qwen3/eagle3/training.json").read_text())
    assert record["token_passes"] >= 1200 and record["text"]["settings"]["."]["sampled_share"] == 0.1
    assert 1200 <= sum(sum(row["loss_mask"]) for row in rows_of(project)) <= 1300, "the recipe's part of the text"
    table = pd.read_csv(project / TABLES[1])
    assert list(table.draft) == ["eagle3"] and table.token_passes[0] == record["token_passes"]
    assert table.tokens_per_round[0] == pytest.approx(record["held_out"]["tokens_per_round"], abs=1e-5)


def rows_of(project: Path) -> list[dict]:
    import pyarrow.parquet as pq

    (part,) = (project / "resources" / "training").glob("qwen3/eagle3-*/text/*.parquet")
    return pq.read_table(part).to_pylist()


def test_every_set_of_prompts_is_decoded_with_it(project):
    table = pd.read_csv(project / TABLES[0])
    own = table[table.draft == "eagle3"]
    assert set(zip(own.prompt_set, own.category, strict=True)) == {
        ("project", "all"),
        ("project", "f"),
        ("project", "d"),
        ("own_kind", "all"),
    }
    assert (own.train_token_passes >= 1200).all() and (own.cost_ratio > 0).all() and (own.draft_weights_bytes > 0).all()
    held = [json.loads(line) for line in (project / "resources/prompts/qwen3/own_kind.jsonl").open(encoding="utf-8")]
    rows, _ = read(project / "results/cells/qwen3/eagle3-fixed-k2-t0-s0-prompts_own_kind-dtype_float32.parquet")
    assert set(rows["prompt_id"].to_pylist()) == {prompt["question_id"] for prompt in held} and len(held) == 3
    frame = rows.to_pandas()
    by_arm = {arm: list(part.output_sha) for arm, part in frame[~frame.warmup].groupby("arm")}
    assert by_arm["ar"] == by_arm["speculative"], "greedy output is the target's own"


def test_a_second_run_has_nothing_to_do_and_a_changed_recipe_trains_again(project):
    assert "Nothing to be done" in (done := snakemake(project, *TABLES)).stdout + done.stderr
    done = snakemake(project, "--dry-run", *TABLES, "--config", "draft_recipe=full")
    assert "training the draft eagle3" in done.stdout and "writes the training text" not in done.stdout
