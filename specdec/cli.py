"""The command line: `generate` streams a text, `bench` times the arms, `doctor` looks at the machine.

Exit codes: 0 done, 1 the user can mend it (one line on stderr), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from specdec import __version__
from specdec.errors import UserError

# Written out, so that help comes without loading the library behind them.
POLICIES = (
    "fixed",
    "max_prob",
    "margin",
    "entropy",
    "history",
    "svip",
    "adaedl",
    "draft_verify",
    "pid",
    "cost",
    "token_type",
    "difficulty",
    "ddd",
)
WEIGHTS = ("q8_0", "q4_1")
SHAPES = ("chain", "static_tree", "sampled_tree", "eagle2", "opt_tree", "coarse_fine")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m specdec", description="Speculative decoding: exact, measured.")
    top.add_argument("--version", action="version", version=f"specdec {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="command")

    generate = commands.add_parser("generate", help="stream the answer to a prompt, with or without a draft")
    generate.add_argument("prompt", help='the user\'s turn, or "-" to read it from standard input')
    _model(generate)
    _draft(generate, default="ngram")
    generate.add_argument("-n", "--max-new-tokens", type=int, default=128, metavar="N", help="default: 128")
    generate.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 (the default) is greedy")
    generate.add_argument("--top-k", type=int, metavar="N", help="sample from the N likeliest tokens only")
    generate.add_argument("--top-p", type=float, metavar="P", help="sample from the smallest set of mass P only")
    generate.add_argument("--show-tree", action="store_true", help="each round's draft as a picture, on stderr")
    generate.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    generate.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before TEXT; may be repeated"
    )
    generate.add_argument("--raw", action="store_true", help="the prompt is plain text: no chat template")
    thinking = generate.add_mutually_exclusive_group()
    thinking.add_argument(
        "--think", dest="think", action="store_true", default=None, help="thinking mode, where there is one"
    )
    thinking.add_argument("--no-think", dest="think", action="store_false", help="no thinking")

    bench = commands.add_parser("bench", help="time the baseline, drafts and Transformers' generate in one run")
    _model(bench)
    _draft(bench, default=None)
    bench.add_argument("-n", "--max-new-tokens", type=int, default=48, metavar="N", help="default: 48")
    bench.add_argument(
        "--prompts", type=int, default=5, metavar="N", help="how many of the built-in prompts (default: 5)"
    )
    bench.add_argument("--no-transformers", action="store_true", help="leave Transformers' generate out")

    doctor = commands.add_parser("doctor", help="what is installed, what the machine offers, what is missing")
    doctor.add_argument("--model", default=None, metavar="NAME", help="also load this model and test its forward")
    return top


def _model(command: argparse.ArgumentParser) -> None:
    from specdec.models.catalogue import DEFAULT

    group = command.add_argument_group("model")
    group.add_argument(
        "--model", default=DEFAULT, metavar="NAME", help=f"folder, .gguf file or hub id (default: {DEFAULT})"
    )
    group.add_argument(
        "--dtype", default="bfloat16", metavar="D", help="bfloat16 (the default), float16, float32, float64"
    )
    text = "stored: the Q8_0 and Q4_1 matrices of a .gguf file as they are; the same output, less to read"
    group.add_argument("--weights", choices=["stored"], help=text)
    group.add_argument("--device", default="cpu", metavar="D", help="cpu (the default) or cuda")
    group.add_argument("--threads", type=int, metavar="N", help="default: every core this process may use")
    group.add_argument("--batch-size", type=int, default=1, metavar="N", help="1, and no other: one text at a time")


def _draft(command: argparse.ArgumentParser, default: str | None) -> None:
    group = command.add_argument_group("draft")
    text = "none, ngram, layer_skip:E (the target's first E layers), eagle:FOLDER (a trained head), or a second model"
    text += " (eagle:FOLDER@FILE:N or MODEL@FILE:N: only the first N token ids that the file lists; any but the "
    text += "first two with +ngram behind it: copies what followed the last tokens before, guesses where none did)"
    shown = f" (default: {default})" if default else "; may be repeated (default: ngram and layer_skip:4)"
    action = "store" if default else "append"
    group.add_argument("--draft", default=default, action=action, metavar="D", help=text + shown)
    text = "round the draft's matrices to 8 or 4 bits, which are less to read; the target decides as before"
    group.add_argument("--draft-weights", choices=WEIGHTS, help=text)
    group.add_argument("-k", type=int, default=4, metavar="K", help="the deepest draft, 1 to 32 (default: 4)")
    group.add_argument("--policy", default="fixed", choices=POLICIES, help="when to stop drafting (default: fixed)")
    group.add_argument("--threshold", type=float, metavar="X", help="of the policy, where it takes one")
    group.add_argument("--shape", default="chain", choices=SHAPES, help="how the draft grows (default: chain)")
    group.add_argument("--nodes", type=int, metavar="N", help="the largest tree (default: K for a chain, else 25)")
    group.add_argument("--verifier", metavar="V", help="default: greedy at temperature 0, rejection above")
    text = "fixed buffers, on a GPU captured as CUDA graphs: the baseline, and chains of fixed depth by a second model"
    group.add_argument("--static", action="store_true", help=text)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        if chosen.command == "generate":
            from specdec.commands.generate import generate as run
        elif chosen.command == "bench":
            from specdec.commands.bench import bench as run
        else:
            from specdec.commands.doctor import doctor as run
        return run(chosen)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
