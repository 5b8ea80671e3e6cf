"""Reads what the report is made of: tables, figures, and the fingerprint stored with the cells.

Nothing is computed here.  Cells of a CSV file become integers, floats, booleans or text; an empty one becomes None.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from specdec import records
from workflow.study.measure_columns import ALWAYS, MEASURED_COLUMNS
from workflow.study.named import ReportError

TABLES = {
    "fixed_k": "draft policy k temperature prompts tokens rounds acceptance_rate acceptance_length tokens_per_round "
    "tokens_per_s ar_tokens_per_s speedup speedup_low speedup_high verdict decode_speedup",
    "dynamic_k": "draft policy k threshold temperature prompts tokens acceptance_rate acceptance_length "
    "tokens_per_round speedup speedup_low speedup_high verdict gain gain_low gain_high gain_p_holm",
    "drafts": "draft policy k temperature prompts tokens_per_round speedup speedup_low speedup_high verdict "
    "decode_speedup decode_speedup_low decode_speedup_high prompt_set category cost_ratio acceptance_at_1 "
    "acceptance_at_4 train_tokens train_token_passes train_hours draft_weights_bytes",
    "training": "draft method answer_tokens written dropped learn token_passes hours steps before_passes before_hours "
    "vocabulary own_head head_layers copies batch peak_rate taps head_bytes tokens_per_round acceptance_at_1 "
    "acceptance_at_4 processor",
    "training_curves": "draft layers shipped stage passes hours loss tokens_per_round",
    "training_ablations": "base name method changes token_passes tokens_per_round acceptance_at_1 acceptance_at_4",
    "training_layerskip": "layers exit token_passes hours untrained_tokens_per_round tokens_per_round agreement "
    "divergence",
    "losslessness": "draft policy k dtype prompts tokens identical first_divergence gap near_ties real_mismatches",
    "positions": "draft policy k temperature position reached accepted unconditional conditional",
    "time_shares": "draft policy k temperature draft_share target_share other_share prefill_share draft_ms_per_round "
    "target_ms_per_round other_ms_per_round cost_ratio",
    "cells": "draft policy k ar_decode_tokens_per_s",
    "trees": "draft policy k temperature seed shape nodes verifier acceptance_length tokens_per_round speedup verdict",
    "verification": "draft policy k temperature seed shape nodes verifier lossless tokens_per_round speedup verdict",
    "ablation": "draft policy k temperature seed shape nodes improvement over speedup gain gain_low gain_high",
    "round_costs": "draft policy k shape nodes verifier expected_length realised_length draft_share target_share "
    "draft_ms_per_round target_ms_per_round other_ms_per_round ar_step_ms",
    "confidence": "guesses kept mean_confidence",
    "example_tree": "shape nodes accepted",
    **{name: " ".join(MEASURED_COLUMNS[name]) for name in ALWAYS},
    "lossy": "draft shape verifier exact_verifier perplexity ar_perplexity perplexity_ratio differing_share gain",
}
"""Every table the report needs, with the columns it reads."""

FIGURES = (
    *("speedup_by_k", "acceptance_by_k", "acceptance_by_position", "speedup_by_acceptance", "time_shares"),
    *("drafts_by_position", "drafts_by_cost", "training_curves"),
    *("speedup_by_nodes", "expected_length", "confidence", "example_tree"),
    *("time_by_width", "roofline", "expected_speedup", "predicted_against_measured"),
)

ON_REQUEST = {"peers": "peers", "long_context": "time_by_context"}
"""Tables that a study holds where its configuration asks for them, each with its figure."""

OPTIONAL = {
    "distribution": "draft shape verifier p_value p_holm power shift continuations tokens",
    **{name: " ".join(MEASURED_COLUMNS[name]) for name in ON_REQUEST},
}
"""Tables of what a configuration may ask for, with the columns that are read of them."""


@dataclass(frozen=True)
class Results:
    """`tables[name]` is a list of rows in file order, `figures[name]` a path, `metadata` the
    cells' fingerprint, `categories` the prompts of each category."""

    tables: Mapping[str, list[dict]]
    figures: Mapping[str, Path]
    metadata: Mapping
    categories: Mapping[str, int]


def read_results(folder: Path, pair: str | None = None, asked: Collection[str] = ()) -> Results:
    """Everything under `folder`, of `OPTIONAL` what was `asked` for.

    Raises `ReportError` naming the first file or column that is missing.
    """
    wanted = TABLES | {name: OPTIONAL[name] for name in asked}
    tables = {name: read_table(folder / "tables" / f"{name}.csv", columns) for name, columns in wanted.items()}
    drawn = [ON_REQUEST[name] for name in asked if name in ON_REQUEST]
    figures = {name: folder / "figures" / f"{name}.svg" for name in (*FIGURES, *drawn)}
    for name, path in figures.items():
        if not path.is_file() or path.stat().st_size == 0:
            raise ReportError(f"figure {name!r} is missing: {path} does not exist or is empty")
    return Results(tables, figures, *read_cell(folder, pair))


def read_table(path: Path, needed: str = "") -> list[dict]:
    if not path.is_file():
        raise ReportError(f"table {path.stem!r} is missing: {path} does not exist")
    with path.open(newline="", encoding="utf-8") as source:
        reader = csv.DictReader(source)
        missing = [name for name in needed.split() if name not in (reader.fieldnames or ())]
        if missing:
            raise ReportError(f"table {path.stem!r} has no column {missing[0]!r} ({path})")
        return [{key: convert(value) for key, value in row.items()} for row in reader]


def convert(text: str | None) -> int | float | bool | str | None:
    """The value a CSV cell stands for."""
    if text is None or text in ("", "nan", "NaN", "<NA>", "None"):
        return None
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def read_cell(folder: Path, pair: str | None) -> tuple[Mapping, Mapping[str, int]]:
    """From one cell of the pair in force: its metadata, and how many prompts of each category it decoded.

    Every cell of a study carries the same fingerprint (the tables refuse others) and has the same prompts.
    """
    cells = sorted(path for path in folder.rglob("*.parquet") if path.parent.name != "tables")
    own = [path for path in cells if pair in path.relative_to(folder).parts]
    # the baseline against itself first: no other cell is sure to be in the number format and slice of the study
    for path in sorted(own or cells, key=lambda path: not path.name.startswith("none-")):
        table, metadata = records.read(path)
        if metadata:
            found = dict.fromkeys(zip(*(table[name].to_pylist() for name in ("category", "prompt_id")), strict=True))
            return metadata, Counter(category for category, _ in found)
    return {}, {}
