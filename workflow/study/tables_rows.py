"""The row that every decode table is made of: a cell against its own baseline, decoded beside it in the same process.

The baseline against itself is a row too, and its interval is the band inside which no difference is claimed.
"""

from __future__ import annotations

from collections.abc import Mapping

from workflow.study import metrics, statistics
from workflow.study.cells import Cell
from workflow.study.columns import CELL, FORM
from workflow.study.measured import Measured, comparable, same_machine

Cells = Mapping[Cell, Measured]
Rows = list[dict]


def decode_row(found: Measured, cells: Cells) -> dict:
    """The columns that all decode tables share."""
    total, decode = found.speedup, found.decode_speedup
    counted = metrics.counts(found)
    return {
        **identity(found.cell),
        **{name: getattr(counted, name) for name in ("prompts", "tokens", "rounds", "drafted", "accepted")},
        **metrics.ratios(counted, found.cell.shape),
        "speedup": total.value,
        "speedup_low": total.low,
        "speedup_high": total.high,
        "verdict": statistics.verdict(total, _noise(found, cells)),
        "decode_speedup": decode.value,
        "decode_speedup_low": decode.low,
        "decode_speedup_high": decode.high,
    }


def identity(cell: Cell) -> dict:
    return {name: getattr(cell, name) for name in CELL}


def _noise(found: Measured, cells: Cells) -> statistics.Estimate | None:
    """What the baseline against itself shows on the same machine, at the same temperature, seed and number format."""
    alike = (found.cell.temperature, found.cell.seed, found.cell.dtype, found.cell.prompt_set)
    for cell, baseline in cells.items():
        if cell.policy == "ar" and (cell.temperature, cell.seed, cell.dtype, cell.prompt_set) == alike:
            same_machine(found, baseline)
            return baseline.speedup
    return None


def form(cell: Cell) -> dict:
    """What the cell's draft looks like, and its rule."""
    return {name: getattr(cell, name) for name in FORM}


def gain_columns(new: Measured, old: Measured) -> dict:
    """The speedup of one cell over that of another, on the prompts that count in both."""
    keys = comparable(new, old)
    found = statistics.gain(new.arms(keys=keys), old.arms(keys=keys))
    return {"gain": found.value, "gain_low": found.low, "gain_high": found.high}
