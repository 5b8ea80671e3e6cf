"""The table `peers`: what a user would pick instead, on the same prompts, by turns in one run.

One tool a file, and a process of its own (`worker.py`).  A tool that is not installed, or that fails, is a row that
says so; outputs are compared with this project's own baseline, token by token.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from specdec.measure.bandwidth import bandwidth_of
from workflow.study import statistics
from workflow.study.cells import Cell
from workflow.study.config import StudyConfig
from workflow.study.long_context import row_bytes
from workflow.study.peers import ours, worker
from workflow.study.peers.base import Arm, Setting, Timed, ToolFailed, failure
from workflow.study.prompts import evaluation_slice
from workflow.study.run_cell import Bench, encode

SPARE = 64
"""Rows of context beyond prompt and answer: drafts, and what a tool rounds up to."""


def peer_rows(config: StudyConfig) -> list[dict]:
    """Every arm over the same prompts."""
    settings = config.experiments.peers
    bench = Bench.of(config, Cell(config.pair, "none", "ar", 0, dtype=config.run.dtype))
    prompts = {p.prompt_id: encode(bench, p, []) for p in one_a_category(config)[: settings.prompts]}
    context = max(map(len, prompts.values())) + settings.max_new_tokens + SPARE
    model = bench.target.model
    setting = Setting(config, settings.k, context, model.weight_bytes(), row_bytes(model))

    def bandwidth() -> float:
        return bandwidth_of(model.device, config.threads()).bytes_per_s

    with ExitStack() as tools:
        found = [*ours.arms(bench, settings.k)]
        for name in worker.TOOLS:
            found += tools.enter_context(worker.Worker(name, setting)).arms
        results = run(found, prompts, settings.max_new_tokens, bandwidth)
    lengths = {name: len(ids) for name, ids in prompts.items()}
    return rows_of(results, list(prompts), lengths)


def one_a_category(config: StudyConfig) -> list:
    """The slice's prompts, first ones of every category first."""
    seen: dict[str, int] = {}
    ranked = []
    for prompt in evaluation_slice(config):
        seen[prompt.category] = seen.get(prompt.category, 0) + 1
        ranked.append((seen[prompt.category], prompt))
    return [prompt for _, prompt in sorted(ranked, key=lambda item: item[0])]


def run(
    arms: Sequence[Arm], prompts: dict[str, list[int]], tokens: int, bandwidth: Callable[[], float] | None = None
) -> list[tuple[Arm, dict[str, Timed]]]:
    """Each prompt through every arm, the arm that begins turning from prompt to prompt; the first prompt once before,
    to warm up.  An arm that fails is left out from there on, with its mistake as the note.

    `bandwidth`, bytes a second, is asked after each run of an arm whose reading is known: what a machine that others
    share allows moves from second to second.
    """
    results: dict[int, dict[str, Timed]] = {index: {} for index, arm in enumerate(arms) if arm.run is not None}
    notes: dict[int, str] = {}
    warmup = next(iter(prompts))
    for turn, name in enumerate([warmup, *prompts]):
        order = [*results][turn % len(results) :] + [*results][: turn % len(results)]
        for index in order:
            try:
                made = arms[index].run(prompts[name], tokens)
            except Exception as error:  # a tool of others may fail in any way; the row says how
                if not isinstance(error, ToolFailed):
                    traceback.print_exc()
                notes[index] = failure(error)
                del results[index]
                continue
            if turn > 0:
                known = made.bytes_read is not None or arms[index].token_bytes is not None
                if bandwidth is not None and known:
                    made = replace(made, readable=made.seconds * bandwidth())
                results[index][name] = made
        print(f"peers: prompt {turn} of {len(prompts)}", file=sys.stderr, flush=True)
    return [
        (arm if index not in notes else replace(arm, run=None, note=notes[index]), results.get(index, {}))
        for index, arm in enumerate(arms)
    ]


# -- rows -----------------------------------------------------------------------------------------


def rows_of(
    results: Sequence[tuple[Arm, dict[str, Timed]]], prompts: Sequence[str], lengths: dict[str, int]
) -> list[dict]:
    """One row an arm, the project's own baseline first."""
    own = next(made for arm, made in results if arm.is_baseline)
    return [row_of(arm, made, own, prompts, lengths) for arm, made in results]


def row_of(arm: Arm, made: dict[str, Timed], own: dict[str, Timed], prompts, lengths) -> dict:
    row = {
        "arm": arm.arm,
        "mode": arm.mode,
        "draft": arm.draft,
        "precision": arm.precision,
        **dict.fromkeys(
            ("prompts", "tokens", "tokens_per_s", "tokens_per_s_low", "tokens_per_s_high", "ratio_to_specdec_ar")
            + ("bandwidth_utilisation", "same_output")
        ),
        "note": arm.note,
    }
    if arm.run is None or not made:
        return row
    timed, baseline = _arm(made, prompts), _arm(own, prompts)
    speed = statistics.rate(timed)
    row |= {
        "prompts": len(made),
        "tokens": int(timed.tokens.sum()),
        "tokens_per_s": speed.value,
        "tokens_per_s_low": speed.low,
        "tokens_per_s_high": speed.high,
        "ratio_to_specdec_ar": statistics.speedup(baseline, timed).value,
        "same_output": sum(made[name].ids == own[name].ids for name in prompts),
    }
    size = bytes_read(arm, made, lengths)
    if size is not None and all(timed.readable is not None for timed in made.values()):
        row["bandwidth_utilisation"] = size / sum(timed.readable for timed in made.values())
    return row


def _arm(made: dict[str, Timed], prompts: Sequence[str]) -> statistics.Arm:
    seconds = np.array([made[name].seconds for name in prompts])
    return statistics.Arm(tuple(prompts), seconds, np.array([made[name].tokens for name in prompts], dtype=float))


def bytes_read(arm: Arm, made: dict[str, Timed], lengths: dict[str, int]) -> float | None:
    """What the timed tokens made the tool read: known of our own arms, computed for plain decoding, else None."""
    if all(timed.bytes_read is not None for timed in made.values()):
        return sum(timed.bytes_read for timed in made.values())
    if arm.token_bytes is None:
        return None
    return sum(timed.tokens * arm.token_bytes(lengths[name] + len(timed.ids) / 2) for name, timed in made.items())
