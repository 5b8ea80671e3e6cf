"""What the named values of every section share: which row to speak of, and which verdict an interval allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workflow.study.named import Values


def verdict_of(low: float | None, high: float | None) -> str:
    """Where an interval lies against 1; without one nothing is claimed."""
    if low is None or high is None:
        return "not distinguishable"
    return "faster" if low > 1 else "slower" if high < 1 else "not distinguishable"


def foremost(rows: Sequence[Mapping], ratio: str = "speedup", verdict: str = "verdict") -> Mapping:
    """The row to speak of: the largest ratio among those that are surely faster, else the largest of all."""
    return max(rows, key=lambda row: (row[verdict] == "faster", row[ratio]))


def plain_dict(row: Values) -> dict:
    return {name: row.get(name) for name in row}


def unique(items: Sequence) -> list:
    return list(dict.fromkeys(items))


def verdict_counts(rows: Sequence[Mapping]) -> dict:
    counts = {name: sum(row["verdict"] == name for row in rows) for name in ("faster", "slower")}
    counts["open"] = len(rows) - sum(counts.values())
    summary = next((name for name in counts if counts[name] == len(rows)), "mixed")
    return counts | {"all": len(rows), "summary": summary}
