"""Named values of the measurements beside the cells: costs, predictions, profile, limits, peers, long texts.

As in `values.py` no words are made here: a choice of wording is a key that the templates turn into a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from workflow.study.measure_columns import DRAFT_ROLE, MISSING, TARGET_ROLE, TIMING_ONLY

CLOSE = 0.1
"""Relative error up to which a prediction counts as close."""

CHEAP = 1.25
"""A pass this many times the cost of one token counts as nearly free."""


def measure_values(tables: Mapping[str, list[dict]]) -> dict:
    """Everything the sections on cost, profile and peers may name; None for a table that the study does not hold."""
    return {
        "costs": cost_values(tables["cost_model"], tables["break_even"]),
        "predicted": prediction_values(tables["predicted"]),
        "profile": profile_values(tables["operators"], tables["memory"]),
        "roofline": roofline_values(tables["roofline"]),
        "peers": peer_values(tables["peers"]) if "peers" in tables else None,
        "long_context": long_values(tables["long_context"]) if "long_context" in tables else None,
    }


def cost_values(rows: Sequence[dict], break_even: Sequence[dict]) -> dict:
    """The target's passes and every draft's step at the shortest context, and the acceptance each draft needs."""
    timed = [row for row in rows if row["ms"] is not None]
    own = [row for row in timed if row["note"] != TIMING_ONLY]
    context, longest = min(row["context"] for row in own), max(row["context"] for row in own)
    passes = [row for row in own if row["role"] == TARGET_ROLE and row["context"] == context]
    steps = [row for row in own if row["role"] == DRAFT_ROLE and row["context"] == context and row["width"] == 1]
    free = [row["width"] for row in passes if row["cost_ratio"] <= CHEAP]
    needs = [row for row in break_even if row["context"] == context]
    return {
        "context": context,
        "longest": longest,
        "step_ms": next(row["ms"] for row in passes if row["width"] == 1),
        "passes": sorted(passes, key=lambda row: row["width"]),
        "widest": max(passes, key=lambda row: row["width"]),
        "free_width": max(free),
        "cheap": CHEAP,
        "drafts": [
            {"name": row["model"], "ms": row["ms"], "cost_ratio": row["cost_ratio"]} | needed(needs, row["model"])
            for row in steps
        ],
        "missing": [row["model"] for row in rows if (row["note"] or "").startswith(MISSING)],
        "others": [other | needed(needs, other["draft"]) for other in timing_only(timed)],
        "depths": sorted({row["k"] for row in needs}),
    }


def needed(rows: Sequence[dict], draft: str) -> dict:
    """By depth, the acceptance at which a draft pays, and the depth where that is lowest; None where none does."""
    own = {row["k"]: row["break_even_acceptance"] for row in rows if row["draft"] == draft}
    known = {k: value for k, value in own.items() if value is not None}
    best = min(known, key=known.get) if known else None
    return {"needs": [own[k] for k in sorted(own)], "best_k": best, "least": known.get(best)}


def timing_only(rows: Sequence[dict]) -> list[dict]:
    """The pair of random weights, where it was timed: names, and the draft's cost at the shortest context."""
    steps = [row for row in rows if row["note"] == TIMING_ONLY and row["width"] == 1]
    if not steps:
        return []
    context = min(row["context"] for row in steps)
    by_role = {row["role"]: row for row in steps if row["context"] == context}
    target, draft = by_role[TARGET_ROLE], by_role[DRAFT_ROLE]
    return [{"target": target["model"], "draft": draft["model"], "ms": target["ms"], "cost_ratio": draft["cost_ratio"]}]


def prediction_values(rows: Sequence[dict]) -> dict:
    """How far the predictions are from what was measured, and where farthest."""
    known = [row for row in rows if row["error"] is not None]
    errors = [abs(row["error"]) for row in known]
    worst = max(known, key=lambda row: abs(row["error"])) if known else None
    return {
        "rows": list(rows),
        "cells": len(known),
        "unknown": len(rows) - len(known),
        "median_error": median(errors) if errors else None,
        "worst": worst,
        "close": sum(error <= CLOSE for error in errors),
        "tolerance": CLOSE,
        "agrees": "unknown" if not errors else "close" if median(errors) <= CLOSE else "apart",
        "paying": sum(row["predicted_best_k"] not in (None, 0) for row in best_rows(known)),
        "best": best_rows(known),
    }


def best_rows(rows: Sequence[dict]) -> list[dict]:
    """Of each draft, the row whose alpha and predicted best depth stand for it: the deepest fixed chain, coldest
    first."""
    usual = {"policy": ("fixed",), "shape": ("chain",), "prompt_set": ("project",), "verifier": ("greedy", "rejection")}
    fixed = [row for row in rows if row["alpha"] is not None and all(row[n] in known for n, known in usual.items())]
    chosen: dict[str, dict] = {}
    for row in sorted(fixed, key=lambda row: (row["temperature"], -row["k"], row["seed"])):
        chosen.setdefault(row["draft"], row)
    return list(chosen.values())


def profile_values(operators: Sequence[dict], memory: Sequence[dict]) -> dict:
    """Shares of each arm's time by kind of work and phase, the largest operators, and memory by part."""
    arms = {}
    for arm in dict.fromkeys(row["arm"] for row in operators):
        own = [row for row in operators if row["arm"] == arm]
        parts = {row["part"]: row["bytes"] for row in memory if row["arm"] == arm}
        arms[arm] = {
            "groups": by(own, "group"),
            "draft": own[0]["draft"],
            "k": own[0]["k"],
            "decoding": by([row for row in own if row["phase"] != "prefill"], "group"),
            "memory": parts,
            "total_bytes": sum(parts.values()),
        }
    baseline = arms["ar"]["decoding"]
    groups = list(dict.fromkeys(name for arm in arms.values() for name in arm["decoding"]))
    return {
        "arms": arms,
        "groups": [
            {"name": name, "shares": [arm["decoding"].get(name, 0.0) for arm in arms.values()]} for name in groups
        ],
        "products": baseline.get("products", 0.0),
        "overhead": baseline.get("python", 0.0) + baseline.get("small", 0.0),
        "bound": "products" if baseline.get("products", 0.0) > 0.5 else "rest",
    }


def by(rows: Sequence[dict], column: str) -> dict[str, float]:
    """Shares of these rows' time by a column, largest first."""
    total = sum(row["ms"] for row in rows) or 1.0
    sums: dict[str, float] = {}
    for row in rows:
        sums[row[column]] = sums.get(row[column], 0.0) + row["ms"] / total
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def roofline_values(rows: Sequence[dict]) -> dict:
    """The two limits, the ridge between them, and how near the passes come."""
    points = sorted((row for row in rows if row["width"] is not None), key=lambda row: row["width"])
    limits = {row["point"]: row for row in rows if row["width"] is None}
    bandwidth, peak = limits["memory_limit"]["gbytes_per_s"], limits["arithmetic_limit"]["gops_per_s"]
    return {
        "gbytes_per_s": bandwidth,
        "gops_per_s": peak,
        "ridge": peak / bandwidth,
        "ar": points[0],
        "widest": points[-1],
        "limit_ms": points[0]["bytes"] / bandwidth / 1e6,
        "limit_tokens_per_s": 1e9 * bandwidth / points[0]["bytes"],
        "memory_bound": [row["width"] for row in points if row["intensity"] < peak / bandwidth],
        "near": points[0]["share_of_limit"] >= 0.8,
    }


def peer_values(rows: Sequence[dict]) -> dict:
    """Every arm, the tools that are absent, and the fastest of each kind in the baseline's precision."""
    ran = [row for row in rows if row["tokens_per_s"] is not None]
    own = next(row for row in ran if row["arm"] == "specdec" and row["mode"] == "ar")
    alike = [row for row in ran if row["precision"] == own["precision"]]
    others = [row for row in alike if row["arm"] != "specdec"]
    ours = [row for row in alike if row["arm"] == "specdec"]
    fastest = max(others, key=lambda row: row["tokens_per_s"]) if others else None
    best = max(ours, key=lambda row: row["tokens_per_s"])
    used = own["bandwidth_utilisation"]
    return {
        "rows": list(rows),
        "own": own,
        "best": best,
        "fastest": fastest,
        "plain": [row for row in others if row["mode"] == "ar"],
        "absent": [row for row in rows if row["tokens_per_s"] is None],
        "lead": None if fastest is None else best["tokens_per_s"] / fastest["tokens_per_s"],
        "limit_tokens_per_s": own["tokens_per_s"] / used if used else None,
    }


def long_values(rows: Sequence[dict]) -> dict:
    first, last = rows[0], rows[-1]
    judged = [row["grows_no_faster"] for row in rows if row["grows_no_faster"] is not None]
    verdict = "unknown" if not judged else "linear" if all(judged) else "faster"
    return {"rows": list(rows), "first": first, "last": last, "verdict": verdict}
