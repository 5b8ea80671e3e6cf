"""The whole way of trained drafts on a tiny random model: the target writes text, a head and a small model learn from
it, the small model is put together, cells decode with them, and the tables say so."""

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
    small = {"kind": "language_model", "model": "tiny-small"}
    drafts = {"eagle3": pair["drafts"]["eagle3"], "small": small, "small_restricted": small | {"vocabulary": 30}}
    pair |= {"drafts": drafts, "primary": "eagle3", "also": ["small"]}
    pair |= {"dynamic": [], "optional": ["small", "small_restricted"], "extra_prompt_files": []}
    config["models"]["tiny-small"] = {"distilled": {"target": "qwen3-1.7b", "folder": "nothing/shipped"}}
    short = {"seed": 0, "rows": 8, "max_user": 12, "max_answer": 16, "capacity": 120, "sampled_share": 0.1}
    recipe = {"method": "eagle3", "at_least": 1.0, "token_passes": 1200, "batch": 4, "vocabulary": 60, "steps": 2}
    distilled = {name: recipe[name] for name in ("at_least", "token_passes", "batch", "vocabulary")}
    distilled |= {"method": "distill", "layers": [0, 3], "loss": "acceptance"}
    config |= {
        "pair": "qwen3",
        "pairs": {"qwen3": pair},
        "draft_source": "train",
        "draft_recipe": "quick",
        "calibration": {},
    }
    config["training"] = {
        "qwen3": {
            "text": {"written": {"answer_tokens": 1500, **short}},
            "drafts": {
                draft: {"full": known, "quick": known | {"answer_tokens": 1200, "evaluate_every": 600}}
                for draft, known in (("eagle3", recipe), ("small", distilled))
            },
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
    assert "drafts to train: eagle3, small" in done.stderr or "drafts to train: small, eagle3" in done.stderr
    return project


def test_the_head_is_trained_on_what_the_target_wrote(project):
    record = json.loads((project / "resources/drafts/qwen3/eagle3/training.json").read_text())
    assert record["token_passes"] >= 1200 and record["text"]["settings"]["."]["sampled_share"] == 0.1
    assert 1200 <= sum(sum(row["loss_mask"]) for row in rows_of(project)) <= 1300, "the recipe's part of the text"
    table = pd.read_csv(project / TABLES[1])
    assert list(table.draft) == ["eagle3", "small"] and table.token_passes[0] == record["token_passes"]
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


def test_a_small_model_is_distilled_put_together_and_shared_by_two_drafts(project):
    record = json.loads((project / "resources/drafts/qwen3/small/training.json").read_text())
    assert record["method"] == "distill" and record["recipe"]["layers"] == [0, 3]
    assert record["recipe"]["loss"] == "acceptance" and record["model"]["loss_vocabulary"] == 60
    whole = project / "resources/assembled/qwen3/trained/tiny-small"
    assert json.loads((whole / "config.json").read_text())["num_hidden_layers"] == 2
    assert (whole / "specdec.json").is_file() and not (project / "resources/assembled/qwen3/shipped").exists()
    listed = [int(line) for line in (project / "resources/vocabulary/qwen3.txt").read_text().split()]
    table = pd.read_csv(project / TABLES[0])
    weights = {draft: set(table[table.draft == draft].draft_weights_bytes) for draft in ("small", "small_restricted")}
    assert max(weights["small_restricted"]) < min(weights["small"]), "the head is cut"
    for draft in ("small", "small_restricted"):
        own = table[table.draft == draft]
        assert (own.train_token_passes == record["token_passes"]).all() and (own.drafted > 0).all()
        for prompts in ("", "-prompts_own_kind"):
            rows, _ = read(project / f"results/cells/qwen3/{draft}-fixed-k2-t0-s0{prompts}-dtype_float32.parquet")
            frame = rows.to_pandas()
            by_arm = {arm: list(part.output_sha) for arm, part in frame[~frame.warmup].groupby("arm")}
            assert by_arm["ar"] == by_arm["speculative"], "greedy output is the target's own"
    assert len(listed) == len(set(listed)) >= 30


def test_a_second_run_has_nothing_to_do_and_a_changed_recipe_trains_again(project):
    assert "Nothing to be done" in (done := snakemake(project, *TABLES)).stdout + done.stderr
    done = snakemake(project, "--dry-run", *TABLES, "--config", "draft_recipe=full")
    assert "training the draft eagle3" in done.stdout and "writes the training text" not in done.stdout


def test_a_small_model_that_ships_is_left_out_until_it_is_there_and_then_put_together(project):
    """The head is wanted and stays trained; the small model has no recipe any more."""
    config = yaml.safe_load((project / "config.yaml").read_text("utf-8"))
    del config["training"]["qwen3"]["drafts"]["small"]
    (project / "shipped.yaml").write_text(yaml.safe_dump(config), "utf-8")
    # the file would be merged into config.yaml, which has the recipe
    shutil.move(project / "config.yaml", project / "trained.yaml")
    shutil.copy(project / "shipped.yaml", project / "config.yaml")
    try:
        done = snakemake(project, "--dry-run", *TABLES)
        assert done.returncode == 0, done.stderr
        for draft in ("small", "small_restricted"):
            assert f"draft {draft} is left out: the distilled model of draft {draft} is not in nothing/shipped" in (
                done.stderr
            )
        shutil.copytree(project / "resources/drafts/qwen3/small", project / "nothing/shipped")
        stamp = "resources/assembled/qwen3/shipped/tiny-small/specdec.json"
        done = snakemake(project, stamp)
        assert done.returncode == 0, done.stderr
        assert "left out" not in done.stderr
        trained = project / "resources/assembled/qwen3/trained/tiny-small/model.safetensors"
        assert (project / stamp).with_name("model.safetensors").read_bytes() == trained.read_bytes()
    finally:
        shutil.move(project / "trained.yaml", project / "config.yaml")
