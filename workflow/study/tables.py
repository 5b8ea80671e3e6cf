"""Tables from cells.  One function a table; which cells it is made of stands in `experiments`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa

from specdec.errors import unknown
from workflow.study import metrics, statistics, tables_drafts, tables_training, tables_trees, two_samples
from workflow.study.cells import Cell
from workflow.study.columns import to_arrow
from workflow.study.config import StudyConfig
from workflow.study.experiments import RECORDS, cells_for_table
from workflow.study.experiments_trees import distributed
from workflow.study.measured import Measured, comparable, load
from workflow.study.tables_rows import Cells, Rows, decode_row, form, identity


def build(config: StudyConfig, table: str, root: str | Path = ".") -> pa.Table:
    """One table, from the files of its cells below `root`."""
    if table == "distribution":
        return to_arrow(table, two_samples.rows(config, distributed(config), Path(root)))
    if table not in BUILDERS:
        raise unknown("table", table, BUILDERS)
    cells = {cell: load(Path(root) / cell.path) for cell in cells_for_table(config, table)}
    records = (Path(root),) if table in RECORDED else ()
    return to_arrow(table, BUILDERS[table](config, cells, *records))


# -- rows -----------------------------------------------------------------------------------------


def fixed_k(config: StudyConfig, cells: Cells) -> Rows:
    """The baseline against itself and every draft at every fixed K."""
    return [decode_row(found, cells) for found in cells.values()]


def dynamic_k(config: StudyConfig, cells: Cells) -> Rows:
    """Every rule and every fixed K, with the gain over the best fixed K."""
    gains = _gains(config, cells)
    return [decode_row(found, cells) | gains[cell] for cell, found in cells.items()]


# -- gain over the best fixed K -------------------------------------------------------------------


def references(config: StudyConfig, cells: Cells) -> dict[tuple, tuple[Cell, str, str]]:
    """By (draft, temperature, seed): the best fixed K's cell, what it was chosen on, and where the choice comes from.

    The calibrated K where there is one and it was run; else the best measured, which flatters the reference a little
    and so never a dynamic rule.
    """
    groups: dict[tuple, list[Cell]] = {}
    for cell in cells:
        if cell.policy == "fixed":
            groups.setdefault(_group(cell), []).append(cell)
    chosen = {}
    for group, members in groups.items():
        known = config.calibrated(group[0])
        match = [cell for cell in members if known is not None and cell.k == known.best_k]
        if match:
            chosen[group] = (match[0], "calibration", known.provenance)
        else:
            best = max(members, key=lambda cell: cells[cell].speedup.value or 0.0)
            chosen[group] = (best, "measured", "no calibrated value among the fixed K that were run")
    return chosen


def _group(cell: Cell) -> tuple:
    return cell.draft, cell.temperature, cell.seed


def _gains(config: StudyConfig, cells: Cells) -> dict[Cell, dict]:
    chosen = references(config, cells)
    found, families = {}, {}
    for cell, new in cells.items():
        estimate, p_value = statistics.Estimate(None), None
        if cell.policy != "ar" and _group(cell) in chosen:
            reference = chosen[_group(cell)][0]
            keys = comparable(new, cells[reference])
            arms = new.arms(keys=keys), cells[reference].arms(keys=keys)
            estimate = statistics.gain(*arms)
            if cell.policy != "fixed":
                # the family of comparisons: all rules against the best fixed K of one draft
                p_value = statistics.gain_p_value(*arms)
                families.setdefault(_group(cell), []).append((cell, p_value))
        found[cell] = {"gain": estimate.value, "gain_low": estimate.low, "gain_high": estimate.high}
        found[cell]["gain_p_holm"] = None
    for family in families.values():
        adjusted = statistics.holm([p_value for _, p_value in family])
        for (cell, _), p_value in zip(family, adjusted, strict=True):
            found[cell]["gain_p_holm"] = p_value
    return found


def best_k(config: StudyConfig, cells: Cells) -> Rows:
    """Which fixed K the rules were compared with, and why that one."""
    return [
        {
            "pair": config.pair,
            "draft": draft,
            "temperature": temperature,
            "seed": seed,
            "best_k": cell.k,
            "chosen_on": source,
            "provenance": provenance,
        }
        for (draft, temperature, seed), (cell, source, provenance) in references(config, cells).items()
    ]


# -- the other tables -----------------------------------------------------------------------------


def losslessness(config: StudyConfig, cells: Cells) -> Rows:
    """Greedy outputs against the baseline's, prompt by prompt; looped rows count here, exactness has no favourites."""
    return [_audit(found) for found in cells.values()]


def _audit(found: Measured) -> dict:
    rows = found.speculative
    differs = rows["output_sha"] != found.baseline["output_sha"]
    # a difference that nobody has explained is a real one
    near = differs & (rows["divergence"] == NEAR_TIE)
    real = (differs & ~near).groupby(level="prompt_id").any()
    near = near.groupby(level="prompt_id").any() & ~real
    places, gaps = rows["first_divergence"][differs].dropna(), rows["gap"][differs].dropna()
    cell = found.cell
    return {
        **{name: getattr(cell, name) for name in ("pair", "draft", "policy", "k", "dtype")},
        "prompts": len(real),
        "tokens": int(rows["tokens"].sum()),
        "identical": int((~real & ~near).sum()),
        "first_divergence": int(places.min()) if len(places) else None,
        "gap": float(gaps.max()) if len(gaps) else None,
        "near_ties": int(near.sum()),
        "real_mismatches": int(real.sum()),
        **form(cell),
    }


NEAR_TIE = "near_tie"
"""The value of the column `divergence` where the two tokens' logits lie within rounding of each other."""


def positions(config: StudyConfig, cells: Cells) -> Rows:
    return [identity(cell) | vars(place) for cell, found in cells.items() for place in metrics.positions_of(found)]


def time_shares(config: StudyConfig, cells: Cells) -> Rows:
    return [identity(cell) | metrics.time_shares(found) for cell, found in cells.items()]


def cells_table(config: StudyConfig, cells: Cells) -> Rows:
    """Everything about every cell, for the appendix."""
    return [
        decode_row(found, cells)
        | form(cell)
        | {name: getattr(cell, name) for name in ("dtype", "prompt_set")}
        | metrics.details(found)
        for cell, found in cells.items()
    ]


def drafts(config: StudyConfig, cells: Cells, root: Path) -> Rows:
    """Every draft at equal settings, by set of prompts and by category."""
    return tables_drafts.rows(config, cells, root, decode_row)


RECORDED = ("drafts", *RECORDS)
"""Tables that also read what trainings recorded, below a root."""

BUILDERS: dict[str, Callable[..., Iterable[dict]]] = {
    "fixed_k": fixed_k,
    "dynamic_k": dynamic_k,
    "drafts": drafts,
    "losslessness": losslessness,
    "best_k": best_k,
    "positions": positions,
    "time_shares": time_shares,
    "cells": cells_table,
    **tables_training.BUILDERS,
    "trees": tables_trees.contenders,
    "verification": tables_trees.contenders,
    "ablation": tables_trees.ablation,
    "round_costs": tables_trees.round_costs,
    "confidence": tables_trees.confidence,
    "example_tree": tables_trees.example_tree,
    "lossy": tables_trees.lossy,
}
