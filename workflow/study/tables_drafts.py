"""The table of drafts: every draft of the pair at equal settings, on each set of prompts, whole and by category.

What a draft was trained on stands beside what it guesses, so that better guesses and what they took are read together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from workflow.study import metrics
from workflow.study.cells import Cell
from workflow.study.config import StudyConfig
from workflow.study.measured import Measured
from workflow.study.tables_training import record_of, spent, stages

ALL = "all"
DEEPEST = 8
"""Positions whose acceptance has a column."""


def rows(
    config: StudyConfig, cells: Mapping[Cell, Measured], root: Path, decode_row: Callable[[Measured, Mapping], dict]
) -> list[dict]:
    """The rows of all prompts of a cell first, then one for each of its categories."""
    trained = {draft: _training(config, draft, root) for draft in config.compared(root)}
    table = []
    for cell, found in cells.items():
        categories = list(dict.fromkeys(found.speculative["category"]))
        parts = {ALL: found}
        if len(categories) > 1:
            parts |= {name: of_category(found, name) for name in categories}
        for category, part in parts.items():
            table.append(
                decode_row(part, cells)
                | {"prompt_set": cell.prompt_set, "category": category, "cost_ratio": metrics.cost_ratio(part)}
                | _positions(part)
                | trained.get(cell.draft, _UNTRAINED)
                | {"draft_weights_bytes": metrics.draft_bytes(found)}
                | {"rows": len(part.speculative), "rows_looped": int(part.looped.sum())}
            )
    return table


def of_category(found: Measured, category: str) -> Measured:
    """The same cell on the prompts of one category."""
    own = (found.speculative["category"] == category).to_numpy()
    return replace(
        found,
        baseline=found.baseline[own],
        speculative=found.speculative[own],
        kept=found.kept[own],
        looped=found.looped[own],
        unequal=found.unequal[own],
    )


def _positions(part: Measured) -> dict:
    known = {place.position: place.conditional for place in metrics.positions_of(part)}
    return {f"acceptance_at_{place}": known.get(place) for place in range(1, DEEPEST + 1)}


_UNTRAINED = {"train_tokens": None, "train_token_passes": None, "train_hours": None}


def _training(config: StudyConfig, draft: str, root: Path) -> dict:
    record = record_of(config, draft, root)
    if record is None:
        return _UNTRAINED
    passes, hours = spent(stages(record))
    return {"train_tokens": record["text"]["answer_tokens"], "train_token_passes": passes, "train_hours": hours}
