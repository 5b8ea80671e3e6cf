"""`generate`: stream a text; in a terminal colour says who chose each token.

Text goes to standard output, everything else to standard error, so that the answer can be piped.
"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console
from rich.text import Text

from specdec.commands.setting import check_batch, drafter_factory, load_target, rounds_of, static_decoder
from specdec.commands.tree_text import tree_text
from specdec.decode import Request, speculative
from specdec.drafters.base import Nothing
from specdec.errors import UserError
from specdec.models.tokenizer import StopStrings, Tokenizer
from specdec.records import GenerationRecord
from specdec.sampling import Sampling

ACCEPTED, CHOSEN = "green", "bold"


class Printer:
    """Prints tokens as they come.  A token that ends inside a character waits for the next one."""

    def __init__(self, tokenizer: Tokenizer, console: Console, stop: StopStrings | None):
        self._tokenizer, self._console, self._stop = tokenizer, console, stop
        self._ids: list[int] = []
        self._shown = 0

    def add(self, token: int, style: str) -> None:
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        if text.endswith("\ufffd"):
            return
        # Text that could be the beginning of a stop string is held back until it is not.
        end = len(text) if self._stop is None else self._stop.safe_length(text)
        if end > self._shown:
            self._console.print(Text(text[self._shown : end], style=style), end="", soft_wrap=True)
            self._shown = end

    def close(self) -> None:
        """What was held back, up to a stop string."""
        text = self._tokenizer.decode(self._ids)
        text = text if self._stop is None else self._stop.trim(text)
        self._console.print(Text(text[self._shown :]), soft_wrap=True)


def generate(flags: argparse.Namespace) -> int:
    prompt = sys.stdin.read() if flags.prompt == "-" else flags.prompt
    if not prompt.strip():
        raise UserError("the prompt is empty")
    sampling = Sampling(flags.temperature, flags.top_k, flags.top_p)
    check_batch(flags)
    target = load_target(flags, flags.weights)
    drafter = drafter_factory(flags, target, flags.draft)()
    tokenizer = target.tokenizer
    messages = [{"role": "user", "content": prompt}]
    stop = StopStrings(tokenizer, flags.stop) if flags.stop else None
    request = Request(
        prompt=tokenizer.encode(prompt) if flags.raw else tokenizer.chat(messages, enable_thinking=flags.think),
        max_new_tokens=flags.max_new_tokens,
        sampling=sampling,
        seed=flags.seed,
        eos_ids=frozenset(tokenizer.eos_ids),
        stop=stop,
    )
    drafting = not isinstance(drafter, Nothing)
    if flags.static:
        capacity = min(len(request.prompt) + flags.max_new_tokens, target.model.config.max_positions)
        generation = static_decoder(flags, target, flags.draft, drafter, capacity, sampling).generation(request)
    else:
        generation = speculative(target.model, drafter, request, **rounds_of(flags, drafting))
    console = Console(highlight=False)
    printer = Printer(tokenizer, console, stop)
    for record in generation:
        for i, token in enumerate(record.tokens):
            printer.add(token, ACCEPTED if i < record.accepted else CHOSEN)
        if flags.show_tree and drafting:
            picture = tree_text(
                generation.draft,
                generation.verdict.path,
                generation.verdict.next_token,
                lambda token: tokenizer.decode([token]) or tokenizer.token(token),
            )
            print(f"\n{picture}", file=sys.stderr, flush=True)
    printer.close()
    _summary(generation.record, drafting)
    return 0


def _summary(record: GenerationRecord, drafting: bool) -> None:
    tokens, rounds = len(record.output_ids), len(record.rounds)
    parts = [
        f"{tokens} tokens, {tokens / record.total_s:.1f} tokens/s ({tokens / record.decode_s:.1f} without prefill)"
    ]
    if drafting:
        drafted, accepted = (sum(getattr(r, name) for r in record.rounds) for name in ("drafted", "accepted"))
        rate = f"{accepted / drafted:.2f} ({accepted} of {drafted} drafted)" if drafted else "- (nothing drafted)"
        parts += [f"{tokens / rounds:.2f} tokens per round", f"acceptance rate {rate}"]
    parts.append(f"ended by {record.stop_reason.replace('_', ' ')}")
    err = Console(stderr=True, highlight=False)
    if err.is_terminal and drafting:
        err.print(
            Text.assemble(("green", ACCEPTED), ": drafted and accepted; ", ("bold", CHOSEN), ": chosen by the target")
        )
    err.print("; ".join(parts), style="dim")
