"""Do two samples of continuations come from one law?  A chi-squared test of homogeneity, with its power.

Continuations that are rare in both samples together are put into one group, so that every group is expected to hold
enough for the test.  The power says what a test that finds nothing is worth: the chance that it would have found a rule
that goes wrong in a share `shift` of its continuations, there writing the most frequent one whatever the target wants.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from scipy import stats

from specdec.errors import UserError
from workflow.study.cells import Cell
from workflow.study.config import StudyConfig
from workflow.study.statistics import holm
from workflow.study.tables_rows import form, identity

ENOUGH = 5
"""Expected in a group, of each sample."""
LEVEL = 0.05

Counts = Mapping[tuple[int, ...], int]


def rows(config: StudyConfig, cells: list[Cell], root: Path) -> list[dict]:
    """A row for each rule's cell against the baseline's, the first of `cells`; p-values adjusted over the rules."""
    shift = config.experiments.verification.distribution.shift
    (plain, _), *others = [read(root / f"results/distribution/{cell.pair}/{cell.name}.json") for cell in cells]
    found = []
    for cell, (counts, prompt_id) in zip(cells[1:], others, strict=True):
        result = compare(plain, counts, shift)
        length = len(next(iter(counts)))
        shared = {"prompt_id": prompt_id, "continuations": sum(counts.values()), "tokens": length, "shift": shift}
        found.append(identity(cell) | form(cell) | shared | result)
    for row, adjusted in zip(found, holm([row["p_value"] for row in found]), strict=True):
        row["p_holm"] = adjusted
    return found


def read(path: Path) -> tuple[Counts, str]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {tuple(tokens): count for tokens, count in data["counts"]}, data["prompt_id"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: no file of continuations ({error}); delete it and run again") from None


def compare(first: Counts, second: Counts, shift: float) -> dict:
    """Groups, statistic, p-value and power.  With fewer than two groups there is nothing to test."""
    table = grouped(first, second)
    groups = table.shape[1]
    if groups < 2:
        return {"groups": groups, "statistic": None, "p_value": None, "power": None}
    result = stats.chi2_contingency(table, correction=False)
    return {
        "groups": groups,
        "statistic": float(result.statistic),
        "p_value": float(result.pvalue),
        "power": power(table, shift),
    }


def grouped(first: Counts, second: Counts) -> np.ndarray:
    """[2, groups] counts: continuations expected often enough in both samples, most frequent first, and the rest."""
    names = sorted(set(first) | set(second), key=lambda name: (-(first.get(name, 0) + second.get(name, 0)), name))
    table = np.array([[sample.get(name, 0) for name in names] for sample in (first, second)], dtype=float)
    sizes = table.sum(axis=1)
    least = table.sum(axis=0) * sizes.min() / sizes.sum()
    common = table[:, least >= ENOUGH]
    rest = table[:, least < ENOUGH].sum(axis=1, keepdims=True)
    if not rest.sum():
        return common
    if rest.sum() * sizes.min() / sizes.sum() >= ENOUGH or not common.shape[1]:
        return np.hstack([common, rest])
    common[:, -1:] += rest
    return common


def power(table: np.ndarray, shift: float) -> float:
    """The chance of a p-value below LEVEL if a share `shift` of the second sample went to the most frequent group."""
    sizes = table.sum(axis=1)
    law = table.sum(axis=0) / sizes.sum()
    moved = (1 - shift) * law
    moved[0] += shift
    pooled = (sizes[0] * law + sizes[1] * moved) / sizes.sum()
    distance = sum(size * ((p - pooled) ** 2 / pooled).sum() for size, p in zip(sizes, (law, moved), strict=True))
    freedom = table.shape[1] - 1
    return float(stats.ncx2.sf(stats.chi2.isf(LEVEL, freedom), freedom, distance))
