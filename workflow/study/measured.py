"""One cell's rows, checked and paired: what may enter a headline, and what was left out.

The one idea: the arms of a cell are compared row by row, the same prompt, turn and repetition in both, so a ratio is
formed only where both sides did the same work on the same machine.  Warm-up rows never count.  Rows in which the model
fell into a loop (which flatters every draft) and greedy rows of unequal length are left out of both arms, and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from specdec import records
from specdec.errors import UserError
from workflow.study.cells import Cell
from workflow.study.statistics import Arm, Estimate, speedup

KEY = ["prompt_id", "turn", "repetition"]
BASELINE, SPECULATIVE = "ar", "speculative"
MACHINE = ("hardware_id", "environment_id")
SAME_EVERYWHERE = (*MACHINE, "model_id")
SAME_SETTINGS = ("dtype", "top_k", "top_p", "max_new_tokens", "ignore_eos", "static")


@dataclass(frozen=True)
class Measured:
    """The rows of one cell by arm, both in the order of their keys; `kept` marks those that enter the headline."""

    cell: Cell
    baseline: pd.DataFrame
    speculative: pd.DataFrame
    kept: np.ndarray
    looped: np.ndarray
    unequal: np.ndarray
    metadata: Mapping = field(default_factory=dict)

    @property
    def headline(self) -> pd.DataFrame:
        """The speculative rows that count."""
        return self.speculative[self.kept]

    @property
    def headline_baseline(self) -> pd.DataFrame:
        return self.baseline[self.kept]

    @property
    def keys(self) -> pd.MultiIndex:
        return self.headline.index

    def arms(self, seconds: str = "total_s", keys: pd.MultiIndex | None = None) -> tuple[Arm, Arm]:
        """(baseline, speculative), summed by prompt, on the headline rows or on those among `keys`."""
        chosen = self.keys if keys is None else self.keys.intersection(keys, sort=False)
        return _arm(self.headline_baseline.loc[chosen], seconds), _arm(self.headline.loc[chosen], seconds)

    @cached_property
    def speedup(self) -> Estimate:
        """Of total time, pooled over prompts."""
        return speedup(*self.arms("total_s"))

    @cached_property
    def decode_speedup(self) -> Estimate:
        """The same without prefill."""
        return speedup(*self.arms("decode_s"))

    def identity(self, column: str) -> str:
        return self.speculative[column].iloc[0]


def load(path: str | Path) -> Measured:
    """Read one cell's file and check it; raises `UserError` where no honest ratio can be formed from it."""
    table, metadata = records.read(path)
    return measured(table.to_pandas(), Cell.from_path(path), str(path), metadata)


def measured(frame: pd.DataFrame, cell: Cell, where: str, metadata: Mapping | None = None) -> Measured:
    """Check and pair the rows of one cell; `where` names them in errors."""
    for column in ("pair", "draft", "policy", "k"):
        if len(frame) and set(frame[column]) != {getattr(cell, column)}:
            raise UserError(f"{where}: holds rows of another cell (column {column}); delete it and run again")
    frame = frame[~frame["warmup"]]
    if frame.empty:
        raise UserError(f"{where}: holds no rows beyond the warm-up; delete it and run again")
    _same_everywhere([frame], [where])
    arms = {arm: rows.set_index(KEY).sort_index() for arm, rows in frame.groupby("arm")}
    for arm in (BASELINE, SPECULATIVE):
        if arm not in arms:
            raise UserError(f"{where}: no rows of the arm {arm}; delete it and run again")
        if arms[arm].index.has_duplicates:
            raise UserError(f"{where}: {_say(arms[arm].index[arms[arm].index.duplicated()][0])} is there twice")
    baseline, speculative = arms[BASELINE], arms[SPECULATIVE]
    odd = baseline.index.symmetric_difference(speculative.index)
    if len(odd):
        raise UserError(f"{where}: {_say(odd[0])} was decoded in one arm only; delete it and run again")
    _same_work(baseline, speculative, where)
    looped = (baseline["loop"] | speculative["loop"]).to_numpy()
    unequal = (baseline["tokens"] != speculative["tokens"]).to_numpy()
    if cell.temperature > 0:
        unequal[:] = False  # drawn texts may differ in length; timing then runs to a fixed one
    empty = ((baseline["tokens"] == 0) | (speculative["tokens"] == 0)).to_numpy()
    kept = ~(looped | unequal | empty)
    return Measured(cell, baseline, speculative, kept, looped, unequal, metadata or {})


def same_machine(first: Measured, second: Measured) -> None:
    """Raises `UserError` where two cells come from different machines or environments."""
    _same_everywhere([first.speculative, second.speculative], [first.cell.path, second.cell.path], MACHINE)


def comparable(first: Measured, second: Measured) -> pd.MultiIndex:
    """The rows that both cells may be compared on.  Raises `UserError` where the machine or a prompt differs."""
    _same_everywhere([first.speculative, second.speculative], [first.cell.path, second.cell.path])
    keys = first.keys.intersection(second.keys, sort=False)
    differ = first.headline.loc[keys, "prompt_sha"] != second.headline.loc[keys, "prompt_sha"]
    if differ.any():
        raise UserError(
            f"{first.cell.path} and {second.cell.path}: {_say(keys[differ.argmax()])} is not the same text in both"
        )
    return keys


def _same_everywhere(frames: list[pd.DataFrame], names: list[str], columns: Iterable[str] = SAME_EVERYWHERE) -> None:
    for column in columns:
        values = sorted({value for frame in frames for value in frame[column]})
        if len(values) > 1:
            what = column.removesuffix("_id")
            found = ", ".join(values)
            raise UserError(
                f"{' and '.join(names)}: no ratio is formed across different values of {what} ({found}); "
                "delete the older file and run again"
            )


def _same_work(baseline: pd.DataFrame, speculative: pd.DataFrame, where: str) -> None:
    """Both arms must have had the same prompt and the same settings."""
    for column in ("prompt_sha", *SAME_SETTINGS):
        first, second = baseline[column], speculative[column]
        differ = (first != second) & ~(first.isna() & second.isna())
        if differ.any():
            key = baseline.index[differ.to_numpy().argmax()]
            raise UserError(f"{where}: {_say(key)} has another {column} in each arm; no ratio can be formed")


def _arm(rows: pd.DataFrame, seconds: str) -> Arm:
    sums = rows.groupby(level="prompt_id", sort=True)[[seconds, "tokens"]].sum()
    return Arm(tuple(sums.index), sums[seconds].to_numpy(float), sums["tokens"].to_numpy(float))


def _say(key: tuple) -> str:
    return f"prompt {key[0]}, turn {key[1]}, repetition {key[2]}"
