"""Which cells an experiment needs, and which a table is made of.

An experiment is a function from the configuration to cells; a cell that two of them share is one file, decoded once.
"""

from __future__ import annotations

from specdec.errors import unknown
from workflow.study.cells import OWN_KIND, PROJECT, Cell
from workflow.study.config import StudyConfig


def cells_of(config: StudyConfig, experiment: str) -> list[Cell]:
    """The cells of one experiment for the pair and the size in force, in the order of its table, without repeats."""
    makers = {"fixed_k": _fixed_k, "dynamic_k": _dynamic_k, "drafts": _drafts, "losslessness": _losslessness}
    if experiment not in makers:
        raise unknown("experiment", experiment, makers)
    return list(dict.fromkeys(makers[experiment](config)))


RECORDS = ("training", "training_curves", "training_ablations")
"""Tables made of what trainings recorded, and of no cells."""

EXPERIMENTS = ("fixed_k", "dynamic_k", "drafts", "losslessness")


def all_cells(config: StudyConfig) -> list[Cell]:
    """Every cell of the study, each once."""
    return list(dict.fromkeys(cell for experiment in EXPERIMENTS for cell in cells_of(config, experiment)))


def timed_cells(config: StudyConfig) -> list[Cell]:
    """Every drafting cell in the number format of the run; those in others are there for exactness."""
    return [cell for cell in all_cells(config) if cell.policy != "ar" and cell.dtype == config.run.dtype]


TABLES = ("fixed_k", "dynamic_k", "drafts", "losslessness", "best_k", "positions", "time_shares", "cells", *RECORDS)


def cells_for_table(config: StudyConfig, table: str) -> list[Cell]:
    """The cells a table is made of, in the order of its rows."""
    match table:
        case _ if table in RECORDS:
            return []
        case "fixed_k" | "dynamic_k" | "drafts" | "losslessness":
            return cells_of(config, table)
        case "best_k":
            return [cell for cell in cells_of(config, "dynamic_k") if cell.policy == "fixed"]
        case "positions" | "time_shares":
            # the cells of other number formats are there for exactness; their times say nothing
            return list(dict.fromkeys(cells_of(config, "fixed_k") + cells_of(config, "dynamic_k")))
        case "cells":
            return all_cells(config)
    raise unknown("table", table, TABLES)


def _draws(config: StudyConfig) -> list[dict]:
    """Temperature and seed of each run of an experiment; greedy decoding draws nothing, so one seed is enough."""
    return [
        {"temperature": temperature, "seed": seed}
        for temperature in config.size.temperatures
        for seed in (config.size.seeds if temperature > 0 else config.size.seeds[:1])
    ]


def _baseline(config: StudyConfig) -> list[Cell]:
    """The baseline against itself: what a difference of nothing looks like on this machine."""
    return [_cell(config, "none", "ar", 0, **draw) for draw in _draws(config)]


def _cell(config: StudyConfig, draft: str, policy: str, k: int, **rest) -> Cell:
    rest.setdefault("dtype", config.run.dtype)
    return Cell(config.pair, draft, policy, k, **rest)


def _fixed(config: StudyConfig, draft: str) -> list[Cell]:
    return [_cell(config, draft, "fixed", k, **draw) for draw in _draws(config) for k in config.experiments.fixed_k.k]


def _fixed_k(config: StudyConfig) -> list[Cell]:
    return _baseline(config) + [cell for draft in config.studied() for cell in _fixed(config, draft)]


def _dynamic_k(config: StudyConfig) -> list[Cell]:
    dynamic = config.experiments.dynamic_k

    def of(draft: str) -> list[Cell]:
        rules = [
            _cell(config, draft, rule, dynamic.k, threshold=threshold, **draw)
            for draw in _draws(config)
            for rule in dynamic.rules
            for threshold in config.thresholds(draft, rule)
        ]
        return _fixed(config, draft) + rules

    return _baseline(config) + [cell for draft in config.dynamic() for cell in of(draft)]


def _drafts(config: StudyConfig) -> list[Cell]:
    """Every draft at equal settings: at the depths of this size, those of the first table at all of them; then once
    more on held-out conversations of the text that drafts are trained on."""
    depths, studied = config.size.draft_depths, config.studied()
    cells = _baseline(config)
    for draft in config.compared():
        chosen = config.experiments.fixed_k.k if draft in studied else depths
        cells += [_cell(config, draft, "fixed", k, **draw) for draw in _draws(config) for k in chosen]
    if config.has_text():
        own = {"prompt_set": OWN_KIND}
        cells += [_cell(config, "none", "ar", 0, **draw, **own) for draw in _draws(config)]
        cells += [
            _cell(config, draft, "fixed", k, **draw, **own)
            for draft in config.compared()
            for draw in _draws(config)
            for k in depths
        ]
    return cells


def _losslessness(config: StudyConfig) -> list[Cell]:
    """Every greedy cell on the project's prompts, and the primary draft in other number formats."""
    settings, primary = config.experiments.losslessness, config.pair_in_force().primary
    shared = [
        cell
        for cell in _fixed_k(config) + _dynamic_k(config) + _drafts(config)
        if cell.temperature == 0 and cell.policy != "ar" and cell.prompt_set == PROJECT
    ]
    seed = config.size.seeds[0]
    others = [_cell(config, primary, "fixed", settings.k, seed=seed, dtype=dtype) for dtype in settings.dtypes]
    return shared + others
