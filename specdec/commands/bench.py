"""`bench`: the baseline, some drafts and Transformers' own `generate`, prompt by prompt in one process.

Every arm decodes the same prompts greedily to the same number of tokens, in turns, so that a drifting machine hits all
alike.  Ratios are of decode times without prefill, prompt by prompt; the median and the range over prompts are printed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from specdec.commands.setting import check_batch, drafter_factory, load_target, rounds_of, static_decoder
from specdec.decode import Generation, Request, speculative
from specdec.errors import UserError
from specdec.models import LoadedModel
from specdec.models.catalogue import locate
from specdec.models.loading import dtype_of, resolve

PROMPTS = (
    "Why is the sky blue?",
    "Write a Python function that returns the n-th prime number, and explain how it works.",
    "A train covers 180 km in two hours and a quarter. What is its average speed? Show each step.",
    "Translate into French: The library closes at six, but the garden stays open until sunset.",
    "Give me three ideas for a rainy afternoon with two children.",
    "Summarise in one sentence: Bees visit flowers for nectar. On the way they carry pollen from plant to plant, and "
    "without them many crops would bear little fruit.",
    "What is the difference between a list and a tuple in Python?",
    "Write a short, friendly e-mail that moves a meeting from Tuesday to Thursday.",
)

BASELINE, TRANSFORMERS = "autoregressive", "transformers"
WIDTH = 130
"""Of the table where no terminal says how wide it is."""


def bench(flags: argparse.Namespace) -> int:
    if not 1 <= flags.prompts <= len(PROMPTS):
        raise UserError(f"--prompts {flags.prompts}: must be between 1 and {len(PROMPTS)}")
    if flags.max_new_tokens < 2:
        raise UserError(f"--max-new-tokens {flags.max_new_tokens}: must be 2 or more")
    check_batch(flags)
    target = load_target(flags, flags.weights)
    prompts = [target.tokenizer.chat([{"role": "user", "content": text}]) for text in PROMPTS[: flags.prompts]]
    names = flags.draft or ([] if flags.static else ["ngram", "layer_skip:4"])
    longest = min(max(map(len, prompts)) + flags.max_new_tokens, target.model.config.max_positions)
    arms: dict[str, Callable] = {}
    for name in ["none", *names]:
        make = drafter_factory(flags, target, name)
        shown = BASELINE if name == "none" else f"{name} K={flags.k}"
        if flags.static:
            decoder = static_decoder(flags, target, name, make(), longest)
            arms[shown] = lambda ids, decoder=decoder: _ours(decoder.generation(Request(ids, flags.max_new_tokens)))
        else:
            rounds = rounds_of(flags, name != "none")
            arms[shown] = lambda ids, make=make, rounds=rounds: _ours(
                speculative(target.model, make(), Request(ids, flags.max_new_tokens), **rounds)
            )
    if not flags.no_transformers:
        reference = _transformers(flags)
        arms[TRANSFORMERS] = lambda ids: _generate(reference, ids, flags)
    results: dict[str, list[dict]] = {name: [] for name in arms}
    with Progress(transient=True) as progress:
        task = progress.add_task("decoding", total=(len(prompts) + 1) * len(arms))
        for i, ids in enumerate([prompts[0], *prompts]):
            for name, arm in arms.items():
                result = arm(ids)
                progress.advance(task)
                if i > 0:  # the first pass over all arms is the warm-up
                    results[name].append(result)
    _print(results, flags, target)
    return 0


def _ours(generation: Generation) -> dict:
    record = generation.run()
    rounds = record.rounds
    drafted = sum(r.drafted for r in rounds)
    return {
        # the first token comes out of the prompt, as in Transformers' loop
        "seconds": record.decode_s - rounds[0].seconds,
        "tokens": len(record.output_ids) - len(rounds[0].tokens),
        "ids": record.output_ids,
        "per_round": len(record.output_ids) / len(rounds),
        "acceptance": sum(r.accepted for r in rounds) / drafted if drafted else None,
        "draft": sum(r.draft_s for r in rounds),
        "target": sum(r.target_s for r in rounds),
        "other": sum(r.other_s for r in rounds),
    }


def _transformers(flags: argparse.Namespace):
    from transformers import AutoModelForCausalLM

    path = resolve(locate(flags.model))
    extra = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    model = AutoModelForCausalLM.from_pretrained(path.parent if extra else path, dtype=dtype_of(flags.dtype), **extra)
    return model.to(flags.device).eval()


class _FirstToken:
    """A streamer that notes when the first token arrived: what comes before it is prefill."""

    def __init__(self):
        self.calls, self.at = 0, 0.0

    def put(self, value) -> None:
        self.calls += 1
        if self.calls == 2:  # the first call brings the prompt
            self.at = time.perf_counter()

    def end(self) -> None:
        pass


def _generate(model, ids: list[int], flags: argparse.Namespace) -> dict:
    prompt = torch.tensor([ids], device=model.device)
    streamer = _FirstToken()
    count = flags.max_new_tokens
    with torch.inference_mode():
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            min_new_tokens=count,
            max_new_tokens=count,
            streamer=streamer,
        )
    new = output[0, len(ids) :].tolist()
    return {"seconds": time.perf_counter() - streamer.at, "tokens": len(new) - 1, "ids": new}


def _print(results: dict[str, list[dict]], flags: argparse.Namespace, target: LoadedModel) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    way = "static, " if flags.static else ""
    console.print(f"{target.origin}, {way}{flags.dtype}, {torch.get_num_threads()} threads, greedy, batch 1; medians")
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for header in ("arm", "tokens/s", "ratio", "range", "tokens/round", "accepted", "time %"):
        table.add_column(header, justify="left" if header == "arm" else "right", no_wrap=True)
    baseline = results[BASELINE]
    for name, rows in results.items():
        ratios = [_speed(row) / _speed(base) for row, base in zip(rows, baseline, strict=True)]
        table.add_row(
            name,
            f"{statistics.median(map(_speed, rows)):.1f}",
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f}-{max(ratios):.2f}",
            *(_details(rows) if "per_round" in rows[0] else ("", "", "")),
        )
    console.print(table)
    console.print("ratio: to the baseline, by prompt; accepted: of the drafted tokens; time %: draft/target/rest")
    if TRANSFORMERS in results:
        ratios = sorted(_speed(b) / _speed(t) for b, t in zip(baseline, results[TRANSFORMERS], strict=True))
        console.print(
            f"baseline against Transformers' generate: {statistics.median(ratios):.2f}x "
            f"(from {ratios[0]:.2f} to {ratios[-1]:.2f} over {len(ratios)} prompts)"
        )
    for name, rows in results.items():
        same = sum(row["ids"] == base["ids"] for row, base in zip(rows, baseline, strict=True))
        if name != BASELINE and same < len(rows):
            console.print(f"{name}: {same} of {len(rows)} outputs are the baseline's, token for token")


def _speed(row: dict) -> float:
    return row["tokens"] / row["seconds"]


def _details(rows: list[dict]) -> tuple[str, str, str]:
    rates = [row["acceptance"] for row in rows if row["acceptance"] is not None]
    phases = [sum(row[name] for row in rows) for name in ("draft", "target", "other")]
    shares = "/".join(f"{100 * phase / sum(phases):.0f}" for phase in phases)
    rate = f"{statistics.mean(rates):.2f}" if rates else ""
    return f"{statistics.mean(row['per_round'] for row in rows):.2f}", rate, shares
