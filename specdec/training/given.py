"""Conversations of others: what users say in them, for the target to answer anew.

Rows are told apart by their keys, in the forms that public data sets have: `turns` (MT-bench), `messages` of role and
content (UltraChat and most others), `conversations` of from and value (ShareGPT), `data` of texts in turn (UltraChat's
first release), one `prompt`, `question` or `instruction` (Alpaca's, with its `input`).  Answers and system turns are
left out: the answers are to be the target's own, behind its template's own opening.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from specdec.errors import UserError

USERS = ("user", "human", "prompter")


def _texts(turns: list) -> list[str]:
    return [turn for turn in turns if isinstance(turn, str)]


def _by(speaker: str, text: str) -> Callable[[list], list[str]]:
    def users(turns: list) -> list[str]:
        said = [turn.get(text) for turn in turns if isinstance(turn, dict) and turn.get(speaker) in USERS]
        return [_plain(content) for content in said]

    return users


def _plain(content: object) -> str:
    """A turn's text; some forms cut it into parts."""
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if isinstance(part, dict) and part.get("type") == "text")
    return content if isinstance(content, str) else ""


def _either(content: object) -> list[str]:
    """A prompt is a text, or the messages up to the answer."""
    return _by("role", "content")(content) if isinstance(content, list) else [_plain(content)]


FORMS: dict[str, Callable[[list], list[str]]] = {
    "turns": _texts,
    "messages": _by("role", "content"),
    "conversations": _by("from", "value"),
    "data": lambda turns: _texts(turns[::2]),
    "prompt": _either,
    "question": _either,
    "instruction": _either,
}


def user_turns(row: object, where: str) -> list[str]:
    """What the user says in a row, without blank turns; `where` names the row in the error for an unknown form."""
    form = next((key for key in FORMS if isinstance(row, dict) and row.get(key) is not None), None)
    if form is None:
        found = f"its keys are {', '.join(map(str, row))}" if isinstance(row, dict) else "it is no mapping"
        raise UserError(f"{where}: no conversation that is understood ({found}); one of {', '.join(FORMS)} is needed")
    turns = FORMS[form](row[form])
    if form == "instruction" and row.get("input"):
        turns = [f"{turns[0]}\n\n{row['input']}"]
    return [turn for turn in turns if turn.strip()]


def read_conversations(source: str, split: str = "train") -> tuple[list[list[str]], int]:
    """(user turns of each conversation, how many rows had none) of a file, a folder, or a data set of the hub.

    Files are JSON lines, a JSON array or parquet; of a folder, those of the `split` where their names tell.
    """
    path = Path(source)
    rows = [user_turns(row, where) for where, row in (_local(path, split) if path.exists() else _hub(source, split))]
    kept = [turns for turns in rows if turns]
    if not kept:
        raise UserError(f"{source}: no conversation with a user's turn is there")
    return kept, len(rows) - len(kept)


def _local(path: Path, split: str) -> Iterable[tuple[str, object]]:
    """Rows with where they stand."""
    if path.is_file():
        return _file(path)
    if (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
        return _rows(_datasets(str(path)).load_from_disk(str(path)), str(path), split)
    files = sorted(file for suffix in ("parquet", "jsonl", "json") for file in path.rglob(f"*.{suffix}"))
    files = [file for file in files if split in file.stem] or files
    if not files:
        raise UserError(f"{path}: no .parquet, .jsonl or .json file is there")
    return (row for file in files for row in _file(file))


def _file(path: Path) -> Iterable[tuple[str, object]]:
    if path.suffix == ".parquet":
        try:
            rows = pq.read_table(path).to_pylist()
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{path}: not a whole parquet file ({error})") from None
        return ((f"{path}: row {number}", row) for number, row in enumerate(rows, 1))
    try:
        text = path.read_text("utf-8")
        if text.lstrip().startswith("["):
            return ((f"{path}: entry {number}", row) for number, row in enumerate(json.loads(text), 1))
        lines = ((number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip())
        return [(f"{path}: line {number}", json.loads(line)) for number, line in lines]
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: neither JSON lines nor a JSON array ({error})") from None


def _hub(name: str, split: str) -> Iterable[tuple[str, object]]:
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or Path(name).suffix in (".json", ".jsonl", ".parquet"):
        raise UserError(f"{name}: no such file or folder")
    library = _datasets(name)
    try:
        found = library.load_dataset(name, split=split)
    except Exception as error:  # the hub client raises many types; each means the same to the user
        raise UserError(f"data set {name}, split {split}: not loaded ({type(error).__name__}: {error})") from error
    return _rows(found, name, split)


def _rows(found, name: str, split: str) -> Iterable[tuple[str, object]]:
    if isinstance(found, dict):  # a folder of several splits
        if split not in found:
            raise UserError(f"data set {name}: no split {split}; there are {', '.join(found)}")
        found = found[split]
    return ((f"{name}: row {number}", row) for number, row in enumerate(found, 1))


def _datasets(name: str):
    """The `datasets` library, which nothing else here needs."""
    try:
        import datasets
    except ImportError:
        raise UserError(
            f"{name}: not a file or folder of files here, and reading it as a data set needs a library that is not "
            "installed: pip install datasets"
        ) from None
    return datasets
