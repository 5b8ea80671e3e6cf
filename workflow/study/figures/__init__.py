"""Figures from tables, as SVG.  `draw(name, tables, output)` reads CSV files and nothing else.

The same tables give the same bytes: no date, a salt of its own for each figure's ids, a fixed style and font.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # before pyplot: no screen is needed

import matplotlib.pyplot as plt
import pandas as pd
import pyarrow as pa

from specdec.errors import UserError, unknown
from workflow.study.columns import columns_of, write_text
from workflow.study.figures import curves, drafts, measure, policies, style, trees
from workflow.study.plan import FIGURES as NEEDED

Frames = dict[str, pd.DataFrame]

FIGURES: dict[str, Callable[[Frames], plt.Figure]] = {
    "speedup_by_k": curves.speedup_by_k,
    "acceptance_by_k": curves.acceptance_by_k,
    "acceptance_by_position": curves.acceptance_by_position,
    "speedup_by_acceptance": policies.speedup_by_acceptance,
    "time_shares": policies.time_shares,
    "drafts_by_position": drafts.by_position,
    "drafts_by_cost": drafts.by_cost,
    "training_curves": drafts.training_curves,
    "speedup_by_nodes": trees.speedup_by_nodes,
    "expected_length": trees.expected_length,
    "confidence": trees.confidence,
    "example_tree": trees.example_tree,
    "time_by_width": measure.time_by_width,
    "roofline": measure.roofline,
    "expected_speedup": measure.expected_speedup,
    "predicted_against_measured": measure.predicted_against_measured,
    "peers": measure.peers,
    "time_by_context": measure.time_by_context,
}


def draw(name: str, tables: str | Path, output: str | Path) -> None:
    """Draw one figure from the CSV files in the folder `tables`."""
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    frames = {table: read(Path(tables) / f"{table}.csv", table) for table in NEEDED[name]}
    with matplotlib.rc_context({**style.SETTINGS, "svg.hashsalt": name}):
        figure = FIGURES[name](frames)
        sink = io.StringIO()
        figure.savefig(sink, format="svg", metadata={"Date": None, "Creator": None, "Title": name})
        plt.close(figure)
    write_text(output, sink.getvalue())


def read(path: Path, table: str) -> pd.DataFrame:
    """A table with the types of its columns; names stay text even where they look like numbers."""
    names = {column: "string" for column, kind in columns_of(table).items() if kind == pa.string()}
    try:
        frame = pd.read_csv(path, dtype=names)
    except FileNotFoundError:
        raise UserError(f"{path}: no such table; the rule that makes it has not run") from None
    missing = [column for column in columns_of(table) if column not in frame]
    if missing:
        raise UserError(f"{path}: column {missing[0]} is missing; make the table again")
    return frame
