"""Small trainings in one file: what each changes, and only those that can be compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdec.errors import UserError
from specdec.training.collect import main, read_rows


def record(
    method: str = "eagle3", passes: int = 50_000, tau: float = 1.4, taps=(2, 15, 27), text: int = 900, **recipe
) -> dict:
    return {
        "method": method,
        "recipe": {"token_passes": 50_000, "batch": 8, "steps": 4, "save_seconds": 120.0} | recipe,
        "head": {"taps": list(taps), "draft_vocabulary": 8192, "own_head": True},
        "text": {"settings": {"target": "t", "seed": 0}, "answer_tokens": text, "held_out": 20},
        "token_passes": passes,
        "updates": 40,
        "held_out": {"tokens_per_round": tau, **{f"acceptance_at_{place}": 0.1 * place for place in (1, 2, 3, 4)}},
    }


@pytest.fixture
def runs(tmp_path) -> Path:
    def write(name: str, content: dict) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "training.json").write_text(json.dumps(content))

    write("base", record())
    write("a_fewer_steps", record(passes=50_900, tau=1.3, steps=1, save_seconds=9.0))
    write("last_layer_only", record(taps=[27]))
    (tmp_path / "unfinished").mkdir()
    return tmp_path


def test_rows_say_what_each_changes_and_the_base_comes_first(runs):
    assert main([str(runs / "out" / "ablations.json"), "--group", str(runs), "base"]) == 0
    rows = read_rows(runs / "out" / "ablations.json")
    assert [(row["name"], row["changes"]) for row in rows] == [
        ("base", {}),
        ("a_fewer_steps", {"steps": 1}),
        ("last_layer_only", {"taps": [27]}),
    ]
    assert rows[1]["tokens_per_round"] == 1.3 and rows[1]["acceptance_at_4"] == 0.4
    assert rows[1]["token_passes"] == 50_900 and rows[1]["updates"] == 40


def test_losses_of_a_distilled_model_are_a_group(tmp_path):
    """The law of the target or the one token it said: what the draft learns from is what differs."""
    for name, loss, vocabulary in (("law", "forward_kl", 60), ("token", "one_hot", 60), ("whole", "forward_kl", None)):
        content = record("distill", loss=loss, layers=[0, 3]) | {"model": {"layers": 2, "loss_vocabulary": vocabulary}}
        del content["head"]
        (tmp_path / name).mkdir()
        (tmp_path / name / "training.json").write_text(json.dumps(content))
    assert main([str(tmp_path / "out.json"), "--group", str(tmp_path), "law"]) == 0
    changes = {row["name"]: row["changes"] for row in read_rows(tmp_path / "out.json")}
    assert changes == {"law": {}, "token": {"loss": "one_hot"}, "whole": {"loss_vocabulary": None}}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (record(passes=60_000), "had 60000 token passes, base 50000; only equal ones"),
        (record(text=901), "trained on another text than base"),
    ],
)
def test_what_cannot_be_compared_is_refused(runs, other, said, capsys):
    (runs / "unfinished" / "training.json").write_text(json.dumps(other))
    assert main([str(runs / "out.json"), "--group", str(runs), "base"]) == 1
    assert said in capsys.readouterr().err and not (runs / "out.json").exists()


def test_groups_are_told_apart_by_the_names_of_their_bases(runs, capsys):
    group = ["--group", str(runs), "base"]
    assert main([str(runs / "out.json"), *group, *group]) == 1
    assert "two groups have a base of one name (base, base)" in capsys.readouterr().err


def test_a_base_that_is_not_there_is_named_with_those_that_are(runs, capsys):
    assert main([str(runs / "out.json"), "--group", str(runs), "bse"]) == 1
    assert "no training of the name bse there" in (said := capsys.readouterr().err) and "a_fewer_steps, base" in said


@pytest.mark.parametrize(
    ("content", "said"), [("{", "not JSON"), ("{}", "a list of rows"), ('[{"name": "a"}]', "row 1")]
)
def test_a_file_that_is_no_collection_is_refused(tmp_path, content, said):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(UserError, match=said):
        read_rows(tmp_path / "a.json")
