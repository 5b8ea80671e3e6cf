"""`python -m specdec.training`: write text with a target (`synthesise`), train a draft on it (`eagle3`, `eagle1`,
`distill`) or the target's early layers (`layerskip`), make a distilled draft a whole model (`assemble`), list frequent
tokens (`vocabulary`).

Writing and training go on where they were stopped.  Training runs in several processes under `torchrun`:

    torchrun --nproc-per-node 2 -m specdec.training eagle3 TEXT HEAD --token-passes N

Exit codes are those of `python -m specdec`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from pathlib import Path

# Read once, when torch brings in the OpenMP library.  Its threads wait for one another by spinning; where two processes
# share the cores, each spins away what the other could compute with, and both are many times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from specdec.errors import UserError  # noqa: E402
from specdec.models.catalogue import DEFAULT  # noqa: E402
from specdec.training.distill import LOSSES, TARGET, DistillRecipe  # noqa: E402
from specdec.training.eagle_losses import HEADS, STARTS, Eagle1Recipe, Eagle3Recipe  # noqa: E402
from specdec.training.layerskip import LayerSkipRecipe  # noqa: E402
from specdec.training.objective import LEARNED, OPTIMISERS, PRECISIONS, Recipe  # noqa: E402
from specdec.training.synthesise import Settings  # noqa: E402

_HELP = {
    "token_passes": "tokens to learn from, repeats included",
    "learn": "what is learned: answers alone, or requests as well",
    "batch": "conversations an update, over all processes",
    "optimiser": "of the matrices inside a draft; the rest is AdamW's",
    "peak_rate": "AdamW's highest learning rate",
    "matrix_rate": "Muon's highest learning rate",
    "warmup": "updates until the rate is at its highest",
    "clip": "longest gradient",
    "seed": "",
    "evaluate_every": "token passes between measurements on held-out text",
    "save_seconds": "seconds between savings of the state",
    "precision": "of products",
}
_HEAD_HELP = {
    "prompt": "tokens kept before a first answer",
    "start": f"weights to begin with: {', '.join(STARTS)} or a head's folder",
}
_SAMPLED = "tokens of the vocabulary that an update's loss looks at; 0: all"
_EAGLE3_HELP = {
    "head": "rows that decide over the draft vocabulary: the draft's own, or the target's, which are not stored",
    "steps": "self-fed steps; 1: no training-time test",
    "sampled": _SAMPLED,
    "decay": "weight of a step's loss, to the power of the step",
    "acceptance": "weight of the acceptance loss, 0 to 1",
}
_EAGLE1_HELP = {
    "feature_weight": "weight of the regression on states",
    "token_weight": "weight of the cross-entropy",
    "noise": "uniform noise on the states that are fed",
}
_DISTILL_HELP = {
    "start": f"weights to begin with: {TARGET}'s, or a draft's folder",
    "loss": "how it is brought close",
    "sampled": _SAMPLED,
}
_LAYERSKIP_HELP = {
    "exit": "layers of the draft that is measured",
    "weight": "of an early exit's loss beside that of the last layer",
    "dropout": "chance that the last layer is left out; the earlier a layer, the less",
}
_CHOICES = {
    "head": HEADS,
    "precision": PRECISIONS,
    "learn": LEARNED,
    "optimiser": OPTIMISERS,
    "loss": tuple(LOSSES),
}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m specdec.training", description="Drafts trained on a target's text.")
    commands = top.add_subparsers(dest="command", required=True, metavar="command")
    _synthesise(commands)

    eagle3 = _method(commands, "eagle3", "train an EAGLE-3 head", Eagle3Recipe, _HEAD_HELP | _EAGLE3_HELP)
    eagle3.add_argument(
        "--vocabulary", type=_size, default=8192, metavar="N", help="draft tokens, or full (default: 8192)"
    )
    eagle3.add_argument(
        "--taps",
        type=_numbers,
        metavar="A,B,C",
        help="states of the target that are fused, k the input of its layer k; one alone: no fusion "
        "(default: low, middle and high, as published)",
    )
    eagle3.add_argument(
        "--grow",
        action="store_true",
        help="give the head to begin with a second layer, and attention heads set up to copy what followed its last "
        "two tokens before",
    )
    _method(commands, "eagle1", "train an EAGLE-1 head", Eagle1Recipe, _HEAD_HELP | _EAGLE1_HELP)

    small = _method(commands, "distill", "distil a small language model", DistillRecipe, _DISTILL_HELP)
    small.add_argument(
        "--layers", type=_numbers, required=True, metavar="A,B,...", help="the target's layers it is cut from"
    )
    small.add_argument(
        "--vocabulary", type=_size, metavar="N", help="frequent tokens that the loss looks at, or full (default: full)"
    )

    target = _method(
        commands, "layerskip", "go on training the target, for its early layers", LayerSkipRecipe, _LAYERSKIP_HELP
    )
    target.add_argument(
        "--taught", type=_numbers, default=(), metavar="A,B,...", help="exits that learn (default: every one)"
    )
    target.add_argument(
        "--held-out",
        type=int,
        metavar="N",
        help="conversations to measure on, of those held out: a whole target takes its time (default: all)",
    )

    whole = commands.add_parser("assemble", help="make a distilled draft a whole model")
    whole.add_argument("draft", type=Path, help="folder that `distill` wrote")
    whole.add_argument("out", type=Path, help="folder for the model")
    whole.add_argument("--model", default=DEFAULT, metavar="NAME", help=f"the target (default: {DEFAULT})")

    frequent = commands.add_parser("vocabulary", help="list the text's tokens, the most frequent first")
    frequent.add_argument("text", type=Path, help="folder that `synthesise` wrote")
    frequent.add_argument("out", type=Path, help="file for the ids")
    return top


def _synthesise(commands) -> None:
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
            "user_temperature": "of what users say; above 1 brings rare words, which answers then copy",
            "user_top_k": "likeliest tokens that users choose among",
            "max_answer": "longest answer, in tokens",
            "capacity": "longest conversation, in tokens",
            "openers": "how requests begin: requests, or passages (texts to summarise, ask about, translate, code)",
            "opener_share": "share of conversations that begin so",
            "sampled_share": "share of conversations whose answers are sampled, not greedy",
        },
    )
    text.add_argument(
        "--cut-requests", action="store_true", help="end a request at its longest, instead of dropping the conversation"
    )
    text.add_argument("--exclude", nargs="*", default=[], metavar="FILE", help="prompts (JSON lines) to avoid")
    text.add_argument(
        "--conversations",
        metavar="SOURCE",
        help="what users say, answered anew: JSON lines, a JSON array, parquet, a folder of these, or a data set of "
        "the Hugging Face hub; forms: turns, ShareGPT, UltraChat, prompt",
    )
    text.add_argument("--split", default="train", metavar="NAME", help="of a data set (default: train)")
    thinking = text.add_mutually_exclusive_group()
    thinking.add_argument("--think", dest="enable_thinking", action="store_true", default=None, help="thinking mode")
    thinking.add_argument("--no-think", dest="enable_thinking", action="store_false", help="no thinking")


def _method(commands, name: str, text: str, recipe: type[Recipe], own: dict[str, str]) -> argparse.ArgumentParser:
    """A command that trains: a text, a folder for the draft, and what is chosen in its recipe."""
    command = commands.add_parser(name, help=text)
    command.add_argument("text", type=Path, help="folder that `synthesise` wrote")
    command.add_argument("out", type=Path, help="folder for the draft")
    _model(command)
    _fields(command, recipe, _HELP | own)
    command.add_argument(
        "--memory", type=float, default=8.0, metavar="GIB", help="of a machine, for states of the target (default: 8)"
    )
    return command


def _model(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", default=DEFAULT, metavar="NAME", help=f"the target (default: {DEFAULT})")
    command.add_argument("--dtype", default="bfloat16", metavar="D", help="the target's (default: bfloat16)")
    command.add_argument("--device", default="cpu", metavar="D", help="cpu or cuda (default: cpu)")
    command.add_argument("--threads", type=int, metavar="N", help="default: every core this process may use")


def _numbers(text: str) -> tuple[int, ...]:
    """0,1,28 as numbers."""
    if not all(part.strip().isdigit() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text}: numbers with commas between them are expected, as in 0,1,28")
    return tuple(int(part) for part in text.split(","))


def _size(text: str) -> int | None:
    if text != "full" and not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text}: a number of tokens is expected, or full")
    return None if text == "full" else int(text)


def _fields(command: argparse.ArgumentParser, of: type, helps: dict[str, str]) -> None:
    """An option for each named field of a dataclass, with its default; required without one."""
    known = {field.name: field for field in fields(of)}
    kinds: dict[str, Callable] = {"int": int, "float": float, "str": str}
    for name, text in helps.items():
        field = known[name]
        required = field.default is MISSING
        shown = text if required else f"{text} (default: {field.default})".strip()
        option = {"required": True} if required else {"default": field.default}
        option |= {"choices": _CHOICES[name]} if name in _CHOICES else {"metavar": "N"}
        command.add_argument(f"--{name.replace('_', '-')}", type=kinds[str(field.type)], help=shown, **option)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from specdec.training import commands, train

    others = {
        "synthesise": commands.synthesise_text,
        "assemble": commands.assemble_model,
        "vocabulary": commands.write_vocabulary,
    }
    try:
        return others.get(chosen.command, train.train)(chosen)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
