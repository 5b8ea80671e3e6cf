"""Many short continuations of one prompt under one cell, as counts: the samples of a distribution test."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from specdec.errors import UserError
from workflow.study.cells import Cell
from workflow.study.config import StudyConfig
from workflow.study.prompts import evaluation_slice
from workflow.study.run_cell import Bench, encode


def continuations(config: StudyConfig, cell: Cell) -> dict:
    """How often each continuation was written.  Every one has a random stream of its own, keyed by the cell's name too,
    so that no two samples share a draw.

    The prompt is the shortest of the slice: a continuation starts with its prefill.
    """
    settings = config.experiments.verification.distribution
    if settings is None:
        raise UserError("experiments.verification.distribution is null: it says how many continuations there are")
    bench = replace(Bench.of(config, cell), max_new_tokens=settings.tokens)
    encoded = [(encode(bench, prompt, []), prompt.prompt_id) for prompt in evaluation_slice(config)]
    ids, prompt_id = min(encoded, key=lambda one: (len(one[0]), one[1]))
    arm = "ar" if cell.policy == "ar" else "speculative"
    counts: Counter[tuple[int, ...]] = Counter()
    for number in range(settings.continuations):
        counts[tuple(bench.generation(arm, ids, f"{cell.name}/{number}").run().output_ids)] += 1
    ordered = sorted(counts.items())
    return {"prompt_id": prompt_id, "counts": [[list(tokens), count] for tokens, count in ordered]}
