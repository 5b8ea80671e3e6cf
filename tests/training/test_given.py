"""Conversations of others: every public form is read, what users say is kept, bad rows are named."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specdec.errors import UserError
from specdec.training.given import read_conversations, user_turns

ROWS = {
    "turns": ({"question_id": 1, "turns": ["one", "two"]}, ["one", "two"]),
    "sharegpt": (
        {
            "id": "x",
            "conversations": [
                {"from": "system", "value": "be kind"},
                {"from": "human", "value": "one"},
                {"from": "gpt", "value": "answer"},
                {"from": "human", "value": "two"},
            ],
        },
        ["one", "two"],
    ),
    "ultrachat": (
        {
            "prompt": "one",
            "prompt_id": "y",
            "messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "answer"}],
        },
        ["one"],
    ),
    "parts": ({"messages": [{"role": "user", "content": [{"type": "text", "text": "one"}]}]}, ["one"]),
    "first ultrachat": ({"id": "0", "data": ["one", "answer", "two", "answer"]}, ["one", "two"]),
    "prompt": ({"prompt": "one", "chosen": "a", "rejected": "b"}, ["one"]),
    "prompt of messages": ({"prompt": [{"role": "user", "content": "one"}], "chosen": []}, ["one"]),
    "question": ({"question": "one", "answer": "4"}, ["one"]),
    "alpaca": ({"instruction": "one", "input": "two", "output": "answer"}, ["one\n\ntwo"]),
    "alpaca without input": ({"instruction": "one", "input": "", "output": "answer"}, ["one"]),
    "a blank turn": ({"turns": ["one", "  "]}, ["one"]),
    "nobody asks": ({"conversations": [{"from": "gpt", "value": "answer"}]}, []),
}


@pytest.mark.parametrize("name", ROWS)
def test_what_the_user_says_is_found_in_every_form(name):
    row, expected = ROWS[name]
    assert user_turns(row, "here") == expected


@pytest.mark.parametrize(
    ("row", "text"),
    [({"text": "one", "id": 3}, "its keys are text, id"), (["one"], "it is no mapping"), ({"messages": None}, "its")],
)
def test_a_row_of_another_form_is_refused_with_what_is_understood(row, text):
    with pytest.raises(UserError, match=f"mine: line 4: no conversation that is understood .{text}.*turns, messages"):
        user_turns(row, "mine: line 4")


def mixed(path, form: str) -> list[list[str]]:
    """A file of all rows that one parquet schema or none holds."""
    rows = [row for row, _ in ROWS.values()]
    if form == "lines":
        path.write_text("\n\n".join(json.dumps(row) for row in rows) + "\n")
    elif form == "array":
        path.write_text(json.dumps(rows, indent=1))
    return [turns for _, turns in ROWS.values() if turns]


@pytest.mark.parametrize("form", ["lines", "array"])
def test_lines_and_arrays_are_read_and_rows_without_a_user_counted(tmp_path, form):
    expected = mixed(tmp_path / "mine.json", form)
    assert read_conversations(str(tmp_path / "mine.json")) == (expected, 1)


def test_a_folder_of_parquet_is_read_by_split(tmp_path):
    for split, text in (("train_sft", "one"), ("test_sft", "two")):
        rows = [{"prompt": text, "messages": [{"role": "user", "content": text}]}] * 2
        (tmp_path / "data").mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data" / f"{split}-00000-of-00001.parquet")
    assert read_conversations(str(tmp_path), "train") == ([["one"]] * 2, 0)
    assert read_conversations(str(tmp_path), "test_sft") == ([["two"]] * 2, 0)
    assert len(read_conversations(str(tmp_path), "all")[0]) == 4, "no name tells: every file"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "neither JSON lines nor a JSON array"),
        ("[1", "neither JSON lines nor a JSON array"),
        ('{"turns": ["a"]}\n\n{"b": 1}', "mine.json: line 3: no conversation that is understood"),
        ('[{"turns": ["a"]}, {"b": 1}]', "mine.json: entry 2: no conversation that is understood"),
        ('{"turns": []}', "no conversation with a user's turn is there"),
        ("", "no conversation with a user's turn is there"),
    ],
)
def test_a_bad_file_is_refused_by_line(tmp_path, content, text):
    (tmp_path / "mine.json").write_text(content)
    with pytest.raises(UserError, match=text):
        read_conversations(str(tmp_path / "mine.json"))


def test_what_is_not_there_is_said(tmp_path, monkeypatch):
    for name in (str(tmp_path / "none.jsonl"), "mine.jsonl", "./mine", "a/b/c"):
        with pytest.raises(UserError, match="no such file or folder"):
            read_conversations(name)
    with pytest.raises(UserError, match="no .parquet, .jsonl or .json file is there"):
        read_conversations(str(tmp_path))
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"bad.parquet: not a whole parquet file"):
        read_conversations(str(tmp_path))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="pip install datasets"):
        read_conversations("someone/chats")


@pytest.fixture
def library(monkeypatch):
    """A stand-in for the `datasets` library."""
    module = ModuleType("datasets")
    stored = {("someone/chats", "train_sft"): [row for row, _ in ROWS.values()]}

    def load_dataset(name, split):
        if (name, split) not in stored:
            raise ValueError(f'Unknown split "{split}"')
        return stored[name, split]

    module.load_dataset = load_dataset
    module.load_from_disk = lambda path: {"train": [{"turns": ["one"]}], "test": [{"turns": ["two"]}]}
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_a_data_set_of_the_hub_is_read_and_its_errors_passed_on(library):
    expected = [turns for _, turns in ROWS.values() if turns]
    assert read_conversations("someone/chats", "train_sft") == (expected, 1)
    with pytest.raises(UserError, match="data set someone/chats, split train: not loaded .ValueError: Unknown split"):
        read_conversations("someone/chats")


def test_a_folder_that_the_library_saved_is_read(library, tmp_path):
    (tmp_path / "dataset_dict.json").write_text("{}")
    assert read_conversations(str(tmp_path), "test") == ([["two"]], 0)
    with pytest.raises(UserError, match="no split validation; there are train, test"):
        read_conversations(str(tmp_path), "validation")
