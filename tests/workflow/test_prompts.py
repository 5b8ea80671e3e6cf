"""Prompts are read strictly, and drawn so that no prompt is both tuned on and reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdec.errors import UserError
from tests.workflow.conftest import ROOT
from workflow.study import prompts


def write(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


GOOD = {"question_id": 1, "category": "chat", "turns": ["Hello"]}


def test_spec_bench_lines_are_read(tmp_path):
    lines = [GOOD | {"reference": ["Hi"], "extra": 1}, "", {"question_id": "b", "category": "", "turns": ["x", "y"]}]
    first, second = prompts.read(write(tmp_path / "a.jsonl", *lines))
    assert first == prompts.Prompt("1", "chat", ("Hello",), ("Hi",))
    assert (second.prompt_id, second.category, second.turns) == ("b", "uncategorised", ("x", "y"))


def test_separators_inside_a_text_cut_no_line(tmp_path):
    line = json.dumps(GOOD | {"turns": ["one\u2028two\x0bthree"]}, ensure_ascii=False)
    assert prompts.read(write(tmp_path / "a.jsonl", line))[0].turns == ("one\u2028two\x0bthree",)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "not JSON"),
        ("[1]", "an object"),
        ({"turns": ["x"]}, "question_id is null"),
        (GOOD | {"question_id": True}, "question_id is true"),
        (GOOD | {"turns": []}, "turns must be"),
        (GOOD | {"turns": "x"}, "turns must be"),
        (GOOD | {"turns": ["x", " "]}, "turns must be"),
        (GOOD | {"category": 3}, "category is 3"),
        (GOOD | {"reference": 3}, "reference must be"),
    ],
)
def test_errors_name_file_and_line(tmp_path, line, expected):
    path = write(tmp_path / "a.jsonl", GOOD | {"question_id": 7}, line)
    with pytest.raises(UserError, match=f"a.jsonl, line 2: {expected}"):
        prompts.read(path)


def test_empty_missing_and_repeated(tmp_path):
    with pytest.raises(UserError, match="no prompts"):
        prompts.read(write(tmp_path / "empty.jsonl", "", "  "))
    with pytest.raises(UserError, match="no such file"):
        prompts.read(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="question_id 1 is also in"):
        prompts.read_all([write(tmp_path / "a.jsonl", GOOD), write(tmp_path / "b.jsonl", GOOD)])


def test_the_default_slice_is_balanced_and_apart_from_calibration(config):
    chosen, tuned = prompts.evaluation_slice(config, ROOT), prompts.calibration_slice(config, ROOT)
    categories = [prompt.category for prompt in chosen]
    assert {categories.count(name) for name in categories} == {config.size.per_category}
    assert not {prompt.prompt_id for prompt in chosen} & {prompt.prompt_id for prompt in tuned}
    assert all(len(prompt.turns) == 1 for prompt in chosen)


def test_full_contains_default_and_leaves_nothing_out(config, changed):
    small, full = prompts.evaluation_slice(config, ROOT), prompts.evaluation_slice(changed("study", "full"), ROOT)
    tuned = prompts.calibration_slice(config, ROOT)
    assert {prompt.prompt_id for prompt in small} < {prompt.prompt_id for prompt in full}
    assert len(full) + len(tuned) == len(prompts.read_all(ROOT / path for path in config.prompt_files()))


def test_a_prompt_that_is_added_moves_no_other():
    many = [prompts.Prompt(str(i), "chat", ("x",)) for i in range(20)]
    more = [*many, prompts.Prompt("new", "other", ("x",))]
    assert prompts.split(many, 0, 4)["chat"] == prompts.split(more, 0, 4)["chat"]
    assert prompts.split(many, 0, 4)["chat"] != prompts.split(many, 1, 4)["chat"]


def test_calibration_takes_at_most_half():
    few = [prompts.Prompt(str(i), "chat", ("x",)) for i in range(3)]
    tuned, others = prompts.split(few, 0, 4)["chat"]
    assert (len(tuned), len(others)) == (1, 2)


def test_chinese_only_where_the_pair_asks_for_it(config, changed):
    def categories(config):
        return {prompt.category for prompt in prompts.evaluation_slice(config, ROOT)}

    assert not any(name.startswith("zh") for name in categories(config))
    assert any(name.startswith("zh") for name in categories(changed("pair", "qwen3")))


def test_the_digest_follows_the_text(config):
    chosen = prompts.evaluation_slice(config, ROOT)
    assert prompts.digest(chosen) == prompts.digest(list(chosen))
    assert prompts.digest(chosen) != prompts.digest(chosen[::-1])
