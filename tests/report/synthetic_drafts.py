"""The tables about drafts for a synthetic results folder: built from the decode rows, with or without trained heads."""

from __future__ import annotations

import csv
from pathlib import Path

from workflow.study.columns import COLUMNS

CATEGORIES = ("chat", "code")
EAGLE = {"eagle3": (0.6, 0.0, 0.08, 1.0), "eagle1": (0.55, -0.08, 0.12, 1.0)}
"""Acceptance at the first position, its change a position, cost of a step, share of rounds drafted."""
PASSES = {"eagle3": 6_000_000, "eagle1": 2_000_000}
LAYERS = {"small": 6, "small_3_layers": 3}


def drafts_rows(rows: list[dict], shapes: dict[str, tuple], trained: bool) -> list[dict]:
    """A row of all prompts and one of each category on the project's prompts; on the others at K = 4 alone."""
    table = []
    for row in rows:
        alpha, slope, cost, _ = shapes.get(row["draft"], (0.0, 0.0, None, 1.0))
        sets = ("project", "own_kind") if row["k"] in (0, 4) else ("project",)
        for prompt_set in sets:
            for category in ("all", *(CATEGORIES if prompt_set == "project" else ())):
                better = 1.2 if prompt_set == "own_kind" and row["draft"] in PASSES else 1.0
                new = row | {"prompt_set": prompt_set, "category": category, "cost_ratio": cost}
                new |= {
                    f"acceptance_at_{i}": better * (alpha + slope * i) if i <= row["k"] else None for i in range(1, 9)
                }
                new |= {"tokens_per_round": better * row["tokens_per_round"]}
                known = trained and row["draft"] in PASSES
                new |= {"train_tokens": 1_000_000 if known else None, "train_hours": 2.5 if known else None}
                new |= {"train_token_passes": PASSES[row["draft"]] if known else None}
                table.append(new | {"draft_weights_bytes": 20_000_000, "rows": 8, "rows_looped": 0})
    return table


def training_tables(pair: str, trained: bool, processor: str) -> dict[str, list[dict]]:
    known = PASSES | {"small": PASSES["eagle3"]}
    heads = [_head(pair, draft, passes, processor) for draft, passes in PASSES.items()] if trained else []
    if trained:
        own = {"method": "distill", "steps": None, "prompt": None, "vocabulary": 8192, "taps": "0 1 2 3 28 29"}
        heads.append(_head(pair, "small", PASSES["eagle3"], processor) | own | simulated(2.3))
    curves = [
        {
            "pair": pair,
            "draft": draft,
            "layers": LAYERS.get(draft),
            "shipped": draft in known,
            "stage": 1,
            "passes": passes * i // 4,
            "updates": 100 * i,
            "hours": 0.5 * i,
            "loss": 9 / i,
        }
        | simulated(1.5 + 0.15 * i - (0.2 if draft not in known else 0))
        for draft, passes in (known | {"small_3_layers": 4_000_000}).items()
        for i in range(1, 5)
        if trained
    ]
    small = {"pair": pair, "base": "base", "method": "eagle3", "token_passes": 50_000, "updates": 40}
    ablations = [
        small | {"name": "base", "changes": None} | simulated(1.4),
        small | {"name": "one_step", "changes": "steps = 1"} | simulated(1.31),
        small | {"name": "loss_of_acceptance", "changes": "acceptance = 0.5"} | simulated(1.43),
        small | {"base": "long", "name": "long", "changes": None, "token_passes": 300_000} | simulated(1.8),
        small | {"base": "long", "name": "no_fusion", "changes": "taps = 27", "token_passes": 300_000} | simulated(1.7),
    ]
    losses = small | {"base": "forward_kl", "method": "distill", "token_passes": 100_000}
    ablations += [
        losses | {"name": "forward_kl", "changes": None} | simulated(1.52),
        losses | {"name": "one_hot", "changes": "loss = one_hot"} | simulated(1.47),
    ]
    small = {"training_ablations": ablations, "training_layerskip": [_own_target(pair)]}
    return {"training": heads, "training_curves": curves} | (small if trained else dict.fromkeys(small, []))


def _own_target(pair: str) -> dict:
    """The record of a target that was trained for its sixth layer."""
    row = {"pair": pair, "target": "smollm2-135m-instruct", "layers": 30, "exit": 6, "taught": "4 6 8", "dropout": 0.1}
    row |= {"weight": 1.0, "held_out": 40, "token_passes": 100_000, "updates": 140, "hours": 0.14}
    row |= {f"untrained_{name}": value for name, value in simulated(1.03).items()} | simulated(1.62)
    return row | {"agreement": 0.9, "divergence": 0.125, "processor": "AMD EPYC", "commit": "0000000"}


def simulated(tau: float) -> dict:
    return {"tokens_per_round": tau, **{f"acceptance_at_{place}": tau / 4 for place in (1, 2, 3, 4)}}


def _head(pair: str, draft: str, passes: int, processor: str) -> dict:
    row = {name: None for name in COLUMNS["training"]} | {name: 0 for name in COLUMNS["training"] if "dropped_" in name}
    row |= {"pair": pair, "draft": draft, "method": draft, "target": "smollm2-135m-instruct", "dtype": "bfloat16"}
    row |= {"target_id": "sha256:0f3a8c", "conversations": 5000, "held_out": 110, "answer_tokens": 1_000_000}
    row |= {
        "written": 7400,
        "dropped": 2290,
        "dropped_loop": 1200,
        "dropped_endless_request": 1000,
        "dropped_duplicate": 90,
    }
    row |= {"learn": "answers"}
    row |= {"token_passes": passes, "epochs": passes / 1e6, "updates": 5000, "hours": 2.5, "batch": 8, "warmup": 50}
    row |= {"steps": 4 if draft == "eagle3" else 1, "vocabulary": 8192 if draft == "eagle3" else None, "prompt": 64}
    row |= {"before_passes": 0, "before_hours": 0.0, "own_head": draft == "eagle3", "optimiser": "muon"}
    row |= {"head_layers": 2 if draft == "eagle3" else 1, "copies": draft == "eagle3"}
    row |= {"peak_rate": 0.001 if draft == "eagle3" else 0.0003, "seed": 0, "taps": "2 15 27", "head_bytes": 20_000_000}
    return row | simulated(2.1 if draft == "eagle3" else 1.8) | {"processor": processor, "commit": "0000000"}


def write_typed(path: Path, table: str, rows: list[dict]) -> None:
    """A CSV file with the columns of a table, which may have no rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as sink:
        writer = csv.DictWriter(sink, list(COLUMNS[table]))
        writer.writeheader()
        writer.writerows(rows)
