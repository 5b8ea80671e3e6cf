"""Measure what methods need beforehand, on the calibration prompts: costs by width, acceptance by rank and depth.

The one idea: the baseline's greedy text is written first; a *probe* then drafts that very text through the ordinary
loop.  Every guess is accepted, so each round shows how the draft ranks the target's token one, two, ... steps ahead of
committed text, with the features and caches it has when it decodes for real, and each of its steps is timed on the way.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import date

import torch
from torch import Tensor

from specdec.drafters import Context, DraftModel, build_drafter
from specdec.errors import UserError
from specdec.growth.grower import Grower, top_columns
from specdec.measure import fingerprint
from specdec.measure.clock import clock_for
from specdec.models.transformer import Transformer
from specdec.tree import ROOT, Draft
from workflow.study.calibration import Calibration
from workflow.study.cells import Cell
from workflow.study.config import NgramDraft, StudyConfig
from workflow.study.prompts import calibration_slice, digest
from workflow.study.run_cell import Bench, encode

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32)
"""Rows of a timed pass."""
DEPTH, RANKS, BINS = 8, 8, 20
TOKENS, REPEATS = 32, 9


class Probe(Grower):
    """Proposes the text it is given, and notes what the draft thought of it; one step of another width a round."""

    def __init__(self, model: DraftModel, text: Sequence[int], found: Found):
        super().__init__(model)
        self.text, self.found, self.done = list(text), found, 0

    def rows(self, depth: int, nodes: int) -> int:
        return nodes + max(WIDTHS)

    def grow(self, depth: int, nodes: int) -> Draft:
        clock, found = self._clock, self.found
        ahead = self.text[self.done : self.done + depth]
        if not ahead:
            return Draft(stopped="end_of_text")
        logits, seconds = timed(clock, self.model.root)
        found.root_s.append(seconds)
        for level, token in enumerate(ahead):
            found.note(level, self._ranked(logits[0]), token)
            parent = level - 1 if level else ROOT
            logits, seconds = timed(clock, lambda t=token, p=parent: self.model.step([t], [p]))
            found.step_s[1].append(seconds)
        width = WIDTHS[len(found.root_s) % len(WIDTHS)]
        _, seconds = timed(clock, lambda: self.model.step([ahead[0]] * width, [ROOT] * width))
        found.step_s[width].append(seconds)
        return Draft.chain(ahead, stopped="depth")

    def open(self, prompt: Sequence[int], context: Context) -> None:
        super().open(prompt, context)
        self._clock = clock_for(context.target.device)

    def learn(self, tokens: Sequence[int]) -> None:
        self.done += len(tokens)

    def _ranked(self, logits: Tensor) -> list[tuple[int, float]]:
        """The likeliest target ids with their probabilities, likeliest first."""
        z = logits if logits.dtype == torch.float64 else logits.float()
        columns = top_columns(z[None], RANKS)[0]
        chances = (z[columns] - z.logsumexp(0)).exp().tolist()
        ids = columns if self.model.vocabulary is None else self.model.vocabulary[columns]
        return list(zip(ids.tolist(), chances, strict=True))


class Found:
    """What the probes of all prompts saw."""

    def __init__(self):
        self.tested = [0] * DEPTH
        self.hits = [[0] * RANKS for _ in range(DEPTH)]
        self.bins = [[index / BINS, 0, 0] for index in range(BINS)]
        self.root_s: list[float] = []
        self.step_s: dict[int, list[float]] = defaultdict(list)

    def note(self, level: int, ranked: list[tuple[int, float]], token: int) -> None:
        self.tested[level] += 1
        for rank, (guess, chance) in enumerate(ranked):
            right = guess == token
            self.hits[level][rank] += right
            place = self.bins[min(BINS - 1, int(chance * BINS))]
            place[1] += 1
            place[2] += right


def calibrate(config: StudyConfig, draft: str, subject: dict, tokens: int = TOKENS) -> Calibration:
    """The calibration of one draft of the pair in force."""
    if isinstance(config.draft(draft), NgramDraft):
        raise UserError(f"draft {draft}: proposes in one go, so there is nothing that a calibration could steer")
    prompts = calibration_slice(config)
    if not prompts:
        raise UserError("prompts.calibration_per_category is 0: there is nothing to calibrate on")
    bench = Bench.of(config, Cell(config.pair, draft, "fixed", DEPTH, dtype=config.run.dtype))
    bench = replace(bench, max_new_tokens=tokens)
    found = Found()
    for index, prompt in enumerate(prompts):
        ids = encode(bench, prompt, [])
        written = bench.generation("ar", ids, f"calibration-{index}").run().output_ids
        if len(written) > DEPTH + 1:
            probe = probe_of(bench, written, found)
            bench.generation_with(probe, DEPTH, ids, f"calibration-{index}").run()
        print(f"{draft}: calibration prompt {index + 1} of {len(prompts)}", flush=True)
    target = target_times(bench.target.model, encode(bench, prompts[0], []))
    if not found.root_s:
        raise UserError(f"draft {draft}: no answer to a calibration prompt has more than {DEPTH + 1} tokens")
    hardware = fingerprint.hardware(config.run.device)
    return Calibration(
        subject=subject,
        provenance={
            "prompts": len(prompts),
            "prompts_digest": digest(prompts),
            "tokens": tokens,
            "processor": hardware.get("processor"),
            "hardware_id": fingerprint.identity(hardware),
            "threads": config.threads(),
            "date": f"{date.today():%Y-%m-%d}",
        },
        target_ms={rows: milliseconds(seconds) for rows, seconds in target.items()},
        draft_ms={rows: milliseconds(seconds) for rows, seconds in sorted(found.step_s.items())},
        root_ms=milliseconds(found.root_s),
        tested=found.tested,
        hits=found.hits,
        bins=found.bins,
    )


def probe_of(bench: Bench, text: Sequence[int], found: Found) -> Probe:
    spec = bench.config.draft(bench.cell.draft).model_dump()
    grower = build_drafter(spec, bench.target.model, policy="fixed", k=DEPTH, draft=bench.draft)
    return Probe(grower.model, text, found)


def target_times(model: Transformer, prompt: Sequence[int], seed: int = 0) -> dict[int, list[float]]:
    """Seconds of passes of every width behind a prompt, widths in turns so that a drifting machine hits all alike."""
    cache = model.new_cache(len(prompt) + max(WIDTHS))
    model.forward(prompt, cache, logits=False)
    clock, found = clock_for(model.device), defaultdict(list)
    order, base = list(WIDTHS), cache.length
    for repeat in range(REPEATS + 1):
        random.Random(seed + repeat).shuffle(order)
        for rows in order:
            tokens = [prompt[index % len(prompt)] for index in range(rows)]
            _, seconds = timed(clock, lambda t=tokens: model.forward(t, cache))
            cache.truncate(base)
            if repeat:  # the first pass of each width is the warm-up
                found[rows].append(seconds)
    return found


def timed(clock, call) -> tuple:
    """What `call` returns, and its seconds, the device's work included."""
    clock.synchronize()
    start = time.perf_counter()
    result = call()
    clock.synchronize()
    return result, time.perf_counter() - start


def milliseconds(seconds: list[float]) -> float:
    return round(1000 * statistics.median(seconds), 4)
