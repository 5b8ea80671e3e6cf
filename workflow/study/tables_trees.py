"""Tables of trees and verification rules: rows, costs of a round, confidence, and what a lossy rule does.

In every one the draft's shape and its rule stand beside the cell.  A gain compares two cells, each over its own
baseline, prompts resampled jointly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from workflow.study import legal, metrics, statistics
from workflow.study.cells import Cell
from workflow.study.config import StudyConfig
from workflow.study.experiments_trees import exact_partner, improvements
from workflow.study.grid import draws
from workflow.study.measured import Measured
from workflow.study.tables_rows import Cells, Rows, decode_row, form, gain_columns, identity

BINS = 10
EMPTY = {"gain": None, "gain_low": None, "gain_high": None}


def contenders(config: StudyConfig, cells: Cells) -> Rows:
    """A row a cell, for the tables of shapes and of verification rules."""
    return [tree_row(found, cells) for found in cells.values()]


def tree_row(found: Measured, cells: Cells) -> dict:
    return decode_row(found, cells) | form(found.cell) | {"lossless": lossless(found.cell)}


def lossless(cell: Cell) -> bool:
    return legal.VERIFIERS[cell.verifier].lossless


def ablation(config: StudyConfig, cells: Cells) -> Rows:
    """The baseline, and each improvement with its gain: over no improvement, DDD's over EAGLE-2's tree."""
    rows = []
    for found in cells.values():
        if found.cell.policy == "ar":
            rows.append(tree_row(found, cells) | {"improvement": None, "over": None} | EMPTY)
    for draw in draws(config):
        arms = improvements(config, draw)
        for name, cell in arms.items():
            over = config.experiments.ablation.beside if name == "ddd" else "none"
            gained = gain_columns(cells[cell], cells[arms[over]])
            rows.append(tree_row(cells[cell], cells) | {"improvement": name, "over": over} | gained)
    return rows


def round_costs(config: StudyConfig, cells: Cells) -> Rows:
    """What a round drafts, expects, gets and costs.

    Expected is the sum of the draft's confidences, which would be accepted if they were right; realised is what was.
    Both leave out rounds that were cut, whose verdict is not known to the end.
    """
    return [identity(cell) | form(cell) | _round_cost(found) for cell, found in cells.items()]


def _round_cost(found: Measured) -> dict:
    rows, baseline = found.headline, found.headline_baseline
    whole = metrics.rounds_of(rows, "source") != "cut"
    confidence = metrics.rounds_of(rows, "confidence")[whole]
    accepted, drafted = metrics.rounds_of(rows, "accepted"), metrics.rounds_of(rows, "drafted")
    expected = [float(np.sum(one)) for one in confidence] if any(len(one) for one in confidence) else []
    steps = baseline["rounds"].sum()
    return {
        "rounds": int(rows["rounds"].sum()),
        "drafted_per_round": metrics.ratio(drafted.sum(), len(drafted)),
        "expected_length": metrics.ratio(sum(expected), len(expected)),
        "realised_length": metrics.ratio(accepted[whole].sum(), int(np.sum(whole))),
        **metrics.time_shares(found),
        "ar_step_ms": metrics.ratio(1000 * baseline["decode_s"].sum(), steps),
    }


def confidence(config: StudyConfig, cells: Cells) -> Rows:
    """Nodes by the draft's confidence in their path, and the share of them that was accepted; cut rounds left out."""
    rows = []
    for cell, found in cells.items():
        for low, guesses, kept, total in _bins(found):
            if guesses:
                values = {"low": low / BINS, "high": (low + 1) / BINS, "guesses": guesses, "kept": kept}
                means = {"mean_confidence": total / guesses, "share_kept": kept / guesses}
                rows.append(identity(cell) | form(cell) | values | means)
    return rows


def _bins(found: Measured) -> list[tuple[int, int, int, float]]:
    """(bin, nodes, accepted ones, sum of their confidences) of a cell's nodes."""
    rows = found.headline
    counts = np.zeros((BINS, 2), dtype=int)
    sums = np.zeros(BINS)
    columns = (metrics.rounds_of(rows, name) for name in ("source", "confidence", "path"))
    for source, chances, path in zip(*columns, strict=True):
        if source == "cut":
            continue
        for node, chance in enumerate(chances):
            place = min(BINS - 1, int(chance * BINS))
            counts[place] += (1, node in path)
            sums[place] += chance
    return [(place, int(a), int(b), float(sums[place])) for place, (a, b) in enumerate(counts)]


def example_tree(config: StudyConfig, cells: Cells) -> Rows:
    """The nodes of one round's tree, as the cell keeps it; the last row is the token that the target put behind."""
    rows = []
    for cell, found in cells.items():
        example: Mapping = found.metadata.get("example") or {"nodes": []}
        shared = identity(cell) | form(cell) | {"prompt_id": example.get("prompt_id"), "round": example.get("round")}
        for number, node in enumerate(example["nodes"]):
            values = {name: node[name] for name in ("confidence", "accepted")} | {"parent": _parent(node["parent"])}
            rows.append(shared | values | {"node": number, "text": json.dumps(node["text"])})
        if example["nodes"]:
            last = max((n for n, node in enumerate(example["nodes"]) if node["accepted"]), default=-1)
            values = {"node": len(example["nodes"]), "parent": _parent(last), "confidence": None, "accepted": False}
            rows.append(shared | values | {"text": json.dumps(example["next"])})
    return rows


def _parent(node: int) -> int | None:
    """Empty for the root, which is no node of the draft."""
    return None if node < 0 else node


def lossy(config: StudyConfig, cells: Cells) -> Rows:
    """What each lossy rule costs in the target's own eyes, and what it gains over the exact rule of the same draft."""
    rows = []
    for cell, found in cells.items():
        if cell.policy == "ar" or lossless(cell):
            continue
        exact = exact_partner(list(cells), cell)
        counted = metrics.counts(found)
        differing = found.headline["differing"]
        share = None if differing.isna().any() else metrics.ratio(differing.sum(), counted.tokens)
        ratio = statistics.perplexity_ratio(*(_likelihood(rows) for rows in (found.headline, found.headline_baseline)))
        rows.append(
            identity(cell)
            | form(cell)
            | {
                "exact_verifier": exact and exact.verifier,
                "prompts": counted.prompts,
                "tokens": counted.tokens,
                "perplexity": _perplexity(found.headline),
                "exact_perplexity": exact and _perplexity(cells[exact].headline),
                "ar_perplexity": _perplexity(found.headline_baseline),
                "perplexity_ratio": ratio.value,
                "perplexity_ratio_low": ratio.low,
                "perplexity_ratio_high": ratio.high,
                "differing_share": share,
            }
            | (gain_columns(found, cells[exact]) if exact else EMPTY)
        )
    return rows


def _likelihood(rows) -> statistics.Arm:
    """Nats and tokens by prompt."""
    sums = rows.groupby(level="prompt_id", sort=True)[["nll", "tokens"]].sum()
    return statistics.Arm(tuple(sums.index), sums["nll"].to_numpy(float), sums["tokens"].to_numpy(float))


def _perplexity(rows) -> float | None:
    nats = metrics.ratio(rows["nll"].sum(), rows["tokens"].sum())
    return None if nats is None else float(np.exp(nats))
