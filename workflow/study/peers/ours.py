"""This project's own arms: the baseline, and every draft of the pair in force at one fixed K, the same as everyone's,
and at the one that was chosen for it on the calibration prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specdec.errors import UserError
from specdec.records import GenerationRecord
from workflow.study.cells import Cell
from workflow.study.long_context import row_bytes
from workflow.study.peers.base import AR, MODES, OWN, Arm, Timed
from workflow.study.run_cell import Bench


def arms(bench: Bench, k: int) -> Iterator[Arm]:
    """`bench` is that of the baseline; drafts share its target."""
    config, precision = bench.config, bench.config.run.dtype
    model = bench.target.model
    yield Arm(
        OWN,
        AR,
        None,
        precision,
        lambda ids, tokens: _timed(bench, "ar", ids, tokens),
        token_bytes=lambda context: model.weight_bytes() + row_bytes(model) * context,
    )
    for name, spec in config.pair_in_force().drafts.items():
        chosen = config.calibrated(name)
        depths = {k: None}
        if chosen is not None and chosen.best_k is not None:
            depths.setdefault(chosen.best_k, f"K = {chosen.best_k}, as calibrated")
        for depth, note in depths.items():
            try:
                own = Bench.of(config, Cell(config.pair, name, "fixed", depth, dtype=precision), target=bench.target)
                own.drafter()
            except UserError as error:
                yield Arm(OWN, MODES[spec.kind], name, precision, None, f"missing: {error}")
                break
            run = lambda ids, tokens, own=own: _timed(own, "speculative", ids, tokens)  # noqa: E731
            yield Arm(OWN, MODES[spec.kind], name, precision, run, note)


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
