"""From tables to named values: choose rows, join costs, and decide which sentence applies.

No words are made here.  A choice of wording is a key (`faster`, `drafting`, `identical`) that the templates turn into
a sentence in their language.

The explanation of every speed-up is one identity.  With tau the tokens a round yields and r the time of a round in
units of one baseline step, the decode speed-up is tau / r; r splits into drafting, scoring and the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

from specdec.measure.cost_model import expected_tokens
from workflow.study import setting, values_drafts
from workflow.study.named import ReportError, Values, is_empty, locate
from workflow.study.results import Results
from workflow.study.values_measure import measure_values
from workflow.study.values_question import question_values
from workflow.study.values_rows import foremost, plain_dict, unique, verdict_counts, verdict_of
from workflow.study.values_trees import tree_sections

ROW_LIMIT = 200
"""Longest table printed; the CSV files hold the rest."""

KEY = ("draft", "policy", "k", "threshold", "temperature", "seed")
CELL_COLUMNS = (
    *("draft", "policy", "k", "threshold", "temperature", "seed", "shape", "nodes", "verifier", "dtype", "prompts"),
    *("tokens", "rounds", "acceptance_rate", "tokens_per_round", "tokens_per_s", "ar_tokens_per_s", "speedup"),
    *("speedup_low", "speedup_high", "rows_looped", "rows_unequal"),
)
"""Columns of the appendix's table of cells, as far as they hold anything."""

ENOUGH = 30
"""Rounds that must have reached a position before the text speaks of it."""


def build_values(config: Mapping, results: Results) -> Values:
    """Everything the templates may name."""
    tables = {name: [locate(row, name) for row in rows] for name, rows in results.tables.items()}
    shares = share_rows(tables["time_shares"], tables["cells"])
    fixed = fixed_values(tables["fixed_k"], tables["positions"], shares)
    training = values_drafts.training_values(tables, config, results.metadata)
    dynamic = dynamic_values(tables["dynamic_k"], shares, setting.calibration(config))
    trees = tree_sections(tables)
    return Values(
        {
            "study": setting.study_values(config, results, fixed),
            "machine": setting.machine_values(results.metadata),
            "fixed": fixed,
            "dynamic": dynamic,
            "fastest": foremost([fixed["best"], dynamic["fastest"], trees["trees"]["best"]]),
            "positions": position_values(tables["positions"], fixed["temperature"]),
            "drafts": values_drafts.draft_values(tables["drafts"], fixed["temperature"], training),
            "training": training,
            "comparison": question_values(
                tables["drafts"], fixed["temperature"], training, results.tables, setting.calibration(config)
            ),
            "lossless": losslessness_values(tables["losslessness"]),
            "cells": cell_values(results.tables["cells"]),
            **trees,
            "config": setting.flatten(setting.in_force(config)),
            "limit": ROW_LIMIT,
            **measure_values(results.tables),
        }
    )


def key_of(row: Mapping) -> tuple:
    return tuple(row.get(name) for name in KEY)


# --- where the time goes ---------------------------------------------------------------------


def share_rows(rows: list[Values], cells: list[Values]) -> dict[tuple, dict]:
    """Time shares by cell, with every phase also in units of one baseline step.

    The step is that of the baseline decoded beside the cell in the same process, so a machine that drifts between
    cells does not bend the prices.
    """
    number_format = cells[0].get("dtype") if cells else None
    steps: dict[tuple, float] = {}
    for cell in cells:
        if cell.get("dtype") == number_format and cell.get("shape", "chain") == "chain":
            # of the cells that differ in their rule alone, the usual rule's comes first
            steps.setdefault(key_of(cell), 1000 / cell["ar_decode_tokens_per_s"])
    out = {}
    for row in rows:
        step = steps.get(key_of(row))
        if step is None:
            raise ReportError(
                f"table 'cells' has no row for {row['draft']} {row['policy']} K={row['k']} of 'time_shares'"
            )
        costs = {f"{phase}_cost": row[f"{phase}_ms_per_round"] / step for phase in ("draft", "target", "other")}
        out[key_of(row)] = plain_dict(row) | costs | {"round_cost": sum(costs.values()), "step_ms": step}
    return out


def priced(row: Values, shares: Mapping[tuple, dict]) -> dict:
    """The row with its costs, if the time shares know it, and why it is as fast as it is."""
    out = plain_dict(row) | {"per_round": None, "cause": None}
    if row.get("drafted") is not None and row.get("rounds"):
        out["per_round"] = row["drafted"] / row["rounds"]
    share = shares.get(key_of(row))
    if share is None:
        return out
    out |= {name: share[name] for name in share if name not in out}
    out["accounted"] = row["tokens_per_round"] / share["round_cost"]
    out["draft_step_cost"] = share.get("cost_ratio")
    out["ceiling"] = row["tokens_per_round"] / (share["target_cost"] + share["other_cost"])
    extra = {
        "drafting": share["draft_cost"],
        "scoring": share["target_cost"] - 1,
        "overhead": share["other_cost"],
    }
    cause = max(extra, key=extra.get)
    # Nothing costs much, and yet nothing is gained: too few tokens are accepted.
    out["cause"] = cause if extra[cause] > 0.15 else "acceptance"
    return out


# --- fixed depth -----------------------------------------------------------------------------


def fixed_values(rows: list[Values], positions: list[Values], shares: Mapping[tuple, dict]) -> dict:
    """The baseline row, each draft's rows with costs and the independence model beside them, and the best of all."""
    noise = next((row for row in rows if row["policy"] == "ar"), None)
    if noise is None:
        raise ReportError("table 'fixed_k' has no row of the baseline against itself (draft none, policy ar)")
    temperature = min(row["temperature"] for row in rows)
    headline = [row for row in rows if row["policy"] != "ar" and row["temperature"] == temperature]
    if not headline:
        raise ReportError("table 'fixed_k' has no row of a draft: there is nothing to compare with the baseline")
    first = {
        key_of(p): p.get("conditional")
        for p in positions
        if p["position"] == 1 and p["policy"] == "fixed" and p["temperature"] == temperature
    }
    drafts = []
    for name in unique([row["draft"] for row in headline]):
        own = [modelled(priced(row, shares), first) for row in headline if row["draft"] == name]
        own.sort(key=lambda row: row["k"])
        best = foremost(own)
        drafts.append(
            {
                "name": name,
                "rows": own,
                "best": best,
                "first": own[0],
                "last": own[-1],
                "trend": depth_trend(own, best),
                "gap": model_gap(own),
            }
        )
    everything = [row for draft in drafts for row in draft["rows"]]
    known = noise.has("speedup_low") and noise.has("speedup_high")
    holds = known and noise["speedup_low"] <= 1 <= noise["speedup_high"]
    return {
        "rows": [plain_dict(row) for row in rows],
        "noise": plain_dict(noise) | {"band": "holds" if holds else "misses" if known else "unknown"},
        "temperature": temperature,
        "several_temperatures": len({row["temperature"] for row in rows}) > 1,
        "drafts": drafts,
        "best": foremost(everything),
        "worst": min(everything, key=lambda row: row["speedup"]),
        "deepest": max(row["k"] for row in everything),
        "counts": verdict_counts(everything),
        "priced": [row for row in everything if row.get("round_cost") is not None],
    }


def modelled(row: dict, first: Mapping[tuple, float]) -> dict:
    """Beside the measured tokens per round, what independence at the first position's rate would give."""
    alpha = first.get(key_of(row))
    return row | {"tau_model": None if alpha is None else expected_tokens(alpha, row["k"])}


def depth_trend(rows: list[dict], best: dict) -> str:
    """Where along K the best speed-up lies."""
    if len(rows) == 1:
        return "single"
    return "shallow" if best is rows[0] else "deep" if best is rows[-1] else "inside"


def model_gap(rows: list[dict]) -> str:
    """Whether the independence model overstates, understates or meets the tokens per round at the largest K."""
    last = rows[-1]
    if last["tau_model"] is None:
        return "unknown"
    ratio = last["tokens_per_round"] / last["tau_model"]
    return "above" if ratio > 1.05 else "below" if ratio < 0.95 else "meets"


# --- dynamic depth ---------------------------------------------------------------------------


def dynamic_values(rows: list[Values], shares: Mapping[tuple, dict], calibration: Mapping) -> dict:
    """Each draft's rules against its best fixed depth, and what the comparison says in all."""
    temperature = min(row["temperature"] for row in rows)
    headline = [row for row in rows if row["temperature"] == temperature and row["policy"] not in ("ar", "fixed")]
    if not headline:
        raise ReportError("table 'dynamic_k' has no row of a dynamic rule")
    drafts = []
    for name in unique([row["draft"] for row in headline]):
        fixed = [row for row in rows if row["draft"] == name and row["policy"] == "fixed"]
        fixed = [row for row in fixed if row["temperature"] == temperature]
        if not fixed:
            raise ReportError(f"table 'dynamic_k' has no fixed depth for draft {name!r} to compare its rules with")
        reference = next((row for row in fixed if row.get("gain") == 1), None)
        reference = reference or max(fixed, key=lambda row: row["speedup"])
        rules = [judged(priced(row, shares)) for row in headline if row["draft"] == name]
        known = calibration.get(name) or {}
        drafts.append(
            {
                "name": name,
                "reference": priced(reference, shares),
                "chosen_on": "calibration" if known.get("best_k") == reference["k"] else "measured",
                "provenance": known.get("provenance"),
                "rules": rules,
                "best": foremost(rules, "gain", "gain_verdict"),
                "worst": min(rules, key=lambda row: row["gain"]),
                "counts": verdict_counts([{"verdict": row["gain_verdict"]} for row in rules]),
            }
        )
    rules = [row for draft in drafts for row in draft["rules"]]
    return {
        "rows": [plain_dict(row) for row in rows if row["policy"] != "ar"],
        "drafts": drafts,
        "best": foremost([row for row in rules if row["holds"]] or rules, "gain", "gain_verdict"),
        "fastest": foremost(rules),
        "policies": unique([row["policy"] for row in headline]),
        "counts": verdict_counts([{"verdict": row["gain_verdict"]} for row in rules]),
        "survive": sum(row["holds"] for row in rules),
        "depth": max(row["k"] for row in headline),
    }


def judged(row: dict) -> dict:
    """The row with the verdict of its gain, and whether a gain outlives Holm's adjustment."""
    if is_empty(row.get("gain")):
        raise ReportError(f"table 'dynamic_k' gives no gain for {row['draft']} {row['policy']} K={row['k']}")
    verdict = verdict_of(row.get("gain_low"), row.get("gain_high"))
    adjusted = row.get("gain_p_holm")
    holds = verdict == "faster" and adjusted is not None and adjusted < 0.05
    return row | {"gain_verdict": verdict, "holds": holds}


# --- acceptance by position, losslessness ----------------------------------------------------


def position_values(rows: list[Values], temperature: float) -> dict:
    """Per draft, the deepest fixed chain's acceptance by position, and which way it goes."""
    fixed = [row for row in rows if row["policy"] == "fixed" and row["temperature"] == temperature]
    drafts = []
    for name in unique([row["draft"] for row in fixed]):
        deepest = max(row["k"] for row in fixed if row["draft"] == name)
        own = sorted((r for r in fixed if r["draft"] == name and r["k"] == deepest), key=lambda r: r["position"])
        solid = [row for row in own if row["reached"] >= ENOUGH and row.has("conditional")] or own[:1]
        later, trend = position_trend(solid)
        if not solid[0].has("conditional"):
            continue
        drafts.append(
            {"name": name, "k": deepest, "rows": own, "first": solid[0], "last": solid[-1], "trend": trend}
            | {"later": later, "solid": len(solid)}
        )
    return {"drafts": drafts, "enough": ENOUGH, "depth": max((draft["k"] for draft in drafts), default=0)}


def position_trend(rows: Sequence[Mapping]) -> tuple[float | None, str]:
    """The pooled acceptance of the positions after the first, and whether it differs by two standard errors."""
    reached, accepted = (sum(row[name] for row in rows[1:]) for name in ("reached", "accepted"))
    if not reached:
        return None, "unknown"
    first, later = rows[0]["conditional"], accepted / reached
    error = sqrt(first * (1 - first) / rows[0]["reached"] + later * (1 - later) / reached)
    sure = abs(later - first) > 2 * error
    return later, ("rises" if later > first else "falls") if sure else "level"


def losslessness_values(rows: list[Values]) -> dict:
    """Totals over the audited cells.  `identical` counts prompts whose tokens equal the baseline's."""
    prompts, identical = sum(row["prompts"] for row in rows), sum(row["identical"] for row in rows)
    real, near = sum(row["real_mismatches"] for row in rows), sum(row["near_ties"] for row in rows)
    differing = prompts - identical
    verdict = "unchecked" if not rows else "identical" if differing == 0 else "near_ties" if real == 0 else "broken"
    return {
        "rows": [plain_dict(row) for row in rows],
        "prompts": prompts,
        "tokens": sum(row["tokens"] for row in rows),
        "identical": identical,
        "differing": differing,
        "near_ties": near,
        "real": real,
        "gap": max((row["gap"] for row in rows if row.has("gap")), default=None),
        "verdict": verdict,
        "dtypes": unique([row["dtype"] for row in rows]),
        "cells": len(rows),
    }


def cell_values(rows: list[dict]) -> dict:
    """The long table of cells, cut to the limit, with the columns that fit a page."""
    columns = [name for name in CELL_COLUMNS if any(not is_empty(row.get(name)) for row in rows)]
    numeric = [name for name in columns if any(isinstance(row.get(name), int | float) for row in rows)]
    shown = rows[:ROW_LIMIT]
    return {"rows": shown, "total": len(rows), "cut": len(rows) > ROW_LIMIT, "columns": columns, "numeric": numeric}
