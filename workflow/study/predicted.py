"""The tables `predicted` and `break_even`: what the cost model says of every cell, beside what was measured.

The one idea: nothing that is predicted uses a time of the cell it is predicted for.  Prices come from the table
`cost_model`, yields from the cell's acceptance; the error is what this leaves unexplained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from specdec.errors import UserError
from specdec.measure.cost_model import (
    Costs,
    Surface,
    best_depth,
    break_even,
    expected_over_rounds,
    leviathan_speedup,
)
from workflow.study import metrics
from workflow.study.cells import USUAL_SHAPE, Cell
from workflow.study.config import NgramDraft, StudyConfig
from workflow.study.experiments import timed_cells
from workflow.study.measure_columns import CHAIN, DRAFT_ROLE, TARGET_ROLE
from workflow.study.measured import Measured, load

Rows = list[dict]

LEVELS = "levels of equal width assumed"
NOT_TIMED = "the draft was not timed"


class CostTable:
    """The rows of `cost_model` of one target and its drafts, as surfaces over width and context."""

    def __init__(self, rows: Sequence[Mapping]):
        self._surfaces: dict[str, Surface] = {}
        for name in dict.fromkeys(row["model"] for row in rows):
            points = {(r["width"], r["context"]): r["ms"] for r in rows if r["model"] == name and r["ms"] is not None}
            if points:
                self._surfaces[name] = Surface(points)
        self.target = next((row["model"] for row in rows if row["role"] == TARGET_ROLE), None)
        if self.target not in self._surfaces:
            raise UserError("table cost_model holds no times of the target; make it again")
        self.notes = {row["model"]: row["note"] for row in rows}

    @property
    def drafts(self) -> list[str]:
        return [name for name in self._surfaces if name != self.target]

    @property
    def contexts(self) -> list[int]:
        return self._surfaces[self.target].contexts

    def unit(self, context: float) -> float:
        """Milliseconds of a baseline step."""
        return self._surfaces[self.target].at(1, context)

    def verify(self, width: float, context: float) -> float:
        """A target pass in baseline steps."""
        return self._surfaces[self.target].relative(width, context, self.unit(context))

    def step(self, draft: str, width: float, context: float) -> float | None:
        """A draft step in baseline steps; None for a draft that was not timed."""
        surface = self._surfaces.get(draft)
        return None if surface is None else surface.relative(width, context, self.unit(context))

    def costs(self, draft: str, whole: bool, context: float) -> Costs | None:
        """Of chains; a draft that proposes in one go pays once a round, however much it finds."""
        step = self.step(draft, 1, context)
        if step is None:
            return None
        draft_step, other = (0.0, step) if whole else (step, 0.0)
        return Costs(draft_step, lambda width: self.verify(width, context), other)


def read_costs(path: str | Path) -> list[CostTable]:
    """The table as it was made: one `CostTable` a target, that of the pair in force first."""
    rows = pq.read_table(path).to_pylist()
    roles = [row["role"] for row in rows]
    starts = [i for i, role in enumerate(roles) if role == TARGET_ROLE and (i == 0 or roles[i - 1] == DRAFT_ROLE)]
    groups = [rows[a:b] for a, b in zip(starts, [*starts[1:], len(rows)], strict=True)]
    return [CostTable(group) for group in groups if any(row["ms"] is not None for row in group)]


# -- break-even -----------------------------------------------------------------------------------


def break_even_rows(config: StudyConfig, tables: Sequence[CostTable]) -> Rows:
    """Which independent acceptance a draft of this cost needs, at every fixed K and context length."""
    rows = []
    for table in tables:
        for draft in table.drafts:
            for context in table.contexts:
                costs = table.costs(draft, _whole(config, draft), context)
                rows += [_break_even_row(table, draft, k, context, costs) for k in config.experiments.fixed_k.k]
    return rows


def _break_even_row(table: CostTable, draft: str, k: int, context: int, costs: Costs) -> dict:
    return {
        "target": table.target,
        "draft": draft,
        "k": k,
        "context": context,
        "cost_ratio": table.step(draft, 1, context),
        "verify_ratio": table.verify(k + 1, context),
        "price": costs.price(k),
        "break_even_acceptance": break_even(costs.price(k), k),
        "note": table.notes[draft],
    }


def _whole(config: StudyConfig, draft: str) -> bool:
    """Whether a draft proposes in one go; the random-weight draft is none of the pair's."""
    drafts = config.pair_in_force().drafts
    return draft in drafts and isinstance(drafts[draft], NgramDraft)


# -- cells ----------------------------------------------------------------------------------------


def predicted_rows(config: StudyConfig, table: CostTable, root: str | Path = ".") -> Rows:
    cells = {cell: load(Path(root) / cell.path) for cell in timed_cells(config)}
    deepest = {_group(cell): found for cell, found in sorted(cells.items(), key=_depth) if _plain(cell)}
    return [_predicted(config, table, cell, found, deepest.get(_group(cell))) for cell, found in cells.items()]


def _plain(cell: Cell) -> bool:
    return cell.policy == "fixed" and cell.shape == USUAL_SHAPE and cell.verifier == cell.usual_verifier


def _depth(item: tuple[Cell, Measured]) -> int:
    return item[0].k


def _group(cell: Cell) -> tuple:
    return cell.draft, cell.temperature, cell.seed, cell.prompt_set


def _predicted(config: StudyConfig, table: CostTable, cell: Cell, found: Measured, deepest: Measured | None) -> dict:
    counted, measured = metrics.counts(found), found.decode_speedup
    ratios = metrics.ratios(counted, cell.shape)
    row = dict.fromkeys(
        ("cost_ratio", "verify_ratio", "price", "predicted_tokens_per_round", "predicted_speedup")
        + ("alpha", "predicted_independent", "error", "break_even_acceptance", "predicted_best_k", "note")
    )
    row |= {name: getattr(cell, name) for name in CHAIN}
    row |= {name: ratios[name] for name in ("acceptance_rate", "tokens_per_round")}
    row |= {"decode_speedup": measured.value}
    row |= {"decode_speedup_low": measured.low, "decode_speedup_high": measured.high}
    drafted = metrics.rounds_of(found.headline, "drafted").astype(int).tolist()
    context = _mean_context(found)
    whole = _whole(config, cell.draft)
    costs = table.costs(cell.draft, whole, context) if drafted else None
    if costs is None:
        return row | {"note": NOT_TIMED if drafted else None}
    row |= {"cost_ratio": table.step(cell.draft, 1, context), "verify_ratio": table.verify(cell.k + 1, context)}
    if cell.shape == USUAL_SHAPE:
        conditional = _conditional(found)
        row["price"] = costs.mean_price(drafted)
        row["predicted_tokens_per_round"] = expected_over_rounds(drafted, conditional)
        row["break_even_acceptance"] = break_even(row["price"], cell.k)
        row["alpha"] = _alpha(found)
        if row["alpha"] is not None and cell.policy == "fixed" and not whole:
            row["predicted_independent"] = leviathan_speedup(row["alpha"], cell.k, row["cost_ratio"])
    else:
        row |= {"verify_ratio": table.verify(cell.nodes + 1, context), "note": LEVELS}
        row["price"] = float(np.mean([_tree_price(table, cell, nodes, context) for nodes in drafted]))
        row["predicted_tokens_per_round"] = ratios["tokens_per_round"]
    if deepest is not None:
        limits = metrics.rounds_of(deepest.headline, "drafted").astype(int).tolist()
        row["predicted_best_k"] = best_depth(_conditional(deepest), costs, limits)[0]
    row["predicted_speedup"] = row["predicted_tokens_per_round"] / row["price"]
    if measured.value:
        row["error"] = row["predicted_speedup"] / measured.value - 1
    return row


def _conditional(found: Measured) -> list[float]:
    """Acceptance by position, as far as any round reached."""
    known = []
    for place in metrics.positions_of(found):
        if place.conditional is None:
            break
        known.append(place.conditional)
    return known


def _alpha(found: Measured) -> float | None:
    """The one acceptance of independent positions that fits best: those accepted over those reached."""
    places = metrics.positions_of(found)
    return metrics.ratio(sum(place.accepted for place in places), sum(place.reached for place in places))


def _mean_context(found: Measured) -> float:
    """Tokens in the cache in the middle of a generation, over the rows that count."""
    rows = found.headline
    return float((rows["prompt_tokens"] + rows["tokens"] / 2).mean()) if len(rows) else 0.0


def _tree_price(table: CostTable, cell: Cell, nodes: int, context: float) -> float:
    """Of a round that drafts a tree: a step for the root, one for every further level, and a pass over all nodes."""
    levels = min(cell.k, nodes)
    width = -(-nodes // levels) if levels else 0
    steps = table.step(cell.draft, 1, context) * (levels > 0)
    steps += table.step(cell.draft, width, context) * max(levels - 1, 0) if levels else 0
    return steps + table.verify(nodes + 1, context)
