"""What experiments share: a cell of the configuration in force, its draws, and the baseline against itself."""

from __future__ import annotations

from workflow.study import legal
from workflow.study.cells import Cell
from workflow.study.config import StudyConfig


def cell(config: StudyConfig, draft: str, policy: str, k: int, **rest) -> Cell:
    """A cell of the pair in force, refused where its parts do not go together."""
    rest.setdefault("dtype", config.run.dtype)
    return legal.check(config, Cell(config.pair, draft, policy, k, **rest))


def draws(config: StudyConfig, temperatures: list[float] | None = None) -> list[dict]:
    """Temperature and seed of each run of an experiment; greedy decoding draws nothing, so one seed is enough."""
    return [
        {"temperature": temperature, "seed": seed}
        for temperature in (config.size.temperatures if temperatures is None else temperatures)
        for seed in (config.size.seeds if temperature > 0 else config.size.seeds[:1])
    ]


def baseline(config: StudyConfig, temperatures: list[float] | None = None) -> list[Cell]:
    """The baseline against itself: what a difference of nothing looks like on this machine."""
    return [cell(config, "none", "ar", 0, **draw) for draw in draws(config, temperatures)]
