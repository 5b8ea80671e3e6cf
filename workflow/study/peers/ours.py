"""This project's own arms: the baseline, and every draft of the pair in force at one fixed K, the same as everyone's,
and at the one that was chosen for it on the calibration prompts.

Where the target came from a GGUF file in 8 or 4 bits, once more with its weights held as they are there: the engine
computes the same numbers and reads less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from specdec.errors import UserError
from specdec.models import LoadedModel, load_model
from specdec.models.loading import STORED, dtype_of
from specdec.models.native import native_for
from specdec.records import GenerationRecord
from workflow.study.cells import Cell
from workflow.study.config import StudyConfig
from workflow.study.long_context import row_bytes
from workflow.study.peers import gguf_files
from workflow.study.peers.base import AR, MODES, OWN, Arm, Timed
from workflow.study.run_cell import Bench

AS_STORED = "as the file has them, same numbers"


def arms(bench: Bench, k: int) -> Iterator[Arm]:
    """`bench` is that of the baseline; drafts share its target."""
    config = bench.config
    yield baseline(bench, config.run.dtype)
    for name in config.pair_in_force().drafts:
        yield from drafting(bench, name, config.run.dtype, dict.fromkeys([k, best_k(config, name) or k]))
    if (target := stored(config)) is not None:
        bench, precision = replace(bench, target=target), min(target.model.formats)
        yield replace(baseline(bench, precision), note=AS_STORED)
        for name in config.pair_in_force().drafts:
            yield from drafting(bench, name, precision, [best_k(config, name) or k])


def best_k(config: StudyConfig, draft: str) -> int | None:
    chosen = config.calibrated(draft)
    return None if chosen is None else chosen.best_k


def stored(config: StudyConfig) -> LoadedModel | None:
    """The target with its matrices as its file has them; None where they are in no format that the engine reads."""
    name, run = config.pair_in_force().target, config.run
    if not config.model(name).fetched or native_for(dtype_of(run.dtype), torch.device(run.device)) is None:
        return None
    try:
        return load_model(gguf_files.shipped(config, name), weights=STORED)
    except UserError:
        return None


def baseline(bench: Bench, precision: str) -> Arm:
    model = bench.target.model
    return Arm(
        OWN,
        AR,
        None,
        precision,
        lambda ids, tokens: _timed(bench, "ar", ids, tokens),
        token_bytes=lambda context: model.weight_bytes() + row_bytes(model) * context,
    )


def drafting(bench: Bench, name: str, precision: str, depths: Iterable[int]) -> Iterator[Arm]:
    """A draft's arms, or the one row that says what is missing."""
    config = bench.config
    spec = config.pair_in_force().drafts[name]
    for k in depths:
        try:
            own = Bench.of(config, Cell(config.pair, name, "fixed", k, dtype=config.run.dtype), target=bench.target)
            own.drafter()
        except UserError as error:
            yield Arm(OWN, MODES[spec.kind], name, precision, None, f"missing: {error}")
            return
        remarks = [f"K = {k}, as calibrated"] if k == best_k(config, name) else []
        remarks += [f"draft in {spec.weights}"] if getattr(spec, "weights", None) else []
        run = lambda ids, tokens, own=own: _timed(own, "speculative", ids, tokens)  # noqa: E731
        yield Arm(OWN, MODES[spec.kind], name, precision, run, "; ".join(remarks) or None)


def _timed(bench: Bench, arm: str, ids: Sequence[int], tokens: int) -> Timed:
    drafter = None if arm == "ar" else bench.drafter()
    record = bench.endless(drafter, ids, tokens).run()
    first, rest = record.rounds[0], record.rounds[1:]
    return Timed(
        record.output_ids,
        len(record.output_ids) - len(first.tokens),
        record.decode_s - first.seconds,
        _bytes(bench, record, rest),
    )


def _bytes(bench: Bench, record: GenerationRecord, rounds: Sequence) -> float:
    """What these rounds read: the target's weights and cache once each, the draft's weights once a drafted token."""
    model = bench.target.model
    context = record.prompt_tokens + len(record.output_ids) / 2
    target = len(rounds) * (model.weight_bytes() + row_bytes(model) * context)
    return target + bench.draft_bytes * sum(record.drafted for record in rounds)
