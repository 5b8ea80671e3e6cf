"""Plausible rows of the tables that are measured directly, from a machine made up for tests."""

from __future__ import annotations

from pathlib import Path

from workflow.study import columns
from workflow.study.measure_columns import CHAIN, TIMING_ONLY

PAIR, TARGET = "smollm2", "smollm2-135m-instruct"
WIDTHS, CONTEXTS, STEP_MS = (1, 2, 3, 5, 9, 32), (128, 512), 12.0


def verify(width: int) -> float:
    """A pass in baseline steps."""
    return 1 + 0.05 * (width - 1)


def cost_rows(drafts: dict[str, float], timing_only: bool = False) -> list[dict]:
    """The target and drafts with their costs a step; with `timing_only` a second pair behind them."""
    rows = _costs(TARGET, drafts, None)
    rows.append(_cost("absent", "draft", None, None, None, None, "missing: no such folder"))
    return rows + (_costs("qwen3-1.7b", {"qwen3-0.6b": 0.4}, TIMING_ONLY) if timing_only else [])


def _costs(target: str, drafts: dict[str, float], note: str | None) -> list[dict]:
    places = [(width, context) for width in WIDTHS for context in CONTEXTS]
    found = [
        _cost(target, "target", width, context, STEP_MS * (1 + context / 1024) * verify(width), verify(width), note)
        for width, context in places
    ]
    for name, cost in drafts.items():
        for width, context in places:
            ms = STEP_MS * (1 + context / 1024) * cost * verify(width)
            found.append(_cost(name, "draft", width, context, ms, cost * verify(width), note))
    return found


def _cost(model, role, width, context, ms, ratio, note) -> dict:
    low, high = (None, None) if ms is None else (0.98 * ms, 1.03 * ms)
    row = {"model": model, "role": role, "width": width, "context": context, "ms": ms}
    return row | {"ms_low": low, "ms_high": high, "cost_ratio": ratio, "note": note}


def break_even_rows(drafts: dict[str, float], timing_only: bool = False) -> list[dict]:
    pairs = [(TARGET, name, cost, None) for name, cost in drafts.items()]
    pairs += [("qwen3-1.7b", "qwen3-0.6b", 0.4, TIMING_ONLY)] if timing_only else []
    rows = []
    for target, draft, cost, note in pairs:
        for k in (1, 2, 4, 8):
            price = cost * k + verify(k + 1)
            need = (price - 1) / k if price < k + 1 else None
            row = {"target": target, "draft": draft, "k": k, "context": 128, "cost_ratio": cost}
            row |= {"verify_ratio": verify(k + 1), "price": price, "break_even_acceptance": need, "note": note}
            rows.append(row)
    return rows


def predicted_rows(drafts: dict[str, float], error: float = 0.03) -> list[dict]:
    rows = []
    for draft, cost in drafts.items():
        for k in (1, 2, 4, 8):
            head = dict(
                zip(CHAIN, (PAIR, draft, "fixed", k, None, 0.0, 0, "chain", k, "greedy", "project"), strict=True)
            )
            price = cost * k + verify(k + 1)
            tau = 1 + sum(0.6**i for i in range(1, k + 1))
            rows.append(
                head
                | {"acceptance_rate": 0.6, "alpha": 0.6, "tokens_per_round": tau, "cost_ratio": cost}
                | {"verify_ratio": verify(k + 1), "price": price, "predicted_tokens_per_round": tau}
                | {"predicted_speedup": tau / price, "predicted_independent": tau / (1 + cost * k)}
                | {"decode_speedup": tau / price / (1 + error), "decode_speedup_low": 0.95 * tau / price}
                | {"decode_speedup_high": 1.05 * tau / price, "error": error, "break_even_acceptance": 0.3}
                | {"predicted_best_k": 2, "note": None}
            )
    return rows


def operator_rows(draft: str) -> list[dict]:
    parts = (
        ("ar", "target", "products", 0.7),
        ("ar", "target", "python", 0.1),
        ("ar", "prefill", "products", 0.2),
        ("speculative", "draft", "products", 0.5),
        ("speculative", "target", "products", 0.3),
        ("speculative", "target", "small", 0.2),
    )
    return [
        {"arm": arm, "draft": None if arm == "ar" else draft, "k": 0 if arm == "ar" else 4, "phase": phase}
        | {"group": group, "operator": f"a::{group}", "calls": 10, "ms": 100 * share, "share": share}
        for arm, phase, group, share in parts
    ]


def memory_rows(draft: str) -> list[dict]:
    parts = {"target_weights": 269_000_000, "cache": 3_000_000, "activations": 20_000_000}
    rows = [{"arm": "ar", "draft": None, "part": part, "bytes": size} for part, size in parts.items()]
    return rows + [row | {"arm": "speculative", "draft": draft} for row in rows]


def roofline_rows() -> list[dict]:
    from workflow.study.profiling import Limits, Median, limit_rows, point_row

    limits = Limits(30e9, 480e9)
    works = {width: (272_000_000, 278_000_000 * width) for width in (1, 4, 32)}
    points = [
        point_row(limits, width, 128, work, Median(0.012 * verify(width), 0.011, 0.03)) for width, work in works.items()
    ]
    return limit_rows(limits) + points


def peer_rows() -> list[dict]:
    def row(arm, mode, speed, ratio, used=None, draft=None, precision="bfloat16"):
        return {"arm": arm, "mode": mode, "draft": draft, "precision": precision, "prompts": 6, "tokens": 282} | {
            "tokens_per_s": speed,
            "tokens_per_s_low": 0.97 * speed,
            "tokens_per_s_high": 1.02 * speed,
            "ratio_to_specdec_ar": ratio,
            "bandwidth_utilisation": used,
            "same_output": 6 if arm == "specdec" else 4,
            "note": None,
        }

    absent = dict.fromkeys(row("", "", 1.0, 1.0)) | {"arm": "openvino", "mode": "ar", "precision": "float16"}
    return [
        row("specdec", "ar", 80.0, 1.0, 0.7),
        row("specdec", "speculative", 120.0, 1.5, 0.8, "small"),
        row("transformers", "ar", 20.0, 0.25, 0.17),
        row("llama.cpp", "ar", 90.0, 1.125, 0.8),
        row("llama.cpp", "ar", 110.0, 1.375, 0.4, precision="q4_1"),
        absent | {"note": "missing: not installed"},
    ]


def long_rows() -> list[dict]:
    from workflow.study.long_context import Window, rows_of

    windows = [Window(n, 10, tuple(0.012 + 2e-6 * n + 1e-5 * i for i in range(5))) for n in (100, 500, 1000, 2000)]
    return rows_of(windows, weights=269_000_000, row=46_080)


def every(drafts: dict[str, float], timing_only: bool = False) -> dict[str, list[dict]]:
    """Rows of all measured tables."""
    first = next(iter(drafts))
    return {
        "cost_model": cost_rows(drafts, timing_only),
        "break_even": break_even_rows(drafts, timing_only),
        "predicted": predicted_rows(drafts),
        "operators": operator_rows(first),
        "memory": memory_rows(first),
        "roofline": roofline_rows(),
        "peers": peer_rows(),
        "long_context": long_rows(),
    }


def write(folder: Path, tables: dict[str, list[dict]]) -> None:
    for name, rows in tables.items():
        columns.write(columns.to_arrow(name, rows), folder / f"{name}.csv", folder / f"{name}.parquet")
