"""What was run and where, as named values: pair, drafts, prompts, the configuration in force, the machine."""

from __future__ import annotations

import re
from collections.abc import Mapping

from workflow.study.results import Results

LONG = 120
"""Longest value in the short table of the machine: flags and the like go to the appendix only."""


def study_values(config: Mapping, results: Results, fixed: Mapping) -> dict:
    """What was compared, as far as configuration and tables say."""
    pair = config.get("pair") or fixed["noise"]["pair"]
    chosen = (config.get("pairs") or {}).get(pair) or {}
    size = (config.get("studies") or {}).get(config.get("study")) or {}
    specs = chosen.get("drafts") or {}
    names = [draft["name"] for draft in fixed["drafts"]]
    compared = list(dict.fromkeys(row["draft"] for row in results.tables["drafts"] if row["policy"] != "ar"))
    cells = results.tables["cells"]
    return {
        "pair": pair,
        "target": chosen.get("target"),
        "draft_specs": [{"name": name, **specs[name]} for name in compared if name in specs],
        "absent": [name for name in chosen.get("optional") or () if name not in compared],
        "draft_source": config.get("draft_source"),
        "draft_recipe": config.get("draft_recipe"),
        "size_name": config.get("study"),
        "max_new_tokens": size.get("max_new_tokens"),
        "grid": size.get("thresholds") == "all",
        "dtype": (config.get("run") or {}).get("dtype"),
        "prompts": max(row["prompts"] for row in fixed["rows"] if row["temperature"] == fixed["temperature"]),
        "cells": len(cells),
        "drafts": names,
        "depths": sorted({row["k"] for draft in fixed["drafts"] for row in draft["rows"]}),
        "categories": [{"name": name, "prompts": count} for name, count in results.categories.items()] or None,
        "loops": left_out(cells, "rows_looped"),
        "unequal": left_out(cells, "rows_unequal"),
    }


def left_out(cells: list[dict], column: str) -> dict | None:
    """How many generations of all cells a filter left out, where the cells say so."""
    if not cells or any(row.get(column) is None or not row.get("rows") for row in cells):
        return None
    flagged, total = sum(row[column] for row in cells), sum(row["rows"] for row in cells)
    return {"flagged": flagged, "all": total, "share": flagged / total}


def in_force(config: Mapping) -> dict:
    """The configuration without the pairs, sizes and calibrations that were not used."""
    pair, study = config.get("pair"), config.get("study")
    used = {"pairs": pair, "calibration": pair, "training": pair, "studies": study}
    out = {}
    for key, value in config.items():
        if key in used and isinstance(value, Mapping):
            value = {used[key]: value[used[key]]} if used[key] in value else {}
        if key == "models" and isinstance(value, Mapping):
            chosen = (config.get("pairs") or {}).get(pair) or {}
            own = {chosen.get("target")} | {d.get("model") for d in (chosen.get("drafts") or {}).values()}
            value = {name: spec for name, spec in value.items() if name in own}
        out[key] = value
    return out


def calibration(config: Mapping) -> Mapping:
    """Calibrated values of the pair in force, by draft."""
    return (config.get("calibration") or {}).get(config.get("pair")) or {}


def machine_values(metadata: Mapping) -> dict:
    """The fingerprint, flattened for its tables; the name of the processor is the accelerator's where there is one."""
    parts = {name: metadata[name] for name in ("hardware", "environment", "model", "code") if metadata.get(name)}
    parts = {name: part for name, part in parts.items() if isinstance(part, Mapping)}
    hardware, environment = parts.get("hardware", {}), parts.get("environment", {})
    accelerator = hardware.get("accelerator") or {}
    name = (accelerator.get("name") if isinstance(accelerator, Mapping) else accelerator) or hardware.get("processor")
    plain = {key: value for key, value in environment.items() if not isinstance(value, Mapping | list)}
    short = [item for item in flatten(dict(hardware) | plain) if telling(item["value"])]
    return {
        "processor": " ".join(str(name).split()) if name else None,
        "width_invariant": environment.get("width_invariant"),
        "short": short,
        "records": [item for name, part in parts.items() for item in flatten(part, name)],
    }


def flatten(data: Mapping, prefix: str = "") -> list[dict]:
    """Nested settings as `key`, `value` pairs with dotted keys; short lists stay on one line."""
    out = []
    for key, value in data.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping) and value:
            out += flatten(value, name)
        elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
            out += [pair for index, item in enumerate(value) for pair in flatten({str(index): item}, name)]
        elif isinstance(value, list | tuple | set | frozenset):
            out.append({"key": name, "value": ", ".join(line(item) for item in value)})
        else:
            out.append({"key": name, "value": "null" if value is None else str(value)})
    return out


def telling(value: str) -> bool:
    """Whether a recorded value says something to a reader: no hash, no long list, not empty."""
    return value not in ("", "null") and len(value) <= LONG and not re.fullmatch(r"[0-9a-f]{12,}", value)


def line(value: object) -> str:
    """An item of a list; a list in a list is set apart by spaces."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
