"""Train a draft by its recipe: from the configuration to the command of `specdec.training`, and from what it writes to
where cells read it.

The training lies in a folder of its own, named after everything its result depends on: a killed one goes on there,
another recipe disturbs nothing, and only weights that have passed their gate reach the drafts.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq

from specdec.errors import UserError
from specdec.records import write_table
from specdec.training.parts import parts_of
from workflow.study.columns import write_text
from workflow.study.config import StudyConfig
from workflow.study.config.heads import RECORD, SHAPE, WEIGHTS
from workflow.study.config.training import Recipe, Written

TRAINING_FOLDER = Path("resources/training")
OURS = {"method", "at_least", "answer_tokens", "then"}
"""Keys of a recipe that are no options of the command."""


def working_folder(pair: str, draft: str, values: Mapping) -> Path:
    """Where a training lies whose result depends on `values`."""
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]
    return TRAINING_FOLDER / pair / f"{draft}-{digest}"


def make_head(config: StudyConfig, draft: str, values: Mapping, out: Path) -> None:
    """Train and write `out`; raises `UserError` where the head is below its gate."""
    recipe, folder = config.recipe(draft), working_folder(config.pair, draft, values)
    text = config.text_path()
    if recipe.answer_tokens is not None:
        text = first_part(text, folder / "text", recipe.answer_tokens)
    run([recipe.method, str(text), str(folder), *options(recipe, OURS), *target(config)])
    if recipe.then is not None:
        first, folder = folder, folder / "then"
        both = recipe.model_copy(update=recipe.then.model_dump(exclude={"grow"}, exclude_none=True))
        grow = ["--grow"] if recipe.then.grow else []
        start = ["--start", str(first), *grow]
        run([recipe.method, str(text), str(folder), *options(both, OURS), *start, *target(config)])
    reached = json.loads((folder / RECORD).read_text("utf-8"))["held_out"]["tokens_per_round"]
    if reached < recipe.at_least:
        raise UserError(
            f"draft {draft}: after its training it reaches {reached:.3f} tokens per round on held-out text at K = 4, "
            f"less than training.{config.pair}.drafts.{draft}.{config.draft_recipe}.at_least = {recipe.at_least:g}; "
            f"it is in {folder} and is not used"
        )
    out.mkdir(parents=True, exist_ok=True)
    for name in (WEIGHTS, SHAPE, RECORD):
        part = out / f".{name}.part"
        shutil.copyfile(folder / name, part)
        part.replace(out / name)


def make_text(config: StudyConfig, stamp: Path) -> None:
    """Let the target write the pair's text beside `stamp`, which says when it is whole."""
    written: Written = config.training[config.pair].text.written
    exclude = [str(path) for path in config.prompt_files()]
    flags = options(written, set())
    thinking = config.pair_in_force().chat.enable_thinking
    if thinking is not None:
        flags.append("--think" if thinking else "--no-think")
    run(["synthesise", str(stamp.parent), *flags, *target(config), "--exclude", *exclude])
    write_text(stamp, json.dumps({"parts": len(list(stamp.parent.glob("*.parquet")))}) + "\n")


def options(section: Written | Recipe, without: set[str]) -> list[str]:
    """The options that a section of the configuration sets."""
    values = section.model_dump(exclude=without, exclude_none=True)
    return [word for key, value in values.items() for word in _words(f"--{key.replace('_', '-')}", value)]


def _words(flag: str, value: object) -> list[str]:
    """A yes is the option alone, a no is nothing."""
    if isinstance(value, bool):
        return [flag] if value else []
    return [flag, ",".join(map(str, value)) if isinstance(value, list) else str(value)]


def target(config: StudyConfig) -> list[str]:
    return [
        *("--model", str(config.target_path()), "--dtype", config.run.dtype),
        *("--threads", str(config.threads())),
    ]


def run(arguments: list[str]) -> None:
    """A command of `specdec.training`; what stops it ends the job, its message already said."""
    from specdec.training.__main__ import main

    if code := main(arguments):
        raise SystemExit(code)


def first_part(text: Path, out: Path, answer_tokens: int) -> Path:
    """A folder with the first conversations of a text, in the order of their indices, that hold so many answer tokens.

    What was dropped among them is kept as well, so that the record still counts it.
    """
    table = pq.ParquetDataset(parts_of(text)).read().sort_by("index")
    counts = [sum(mask) for mask in table["loss_mask"].to_pylist()]
    total, rows = 0, 0
    while rows < len(counts) and total < answer_tokens:
        total += counts[rows]
        rows += 1
    if total < answer_tokens:
        raise UserError(f"{text}: holds {total} answer tokens, but the recipe asks for {answer_tokens}")
    out.mkdir(parents=True, exist_ok=True)
    for settings in text.rglob("settings.json"):
        place = out / settings.relative_to(text)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(settings, place)
    write_table(out / "part-00000.parquet", table.slice(0, rows))
    return out
