"""The table `cost_model`: what a pass of the target and a step of every draft costs on this machine.

The one idea: everything of a pair is timed in one process by turns, at every width and context length, so that the
ratios between rows are of the same minutes.  A draft whose files are missing is a row that says so.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from specdec.drafters import LanguageModel
from specdec.drafters.base import Drafter
from specdec.errors import UserError
from specdec.growth import build_grower
from specdec.measure.alternate import alternate, median
from specdec.measure.clock import clock_for
from specdec.measure.forward_times import (
    Call,
    StartedDraft,
    draft_call,
    filled_cache,
    fitting,
    target_call,
    whole_call,
)
from specdec.models import LoadedModel
from specdec.models.transformer import Transformer
from workflow.study.cells import Cell
from workflow.study.config import StudyConfig
from workflow.study.measure_columns import DRAFT_ROLE, MISSING, TARGET_ROLE, TIMING_ONLY
from workflow.study.run_cell import Bench
from workflow.study.timing_only import DRAFT, TARGET, random_model, shortage

SPARE = 64
"""Rows behind the context: the widest pass, and what drafts commit while they are timed."""


@dataclass(frozen=True)
class Timed:
    """A model to time: its name in the table, its role, and what runs; `draft` None for a target."""

    name: str
    role: str
    draft: Drafter | None = None
    note: str | None = None


def cost_rows(config: StudyConfig) -> list[dict]:
    """Rows of the pair in force, and of the random-weight pair where the configuration asks for it."""
    settings = config.experiments.cost_model
    bench = Bench.of(config, Cell(config.pair, "none", "ar", 0, dtype=config.run.dtype))
    rows = _rows(bench.target.model, _of_pair(config, bench.target), config)
    if settings.timing_only:
        del bench
        rows += _timing_only(config)
    return rows


def _of_pair(config: StudyConfig, target: LoadedModel) -> list[Timed]:
    pair = config.pair_in_force()
    found = [Timed(pair.target, TARGET_ROLE)]
    for name in config.plain_drafts():
        try:
            bench = Bench.of(config, Cell(config.pair, name, "fixed", 1, dtype=config.run.dtype), target=target)
            found.append(Timed(name, DRAFT_ROLE, bench.drafter()))
        except UserError as error:
            found.append(Timed(name, DRAFT_ROLE, note=f"{MISSING}: {error}"))
    return found


def _rows(target: Transformer, models: list[Timed], config: StudyConfig) -> list[dict]:
    """Time everything in turn and lay it out, the target first."""
    settings, clock = config.experiments.cost_model, clock_for(target.device)
    rounds = len(settings.widths) * (settings.repeats + 1)
    spare = max(SPARE, max(settings.widths) + rounds)
    contexts = fitting(target, settings.contexts, spare)
    if not contexts:
        raise UserError(
            f"experiments.cost_model.contexts is {settings.contexts}: the target's positions end at "
            f"{target.config.max_positions}, of which {spare} are needed behind the context"
        )
    calls: dict[tuple[str, int, int], Call] = {}
    for context in contexts:
        cache = filled_cache(target, context, max(settings.widths))
        for timed in models:
            calls |= {
                (timed.name, width, context): call
                for width, call in _calls(timed, target, cache, context, spare, config, clock).items()
            }
    print(f"timing {len(calls)} calls, {settings.repeats} times each, in turn", file=sys.stderr, flush=True)
    found = {name: median(samples) for name, samples in alternate(calls, settings.repeats).items()}
    rows = []
    for timed in models:
        if timed.note and timed.note.startswith(MISSING):
            rows.append(_row(timed, None, None, None, None))
            continue
        for width in settings.widths:
            for context in contexts:
                unit = found[models[0].name, 1, context].value
                rows.append(_row(timed, width, context, found[timed.name, width, context], unit))
    return rows


def _calls(timed: Timed, target, cache, context: int, spare: int, config: StudyConfig, clock) -> dict[int, Call]:
    """By width, the calls of one model at one context length; none of a draft that is missing."""
    widths = config.experiments.cost_model.widths
    if timed.role == TARGET_ROLE:
        return {width: target_call(target, cache, context, width, clock) for width in widths}
    if timed.draft is None:
        return {}
    model = getattr(timed.draft, "model", None)
    if model is None:
        return {width: whole_call(timed.draft, target, context, width, clock) for width in widths}
    started = StartedDraft(model, target, context, spare, max(widths))
    return {width: draft_call(started, width, clock) for width in widths}


def _row(timed: Timed, width, context, found, unit) -> dict:
    return {
        "model": timed.name,
        "role": timed.role,
        "width": width,
        "context": context,
        "ms": None if found is None else 1000 * found.value,
        "ms_low": None if found is None or found.low is None else 1000 * found.low,
        "ms_high": None if found is None or found.high is None else 1000 * found.high,
        "cost_ratio": None if found is None else found.value / unit,
        "note": timed.note,
    }


def _timing_only(config: StudyConfig) -> list[dict]:
    """Qwen3-1.7B as the target and Qwen3-0.6B as its draft, with weights that mean nothing."""
    if lacking := shortage((TARGET, DRAFT), config.run.dtype):
        names = ((TARGET, TARGET_ROLE), (DRAFT, DRAFT_ROLE))
        return [_row(Timed(name, role, note=f"{MISSING}: {lacking}"), None, None, None, None) for name, role in names]
    target, draft = (random_model(name, config.run.dtype, config.run.device) for name in (TARGET, DRAFT))
    models = [
        Timed(TARGET, TARGET_ROLE, note=TIMING_ONLY),
        Timed(DRAFT, DRAFT_ROLE, build_grower("chain", LanguageModel(draft), k=1, policy="fixed"), note=TIMING_ONLY),
    ]
    return _rows(target, models, config)
