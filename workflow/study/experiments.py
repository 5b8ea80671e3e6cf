"""Which cells an experiment needs, and which a table is made of.

An experiment is a function from the configuration to cells; a cell that two of them share is one file, decoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from specdec.errors import unknown
from workflow.study import experiments_trees
from workflow.study.cells import OWN_KIND, PROJECT, Cell
from workflow.study.config import StudyConfig
from workflow.study.grid import baseline, cell, draws


def cells_of(config: StudyConfig, experiment: str) -> list[Cell]:
    """The cells of one experiment for the pair and the size in force, in the order of its table, without repeats."""
    if experiment not in EXPERIMENTS:
        raise unknown("experiment", experiment, EXPERIMENTS)
    return unique(EXPERIMENTS[experiment](config))


RECORDS = ("training", "training_curves", "training_ablations", "training_layerskip")
"""Tables made of what trainings recorded, and of no cells."""


def all_cells(config: StudyConfig) -> list[Cell]:
    """Every cell of the study, each once."""
    return unique(cell for experiment in EXPERIMENTS for cell in cells_of(config, experiment))


def timed_cells(config: StudyConfig) -> list[Cell]:
    """Every drafting cell in the number format of the run; those in others are there for exactness."""
    return [cell for cell in all_cells(config) if cell.policy != "ar" and cell.dtype == config.run.dtype]


def unique(cells: Iterable[Cell]) -> list[Cell]:
    return list(dict.fromkeys(cells))


TABLES = (
    *("fixed_k", "dynamic_k", "drafts", "losslessness", "best_k", "positions", "time_shares", "cells"),
    *("trees", "verification", "ablation", "round_costs", "confidence", "example_tree", "lossy"),
    *RECORDS,
)


def cells_for_table(config: StudyConfig, table: str) -> list[Cell]:
    """The cells a table is made of, in the order of its rows."""
    match table:
        case _ if table in RECORDS:
            return []
        case "fixed_k" | "dynamic_k" | "drafts" | "losslessness" | "trees" | "verification" | "ablation":
            return cells_of(config, table)
        case "best_k":
            return [cell for cell in cells_of(config, "dynamic_k") if cell.policy == "fixed"]
        case "positions" | "time_shares":
            # the cells of other number formats are there for exactness; their times say nothing
            return unique(cells_of(config, "fixed_k") + cells_of(config, "dynamic_k"))
        case "round_costs":
            return unique(cell for name in ("trees", "verification", "ablation") for cell in cells_of(config, name))
        case "confidence":
            return [cell for cell in unique(cells_of(config, "trees") + cells_of(config, "ablation")) if cell.k]
        case "example_tree":
            return experiments_trees.example(config)
        case "lossy":
            return experiments_trees.lossy(config)
        case "cells":
            return all_cells(config)
    raise unknown("table", table, TABLES)


def _fixed(config: StudyConfig, draft: str) -> list[Cell]:
    return [cell(config, draft, "fixed", k, **draw) for draw in draws(config) for k in config.experiments.fixed_k.k]


def _fixed_k(config: StudyConfig) -> list[Cell]:
    return baseline(config) + [found for draft in config.studied() for found in _fixed(config, draft)]


def _dynamic_k(config: StudyConfig) -> list[Cell]:
    dynamic = config.experiments.dynamic_k

    def of(draft: str) -> list[Cell]:
        rules = [
            cell(config, draft, rule, dynamic.k, threshold=threshold, **draw)
            for draw in draws(config)
            for rule in config.rules
            for threshold in config.thresholds(draft, rule)
        ]
        return _fixed(config, draft) + rules

    return baseline(config) + [found for draft in config.dynamic() for found in of(draft)]


def _drafts(config: StudyConfig) -> list[Cell]:
    """Every draft at equal settings: at the depths of this size and the one that calibration chose for it, those of the
    first table at all of them; then once more on held-out conversations of the text that drafts are trained on."""
    depths, studied = config.size.draft_depths, config.studied()
    cells = baseline(config)
    for draft in config.compared():
        known = config.calibrated(draft)
        tuned = [known.best_k] if known and known.best_k else []
        chosen = config.experiments.fixed_k.k if draft in studied else sorted({*depths, *tuned})
        cells += [cell(config, draft, "fixed", k, **draw) for draw in draws(config) for k in chosen]
    if config.has_text():
        own = {"prompt_set": OWN_KIND}
        cells += [cell(config, "none", "ar", 0, **draw, **own) for draw in draws(config)]
        cells += [
            cell(config, draft, "fixed", k, **draw, **own)
            for draft in config.compared()
            for draw in draws(config)
            for k in depths
        ]
    return cells


def _losslessness(config: StudyConfig) -> list[Cell]:
    """Every greedy cell on the project's prompts, and the draft of trees in other number formats."""
    settings, draft = config.experiments.losslessness, config.pair_in_force().tree_draft
    makers = [maker for name, maker in EXPERIMENTS.items() if name != "losslessness"]
    shared = [
        found
        for maker in makers
        for found in maker(config)
        if found.temperature == 0 and found.policy != "ar" and found.prompt_set == PROJECT
    ]
    seed = config.size.seeds[0]
    others = [cell(config, draft, "fixed", settings.k, seed=seed, dtype=dtype) for dtype in settings.dtypes]
    return shared + others


EXPERIMENTS: dict[str, Callable[[StudyConfig], list[Cell]]] = {
    "fixed_k": _fixed_k,
    "dynamic_k": _dynamic_k,
    "drafts": _drafts,
    "trees": experiments_trees.trees,
    "verification": experiments_trees.verification,
    "ablation": experiments_trees.ablation,
    "losslessness": _losslessness,
}
