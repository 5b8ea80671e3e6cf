"""What the commands of `python -m specdec.training` do: from flags to text, and from text to a head in a folder."""

from __future__ import annotations

import argparse
import json
import shutil
from collections import Counter
from dataclasses import asdict, fields
from pathlib import Path

import pyarrow.parquet as pq
import torch
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from specdec.commands.setting import load_target
from specdec.errors import UserError
from specdec.measure import fingerprint
from specdec.models import LoadedModel
from specdec.models.catalogue import locate
from specdec.models.eagle import EagleConfig
from specdec.models.eagle_files import write_head
from specdec.models.loading import read_weights
from specdec.training.corpus import Corpus, frequent_tokens, hold_out, read_text, state_bytes
from specdec.training.eagle import EagleModule, output_head
from specdec.training.objectives import Eagle1Loss, Eagle1Recipe, Eagle3Loss, Eagle3Recipe, Recipe, Teacher
from specdec.training.synthesise import Settings, estimate, given_plans, synthesise
from specdec.training.trainer import Progress, Trainer

ROOT = Path(__file__).resolve().parents[2]
console = Console(stderr=True, highlight=False)


def _chosen(of: type, flags: argparse.Namespace):
    """The dataclass `of`, its fields as the flags say."""
    return of(**{field.name: getattr(flags, field.name) for field in fields(of) if hasattr(flags, field.name)})


def _bar(unit: str) -> Bar:
    columns = (BarColumn(), TextColumn("{task.completed:,.0f} of {task.total:,.0f} " + unit))
    return Bar(TextColumn("{task.description}"), *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console)


def read_turns(path: Path) -> list[list[str]]:
    """What users say in a file of JSON lines that hold `turns`."""
    try:
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: not a file of JSON lines ({error})") from None
    for number, row in enumerate(rows, 1):
        turns = row.get("turns") if isinstance(row, dict) else None
        if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
            raise UserError(f"{path}: line {number} has no list `turns` of texts")
    return [row["turns"] for row in rows]


def synthesise_text(flags: argparse.Namespace) -> int:
    settings: Settings = _chosen(Settings, flags)
    evaluation = [turn for path in flags.exclude for turns in read_turns(path) for turn in turns]
    given = read_turns(flags.conversations) if flags.conversations else None
    target = load_target(flags)
    expected = estimate(target, settings)
    flags.out.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(flags.out).free
    console.print(f"about {expected.seconds / 3600:.1f} hours and {expected.bytes / 2**20:.0f} MiB of disk")
    if expected.bytes > free:
        raise UserError(f"{flags.out}: {free / 2**20:.0f} MiB are free there, {expected.bytes / 2**20:.0f} are needed")
    pending = None if given is None else given_plans(given, target, settings, flags.conversations.stem)
    with _bar("answer tokens") as bar:
        task = bar.add_task("writing", total=settings.answer_tokens)
        counts = synthesise(
            target,
            flags.out,
            settings,
            pending=pending,
            evaluation=evaluation,
            progress=lambda tokens: bar.update(task, completed=tokens),
        )
    console.print(", ".join(f"{key}: {value:,.0f}" for key, value in counts.items()))
    return 0


def train_head(flags: argparse.Namespace) -> int:
    recipe: Recipe = _chosen(Eagle3Recipe if flags.command == "eagle3" else Eagle1Recipe, flags)
    target = load_target(flags)
    samples = read_text(flags.text)
    settings = _text_settings(flags.text, target)
    train, held = hold_out(samples)
    origin, weights = read_weights(locate(flags.model))
    head = output_head(origin, weights)[: target.model.vocabulary]
    vocabulary = getattr(flags, "vocabulary", None)
    used = None if vocabulary is None else frequent_tokens(train, vocabulary, target.model.vocabulary)
    version = 3 if flags.command == "eagle3" else 1
    depth = recipe.steps if isinstance(recipe, Eagle3Recipe) else 1
    config = EagleConfig.for_target(origin, version, vocabulary, trained_depth=depth)
    torch.manual_seed(recipe.seed)
    frozen = head.to(torch.bfloat16) if version == 1 else None
    module = EagleModule(config, weights["model.embed_tokens.weight"].to(torch.bfloat16), frozen)
    module.start_from(origin, weights, used)
    del weights
    teacher = Teacher(head, used)
    objective = Eagle3Loss(recipe, teacher) if version == 3 else Eagle1Loss(recipe, teacher)
    corpora = _corpora(target, train, held, config, recipe.prompt, flags.memory)
    trainer = Trainer(module, objective, *corpora, flags.out / "training")
    with _bar("token passes") as bar:
        task = bar.add_task("training", total=recipe.token_passes)

        def report(progress: Progress) -> None:
            loss = progress.loss / progress.losses if progress.losses else progress.history[-1]["loss"]
            text = f"loss {loss:.3f}, best {progress.best:.3f} tokens per round"
            bar.update(task, completed=min(progress.passes, recipe.token_passes), description=text)

        progress = trainer.run(report)
    measured = trainer.finish()
    write_head(flags.out, config, module.weights(), used, origin.vocab_size)
    record = _record(flags, target, trainer, progress, measured, settings)
    (flags.out / "training.json").write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    console.print(f"{flags.out}: {measured['tokens_per_round']:.3f} tokens per round on held-out text")
    return 0


def _corpora(
    target: LoadedModel, train: list, held: list, config: EagleConfig, prompt: int, memory: float
) -> tuple[Corpus, Corpus]:
    """Training and held-out text within `memory` GiB, held-out text first: it is read the most often."""
    width, budget = (len(config.taps) + 1) * config.target_hidden_size, int(memory * 2**30)
    needed, first = state_bytes(train, prompt, width), state_bytes(held, prompt, width)
    kept = min(1.0, (budget - min(first, budget)) / needed)
    console.print(
        f"{len(train)} conversations to train on, {len(held)} held out; their states take "
        f"{(needed + first) / 2**30:.1f} GiB, of which {kept:.0%} is kept and the rest computed each time"
    )
    return (
        Corpus(target.model, train, config.taps, prompt, budget - min(first, budget)),
        Corpus(target.model, held, config.taps, prompt, min(first, budget)),
    )


def _text_settings(folder: Path, target: LoadedModel) -> dict:
    """How the text was written; refuses text of another tokenizer."""
    path = folder / "settings.json"
    settings = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    if settings.get("tokenizer", target.tokenizer.fingerprint) != target.tokenizer.fingerprint:
        raise UserError(f"{folder}: its text was written with another tokenizer than that of {target.origin}")
    return settings


def _record(
    flags: argparse.Namespace,
    target: LoadedModel,
    trainer: Trainer,
    progress: Progress,
    measured: dict,
    settings: dict,
) -> dict:
    """What stands beside a head: how it came to be."""
    parts = [pq.read_table(part, columns=["source", "dropped"]) for part in sorted(flags.text.glob("*.parquet"))]
    rows = [row for part in parts for row in part.to_pylist()]
    return {
        "method": flags.command,
        "target": {"name": Path(target.origin).name, "model_id": target.model_id},
        "recipe": asdict(trainer.recipe),
        "head": trainer.module.config.as_dict(),
        "text": {
            "settings": settings,
            "conversations": len(trainer.corpus),
            "held_out": len(trainer.held_out),
            "answer_tokens": trainer.corpus.answer_tokens,
            "sources": Counter(row["source"] for row in rows if row["dropped"] is None),
            "dropped": Counter(row["dropped"] for row in rows if row["dropped"] is not None),
        },
        "token_passes": progress.passes,
        "updates": progress.updates,
        "seconds": round(progress.seconds, 1),
        "held_out": measured,
        "history": progress.history,
        "hardware": fingerprint.hardware(),
        "environment": fingerprint.environment(flags.dtype, "cpu", None),
        "code": fingerprint.code(ROOT),
    }
