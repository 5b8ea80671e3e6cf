"""What the commands of `python -m specdec.training` do beside training itself (`train.py`)."""

from __future__ import annotations

import argparse
import os
import shutil
from dataclasses import fields

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from specdec.commands.setting import load_target
from specdec.errors import UserError
from specdec.models.catalogue import locate
from specdec.training.assemble import assemble
from specdec.training.corpus import answer_counts, hold_out, read_text
from specdec.training.given import read_conversations
from specdec.training.synthesise import Settings, estimate, given_plans, synthesise

console = Console(stderr=True, highlight=False)


def chosen(of: type, flags: argparse.Namespace):
    """The dataclass `of`, its fields as the flags say."""
    return of(**{field.name: getattr(flags, field.name) for field in fields(of) if hasattr(flags, field.name)})


def bar(unit: str) -> Progress:
    columns = (BarColumn(), TextColumn("{task.completed:,.0f} of {task.total:,.0f} " + unit))
    return Progress(
        TextColumn("{task.description}"), *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console
    )


def synthesise_text(flags: argparse.Namespace) -> int:
    settings: Settings = chosen(Settings, flags)
    evaluation = [turn for file in flags.exclude for turns in read_conversations(file)[0] for turn in turns]
    given = None
    if flags.conversations:
        given, silent = read_conversations(flags.conversations, flags.split)
        console.print(f"{len(given)} conversations to answer; {silent} without a user's turn are left out")
    target = load_target(flags)
    expected = estimate(target, settings)
    flags.out.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(flags.out).free
    console.print(f"about {expected.seconds / 3600:.1f} hours and {expected.bytes / 2**20:.0f} MiB of disk")
    if expected.bytes > free:
        raise UserError(f"{flags.out}: {free / 2**20:.0f} MiB are free there, {expected.bytes / 2**20:.0f} are needed")
    name = os.path.splitext(os.path.basename(flags.conversations.rstrip("/")))[0] if flags.conversations else ""
    pending = None if given is None else given_plans(given, target, settings, name)
    with bar("answer tokens") as progress:
        task = progress.add_task("writing", total=settings.answer_tokens)
        counts = synthesise(
            target,
            flags.out,
            settings,
            pending=pending,
            evaluation=evaluation,
            progress=lambda tokens: progress.update(task, completed=tokens),
        )
    console.print(", ".join(f"{key}: {value:,.0f}" for key, value in counts.items()))
    return 0


def assemble_model(flags: argparse.Namespace) -> int:
    assemble(flags.draft, locate(flags.model), flags.out)
    console.print(f"{flags.out}: a whole model; --draft {flags.out} decodes with it")
    return 0


def write_vocabulary(flags: argparse.Namespace) -> int:
    """The ids of the answers' tokens, one a line, the most frequent first; held-out text is not counted."""
    train, _ = hold_out(read_text(flags.text))
    counts = answer_counts(train)
    ids = sorted(counts, key=lambda token: (-counts[token], token))
    flags.out.parent.mkdir(parents=True, exist_ok=True)
    flags.out.write_text("".join(f"{token}\n" for token in ids), "utf-8")
    console.print(f"{flags.out}: {len(ids)} token ids")
    return 0
