"""From stored counts to named ratios.  Counts are stored, ratios are derived here and nowhere else, each named once.

acceptance rate    accepted / drafted; chains only
acceptance length  accepted / rounds, without the target's own token
tokens per round   tokens / rounds, the target's own token included

Acceptance at position i is *unconditional* over all rounds (summed over i it gives the acceptance length) and
*conditional* over the rounds in which position i was drafted and everything before it was accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from workflow.study.cells import USUAL_SHAPE
from workflow.study.measured import Measured
from workflow.study.statistics import mean_of_ratios, percentile


def ratio(numerator: float, denominator: float) -> float | None:
    """None where there is nothing to divide by, so that a table shows a gap and never an invented 0."""
    return float(numerator) / float(denominator) if denominator else None


@dataclass(frozen=True)
class Position:
    """Acceptance at one position of a chain, 1 the first."""

    position: int
    reached: int
    accepted: int
    unconditional: float | None
    conditional: float | None


def positions(accepted: Sequence[int], drafted: Sequence[int], cut: Sequence[bool], depth: int) -> list[Position]:
    """Acceptance by position from the rounds of a chain.

    A round that was cut at the end of the text says nothing about the position after the last one kept, which was
    neither accepted nor rejected, so it is not among those that reached it.
    """
    accepted, drafted = np.asarray(accepted, dtype=int), np.asarray(drafted, dtype=int)
    cut = np.asarray(cut, dtype=bool)
    found = []
    for place in range(1, depth + 1):
        kept = int((accepted >= place).sum())
        undecided = cut & (accepted == place - 1)
        reached = int(((drafted >= place) & (accepted >= place - 1) & ~undecided).sum())
        found.append(Position(place, reached, kept, ratio(kept, len(accepted)), ratio(kept, reached)))
    return found


def rounds_of(rows: pd.DataFrame, column: str) -> np.ndarray:
    """A per-round column of some rows, one after the other."""
    values = [np.asarray(value) for value in rows[column]]
    return np.concatenate(values) if values else np.asarray([])


def positions_of(cell: Measured) -> list[Position]:
    """Acceptance by position of a cell; nothing for trees and for the baseline."""
    if cell.cell.shape != USUAL_SHAPE or cell.cell.k == 0:
        return []
    rows = cell.headline
    cut = rounds_of(rows, "source") == "cut"
    return positions(rounds_of(rows, "accepted"), rounds_of(rows, "drafted"), cut, cell.cell.k)


@dataclass(frozen=True)
class Counts:
    """Sums over the headline rows of the speculative arm."""

    prompts: int
    tokens: int
    rounds: int
    drafted: int
    accepted: int
    seconds: float
    ar_tokens: int
    ar_seconds: float


def counts(cell: Measured) -> Counts:
    rows, baseline = cell.headline, cell.headline_baseline
    return Counts(
        prompts=rows.index.get_level_values("prompt_id").nunique(),
        tokens=int(rows["tokens"].sum()),
        rounds=int(rows["rounds"].sum()),
        drafted=int(rounds_of(rows, "drafted").sum()),
        accepted=int(rounds_of(rows, "accepted").sum()),
        seconds=float(rows["total_s"].sum()),
        ar_tokens=int(baseline["tokens"].sum()),
        ar_seconds=float(baseline["total_s"].sum()),
    )


def ratios(found: Counts, shape: str = USUAL_SHAPE) -> dict[str, float | None]:
    """The ratios of the decode tables that need no interval."""
    return {
        "acceptance_rate": ratio(found.accepted, found.drafted) if shape == USUAL_SHAPE else None,
        "acceptance_length": ratio(found.accepted, found.rounds),
        "tokens_per_round": ratio(found.tokens, found.rounds),
        "tokens_per_s": ratio(found.tokens, found.seconds),
        "ar_tokens_per_s": ratio(found.ar_tokens, found.ar_seconds),
    }


def cost_ratio(cell: Measured) -> float | None:
    """Draft seconds a drafted token over baseline seconds a token, both without prefill.

    What a chain drafts is as many tokens as steps, so this is the cost of a draft step in baseline steps, with all that
    belongs to drafting in it.
    """
    rows, baseline = cell.headline, cell.headline_baseline
    step = ratio(baseline["decode_s"].sum(), baseline["tokens"].sum())
    drafted = ratio(rounds_of(rows, "draft_s").sum(), rounds_of(rows, "drafted").sum())
    return None if drafted is None or not step else drafted / step


def time_shares(cell: Measured) -> dict[str, float | None]:
    """Shares of total time, which add up to 1, and milliseconds of a round by phase."""
    rows = cell.headline
    phases = {name: float(rounds_of(rows, f"{name}_s").sum()) for name in ("draft", "target", "other")}
    prefill = float((rows["prefill_target_s"] + rows["prefill_draft_s"]).sum())
    total, rounds = sum(phases.values()) + prefill, int(rows["rounds"].sum())
    shares = {f"{name}_share": ratio(seconds, total) for name, seconds in phases.items()}
    milliseconds = {f"{name}_ms_per_round": ratio(1000 * seconds, rounds) for name, seconds in phases.items()}
    return {**shares, "prefill_share": ratio(prefill, total), **milliseconds, "cost_ratio": cost_ratio(cell)}


def latencies(rows: pd.DataFrame) -> np.ndarray:
    """Milliseconds per token by round: the time of a round over the tokens it gave."""
    seconds = rounds_of(rows, "draft_s") + rounds_of(rows, "target_s") + rounds_of(rows, "other_s")
    own_token = rounds_of(rows, "source") != "cut"
    tokens = np.maximum(rounds_of(rows, "accepted") + own_token, 1)
    return 1000 * seconds / tokens


def draft_bytes(cell: Measured) -> int:
    """Bytes of weights that one draft step reads."""
    return int(cell.speculative["draft_weights_bytes"].max())


def details(cell: Measured) -> dict:
    """What the long table of cells adds: what was left out, times, memory, and the ids of machine and code."""
    rows, baseline = cell.headline, cell.headline_baseline
    known = len(rows) > 0
    waits = latencies(rows) if known else []
    tokens, decode = rows["tokens"].sum(), rows["decode_s"].sum()
    return {
        "static": bool(cell.speculative["static"].iloc[0]),
        "rows": len(cell.speculative),
        "rows_looped": int(cell.looped.sum()),
        "rows_unequal": int((cell.unequal & ~cell.looped).sum()),
        "loop_share": ratio(int(cell.looped.sum()), len(cell.looped)),
        "speedup_mean_of_prompts": mean_of_ratios(*cell.arms()),
        "decode_tokens_per_s": ratio(tokens, decode),
        "ar_decode_tokens_per_s": ratio(baseline["tokens"].sum(), baseline["decode_s"].sum()),
        "ttft_ms": 1000 * float(rows["ttft_s"].mean()) if known else None,
        "ar_ttft_ms": 1000 * float(baseline["ttft_s"].mean()) if known else None,
        "latency_p50_ms": percentile(waits, 0.5) if known else None,
        "latency_p90_ms": percentile(waits, 0.9) if known else None,
        "latency_p95_ms": percentile(waits, 0.95) if known else None,
        "weights_bytes": int(cell.speculative["weights_bytes"].max()),
        "draft_weights_bytes": draft_bytes(cell),
        "cache_bytes": int(cell.speculative["cache_bytes"].max()),
        "peak_bytes": int(cell.speculative["peak_bytes"].max()),
        **{name: cell.identity(name) for name in ("hardware_id", "environment_id", "model_id", "code_id")},
    }
