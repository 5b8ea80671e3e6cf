"""The columns of every table, in order, with their types: integers stay integers, names stay text, gaps stay empty.

A table is written twice, beside each other: CSV with six significant digits for people, parquet with all of them for
programs.  Each file is written whole or not at all.
"""

from __future__ import annotations

import csv
import io
import os
import tempfile
from pathlib import Path

import pyarrow as pa

from specdec import records
from specdec.errors import UserError
from workflow.study.measure_columns import MEASURED_COLUMNS

_NAME, _INT, _REAL, _FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()

CELL = {
    "pair": _NAME,
    "draft": _NAME,
    "policy": _NAME,
    "k": _INT,
    "threshold": _REAL,
    "temperature": _REAL,
    "seed": _INT,
}

DECODE = {
    **CELL,
    "prompts": _INT,
    "tokens": _INT,
    "rounds": _INT,
    "drafted": _INT,
    "accepted": _INT,
    "acceptance_rate": _REAL,
    "acceptance_length": _REAL,
    "tokens_per_round": _REAL,
    "tokens_per_s": _REAL,
    "ar_tokens_per_s": _REAL,
    "speedup": _REAL,
    "speedup_low": _REAL,
    "speedup_high": _REAL,
    "verdict": _NAME,
    "decode_speedup": _REAL,
    "decode_speedup_low": _REAL,
    "decode_speedup_high": _REAL,
}

DROPPED = (
    *("loop", "near_evaluation", "duplicate", "unfinished", "endless_request", "empty_request", "special_token"),
    "too_long",
)
"""Why conversations are not kept as training text."""

SIMULATED = {"tokens_per_round": _REAL, **{f"acceptance_at_{place}": _REAL for place in range(1, 5)}}
"""How a head guesses held-out text at K = 4: it drafts from every position against what the target wrote."""
FORM = {"shape": _NAME, "nodes": _INT, "verifier": _NAME}
"""What a draft looks like, and which rule verifies it."""

TREE = {**DECODE, **FORM, "lossless": _FLAG}

SHARES = {
    "draft_share": _REAL,
    "target_share": _REAL,
    "other_share": _REAL,
    "prefill_share": _REAL,
    "draft_ms_per_round": _REAL,
    "target_ms_per_round": _REAL,
    "other_ms_per_round": _REAL,
    "cost_ratio": _REAL,
}

COLUMNS: dict[str, dict[str, pa.DataType]] = {
    "fixed_k": DECODE,
    "dynamic_k": {**DECODE, "gain": _REAL, "gain_low": _REAL, "gain_high": _REAL, "gain_p_holm": _REAL},
    "drafts": {
        **DECODE,
        "prompt_set": _NAME,
        "category": _NAME,
        "cost_ratio": _REAL,
        **{f"acceptance_at_{place}": _REAL for place in range(1, 9)},
        "train_tokens": _INT,
        "train_token_passes": _INT,
        "train_hours": _REAL,
        "draft_weights_bytes": _INT,
        "rows": _INT,
        "rows_looped": _INT,
    },
    "training": {
        "pair": _NAME,
        "draft": _NAME,
        "method": _NAME,
        "target": _NAME,
        "target_id": _NAME,
        "dtype": _NAME,
        "conversations": _INT,
        "held_out": _INT,
        "answer_tokens": _INT,
        "written": _INT,
        "dropped": _INT,
        **{f"dropped_{reason}": _INT for reason in DROPPED},
        "learn": _NAME,
        "token_passes": _INT,
        "epochs": _REAL,
        "updates": _INT,
        "hours": _REAL,
        "steps": _INT,
        "before_passes": _INT,
        "before_hours": _REAL,
        "vocabulary": _INT,
        "own_head": _FLAG,
        "head_layers": _INT,
        "copies": _FLAG,
        "optimiser": _NAME,
        "batch": _INT,
        "peak_rate": _REAL,
        "warmup": _INT,
        "prompt": _INT,
        "seed": _INT,
        "taps": _NAME,
        "head_bytes": _INT,
        **SIMULATED,
        "processor": _NAME,
        "commit": _NAME,
    },
    "training_curves": {
        "pair": _NAME,
        "draft": _NAME,
        "layers": _INT,
        "shipped": _FLAG,
        "stage": _INT,
        "passes": _INT,
        "updates": _INT,
        "hours": _REAL,
        "loss": _REAL,
        **SIMULATED,
    },
    "training_ablations": {
        "pair": _NAME,
        "base": _NAME,
        "name": _NAME,
        "method": _NAME,
        "changes": _NAME,
        "token_passes": _INT,
        "updates": _INT,
        **SIMULATED,
    },
    "training_layerskip": {
        "pair": _NAME,
        "target": _NAME,
        "layers": _INT,
        "exit": _INT,
        "taught": _NAME,
        "dropout": _REAL,
        "weight": _REAL,
        "held_out": _INT,
        "token_passes": _INT,
        "updates": _INT,
        "hours": _REAL,
        **{f"untrained_{name}": kind for name, kind in SIMULATED.items()},
        **SIMULATED,
        "agreement": _REAL,
        "divergence": _REAL,
        "processor": _NAME,
        "commit": _NAME,
    },
    "losslessness": {
        "pair": _NAME,
        "draft": _NAME,
        "policy": _NAME,
        "k": _INT,
        "dtype": _NAME,
        "prompts": _INT,
        "tokens": _INT,
        "identical": _INT,
        "first_divergence": _INT,
        "gap": _REAL,
        "near_ties": _INT,
        "real_mismatches": _INT,
        **FORM,
    },
    "best_k": {
        "pair": _NAME,
        "draft": _NAME,
        "temperature": _REAL,
        "seed": _INT,
        "best_k": _INT,
        "chosen_on": _NAME,
        "provenance": _NAME,
    },
    "positions": {
        **CELL,
        "position": _INT,
        "reached": _INT,
        "accepted": _INT,
        "unconditional": _REAL,
        "conditional": _REAL,
    },
    "time_shares": {**CELL, **SHARES},
    "cells": {
        **CELL,
        **FORM,
        "dtype": _NAME,
        "prompt_set": _NAME,
        "static": _FLAG,
        **{name: kind for name, kind in DECODE.items() if name not in CELL},
        "rows": _INT,
        "rows_looped": _INT,
        "rows_unequal": _INT,
        "loop_share": _REAL,
        "speedup_mean_of_prompts": _REAL,
        "decode_tokens_per_s": _REAL,
        "ar_decode_tokens_per_s": _REAL,
        "ttft_ms": _REAL,
        "ar_ttft_ms": _REAL,
        "latency_p50_ms": _REAL,
        "latency_p90_ms": _REAL,
        "latency_p95_ms": _REAL,
        "weights_bytes": _INT,
        "draft_weights_bytes": _INT,
        "cache_bytes": _INT,
        "peak_bytes": _INT,
        "hardware_id": _NAME,
        "environment_id": _NAME,
        "model_id": _NAME,
        "code_id": _NAME,
    },
    "trees": TREE,
    "verification": TREE,
    "ablation": {
        **TREE,
        "improvement": _NAME,
        "over": _NAME,
        "gain": _REAL,
        "gain_low": _REAL,
        "gain_high": _REAL,
    },
    "round_costs": {
        **CELL,
        **FORM,
        "rounds": _INT,
        "drafted_per_round": _REAL,
        "expected_length": _REAL,
        "realised_length": _REAL,
        **SHARES,
        "ar_step_ms": _REAL,
    },
    "confidence": {
        **CELL,
        **FORM,
        "low": _REAL,
        "high": _REAL,
        "guesses": _INT,
        "kept": _INT,
        "mean_confidence": _REAL,
        "share_kept": _REAL,
    },
    "example_tree": {
        **CELL,
        **FORM,
        "prompt_id": _NAME,
        "round": _INT,
        "node": _INT,
        "parent": _INT,
        "text": _NAME,
        "confidence": _REAL,
        "accepted": _FLAG,
    },
    "lossy": {
        **CELL,
        **FORM,
        "exact_verifier": _NAME,
        "prompts": _INT,
        "tokens": _INT,
        "perplexity": _REAL,
        "exact_perplexity": _REAL,
        "ar_perplexity": _REAL,
        "perplexity_ratio": _REAL,
        "perplexity_ratio_low": _REAL,
        "perplexity_ratio_high": _REAL,
        "differing_share": _REAL,
        "gain": _REAL,
        "gain_low": _REAL,
        "gain_high": _REAL,
    },
    "distribution": {
        **CELL,
        **FORM,
        "prompt_id": _NAME,
        "continuations": _INT,
        "tokens": _INT,
        "groups": _INT,
        "statistic": _REAL,
        "p_value": _REAL,
        "p_holm": _REAL,
        "shift": _REAL,
        "power": _REAL,
    },
}


def columns_of(name: str) -> dict[str, pa.DataType]:
    """Of a table made from cells or measured directly."""
    return COLUMNS[name] if name in COLUMNS else MEASURED_COLUMNS[name]


def to_arrow(name: str, rows: list[dict]) -> pa.Table:
    """Rows as a typed table; a row without a column, or with one too many, is a defect and raises."""
    columns = columns_of(name)
    for row in rows:
        if set(row) != set(columns):
            raise ValueError(f"table {name}: columns {sorted(set(row) ^ set(columns))} do not fit")
    schema = pa.schema([pa.field(column, kind) for column, kind in columns.items()])
    return pa.Table.from_pylist(rows, schema=schema)


def write(table: pa.Table, csv_path: str | Path, parquet_path: str | Path) -> None:
    """Write both files of a table."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(table.column_names)
    for row in table.to_pylist():
        writer.writerow([show(value) for value in row.values()])
    write_text(csv_path, sink.getvalue())
    records.write_table(parquet_path, table)


def show(value: object) -> str:
    """A value as it stands in a CSV file."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def write_text(path: str | Path, content: str) -> None:
    """Write a text file whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as sink:
            sink.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        Path(temporary).unlink(missing_ok=True)
