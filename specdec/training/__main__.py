"""`python -m specdec.training`: write text with a target (`synthesise`), train a head on it (`eagle3`, `eagle1`).

Every command goes on where it was stopped.  Exit codes are those of `python -m specdec`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path

from specdec.errors import UserError
from specdec.models.catalogue import DEFAULT
from specdec.training.objectives import Eagle1Recipe, Eagle3Recipe, Recipe
from specdec.training.synthesise import Settings


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m specdec.training", description="Drafts trained on a target's text.")
    commands = top.add_subparsers(dest="command", required=True, metavar="command")

    text = commands.add_parser("synthesise", help="let the target write conversations, or answer given ones")
    text.add_argument("out", type=Path, help="folder for the text")
    _model(text)
    _fields(
        text,
        Settings,
        {
            "answer_tokens": "how many answer tokens to write",
            "seed": "",
            "rows": "conversations written side by side",
            "max_user": "longest request written, in tokens",
            "max_answer": "longest answer, in tokens",
            "capacity": "longest conversation, in tokens",
            "sampled_share": "share of conversations whose answers are sampled, not greedy",
        },
    )
    text.add_argument(
        "--exclude", type=Path, nargs="*", default=[], metavar="FILE", help="prompts (JSON lines with turns) to avoid"
    )
    text.add_argument(
        "--conversations", type=Path, metavar="FILE", help="JSON lines with turns: what users say; answered anew"
    )
    thinking = text.add_mutually_exclusive_group()
    thinking.add_argument("--think", dest="enable_thinking", action="store_true", default=None, help="thinking mode")
    thinking.add_argument("--no-think", dest="enable_thinking", action="store_false", help="no thinking")

    eagle3 = _head(commands, "eagle3", "train an EAGLE-3 head", Eagle3Recipe, {"steps", "acceptance"})
    eagle3.add_argument("--vocabulary", type=int, default=8192, metavar="N", help="draft tokens (default: 8192)")
    _head(commands, "eagle1", "train an EAGLE-1 head", Eagle1Recipe, {"feature_weight", "token_weight", "noise"})
    return top


_HELP = {
    "token_passes": "answer tokens to train on, repeats included",
    "prompt": "tokens kept before a first answer",
    "batch": "conversations an update",
    "peak_rate": "highest learning rate",
    "warmup": "updates until the rate is at its highest",
    "seed": "",
    "evaluate_every": "token passes between measurements on held-out text",
    "steps": "self-fed steps",
    "acceptance": "weight of the acceptance loss, 0 to 1",
    "feature_weight": "weight of the regression on states",
    "token_weight": "weight of the cross-entropy",
    "noise": "uniform noise on the states that are fed",
}


def _head(commands, name: str, text: str, recipe: type[Recipe], own: set[str]) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text)
    command.add_argument("text", type=Path, help="folder that `synthesise` wrote")
    command.add_argument("out", type=Path, help="folder for the head")
    _model(command)
    shared = {"token_passes", "prompt", "batch", "peak_rate", "warmup", "seed", "evaluate_every"}
    _fields(command, recipe, {key: help for key, help in _HELP.items() if key in shared | own})
    command.add_argument(
        "--memory", type=float, default=8.0, metavar="GIB", help="for states of the target (default: 8)"
    )
    return command


def _model(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", default=DEFAULT, metavar="NAME", help=f"the target (default: {DEFAULT})")
    command.add_argument("--dtype", default="bfloat16", metavar="D", help="the target's (default: bfloat16)")
    command.add_argument("--threads", type=int, metavar="N", help="default: every core this process may use")
    command.set_defaults(device="cpu")


def _fields(command: argparse.ArgumentParser, of: type, helps: dict[str, str]) -> None:
    """An option for each named field of a dataclass, with its default; required without one."""
    known = {field.name: field for field in fields(of)}
    for name, text in helps.items():
        field = known[name]
        required = field.default is MISSING
        kind = int if str(field.type) == "int" else float
        shown = text if required else f"{text} (default: {field.default})".strip()
        option = {"required": True} if required else {"default": field.default}
        command.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N", help=shown, **option)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from specdec.training import commands

    try:
        if chosen.command == "synthesise":
            return commands.synthesise_text(chosen)
        return commands.train_head(chosen)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
