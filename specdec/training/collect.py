"""Gather small trainings into one file: what each changes against its base, and how well its head guesses.

    python -m specdec.training.collect OUT --group RUNS BASE [--group RUNS BASE ...]

RUNS is a folder of drafts (each with its `training.json`) of equal length, of which BASE is the one they are compared
with: heads, or small models distilled by several losses.  OUT is a JSON file: a list of rows `{base, name, method,
changes, token_passes, updates, tokens_per_round, acceptance_at_1 .. 4}`.  `name` is the folder's, `changes` the
settings in which its recipe or its shape differs from those of the base, which comes first in its group.  All are
measured at K = 4 on the same held-out text; trainings of a group on another text or of another length cannot be
compared and are refused.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from specdec.errors import UserError

SIMULATED = ("tokens_per_round", *(f"acceptance_at_{place}" for place in range(1, 5)))
"""What a record says of a draft on held-out text."""
ROW = ("base", "name", "method", "changes", "token_passes", "updates", *SIMULATED)
NOT_SETTINGS = ("evaluate_every", "save_seconds", "token_passes")
SHAPE = {"head": ("taps", "draft_vocabulary", "own_head"), "model": ("loss_vocabulary",)}
"""What tells heads apart beside their recipes, and distilled models."""
SLACK = 0.05
"""Passes may differ by this share: a training ends with the batch that reaches its number."""


def settings_of(record: dict) -> dict:
    """What a training can be told apart by."""
    recipe = {key: value for key, value in record["recipe"].items() if key not in NOT_SETTINGS}
    shape = {key: record[part].get(key) for part, keys in SHAPE.items() if part in record for key in keys}
    return {"method": record["method"]} | recipe | shape


def collect(runs: Path, base: str) -> list[dict]:
    """A row a training below `runs`, the base first, the others by name."""
    records = {path.parent.name: _read(path) for path in sorted(runs.glob("*/training.json"))}
    if base not in records:
        found = ", ".join(records) or "none"
        raise UserError(f"{runs}: no training of the name {base} there (no {base}/training.json); found: {found}")
    first, ordered = records[base], {base: records.pop(base)} | records
    reference = settings_of(first)
    rows = []
    for name, record in ordered.items():
        if _text(record) != _text(first):
            raise UserError(f"{runs / name}: trained on another text than {base}; the two cannot be compared")
        if abs(record["token_passes"] - first["token_passes"]) > SLACK * first["token_passes"]:
            passes = f"{record['token_passes']} token passes, {base} {first['token_passes']}"
            raise UserError(f"{runs / name}: had {passes}; only equal ones can be compared")
        own = settings_of(record)
        alike = own["method"] == reference["method"]  # of another method, settings that only one has say nothing
        keys = {**reference, **own} if alike else [key for key in own if key in reference]
        changed = {key: own.get(key) for key in keys if own.get(key) != reference.get(key)}
        row = {"base": base, "name": name, "method": record["method"], "changes": changed}
        row |= {key: record[key] for key in ("token_passes", "updates")}
        rows.append(row | {key: record["held_out"][key] for key in SIMULATED})
    return rows


def _text(record: dict) -> tuple:
    text = record["text"]
    return text["settings"], text["answer_tokens"], text["held_out"]


def _read(path: Path) -> dict:
    try:
        return json.loads(path.read_text("utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not JSON ({error.msg}, line {error.lineno})") from None


def read_rows(path: Path) -> list[dict]:
    """The rows of a collected file.  Raises `UserError` naming what a row lacks."""
    rows = _read(path)
    if not isinstance(rows, list):
        raise UserError(f"{path}: a list of rows is expected")
    for number, row in enumerate(rows, 1):
        missing = [key for key in ROW if key not in row] if isinstance(row, dict) else list(ROW)
        if missing:
            raise UserError(
                f"{path}: row {number} has no {missing[0]}; make the file again by collecting the trainings"
            )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m specdec.training.collect", description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="JSON file to write")
    parser.add_argument(
        "--group",
        nargs=2,
        action="append",
        required=True,
        metavar=("RUNS", "BASE"),
        help="folder of trained drafts, one a folder, and the name of the one that the others are compared with",
    )
    flags = parser.parse_args(arguments)
    try:
        names = [base for _, base in flags.group]
        if len(set(names)) < len(names):
            raise UserError(f"two groups have a base of one name ({', '.join(names)}); rename the folder of one")
        rows = [row for runs, base in flags.group for row in collect(Path(runs), base)]
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    flags.out.parent.mkdir(parents=True, exist_ok=True)
    flags.out.write_text(json.dumps(rows, indent=2) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
