"""What the rules need to know: which files are made of which, and the values each one depends on.

The one idea: a job's `params` hold exactly the values that its result depends on, the code that made it among them.  A
comment in config.yaml then reruns nothing, a changed K reruns its own cells, and a change inside `specdec/`, which
Snakemake does not look into, reruns what was decoded by it.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from specdec.errors import UserError
from workflow.study import legal
from workflow.study.calibration import COMMITTED, MEASURED, Calibration
from workflow.study.cells import CELLS_FOLDER, PATTERN, PROJECT, Cell
from workflow.study.code_hash import code_hash
from workflow.study.config import LanguageModelDraft, StudyConfig, load_mapping
from workflow.study.experiments import TABLES, all_cells, cells_for_table
from workflow.study.experiments_trees import distributed
from workflow.study.plan_drafts import DraftPlan
from workflow.study.plan_measure import MEASURE_CODE, MEASURE_FIGURES, MeasurePlan
from workflow.study.prompts import Prompt, calibration_slice, digest, evaluation_slice, own_kind_file

STAMP = "specdec.json"

SPEED = 30
"""Tokens a second that a forecast assumes: the default target on two cores, mean of both arms."""

FIGURES: dict[str, tuple[str, ...]] = {
    "speedup_by_k": ("fixed_k",),
    "acceptance_by_k": ("fixed_k",),
    "acceptance_by_position": ("positions",),
    "speedup_by_acceptance": ("fixed_k", "dynamic_k"),
    "time_shares": ("time_shares",),
    "drafts_by_position": ("drafts",),
    "drafts_by_cost": ("drafts",),
    "training_curves": ("training_curves",),
    "speedup_by_nodes": ("trees",),
    "expected_length": ("round_costs",),
    "confidence": ("confidence",),
    "example_tree": ("example_tree",),
    **MEASURE_FIGURES,
}
"""Every figure with the tables it reads."""

CODE = {
    "decode": (
        *(f"specdec/{room}/**/*" for room in ("drafters", "growth", "models", "static", "verifiers")),
        *(f"specdec/measure/{name}.py" for name in ("audit", "clock", "fingerprint")),
        "specdec/*.py",
        "workflow/study/run_*.py",
        "workflow/study/calibration.py",
    ),
    "calibrate": (
        *(f"specdec/{room}/**/*" for room in ("drafters", "growth", "measure", "models")),
        "specdec/*.py",
        *(f"workflow/study/{name}.py" for name in ("measuring", "calibration")),
    ),
    "table": (
        *(f"workflow/study/{name}.py" for name in ("tables*", "columns", "measured", "metrics", "statistics")),
        *(f"workflow/study/{name}.py" for name in ("experiments*", "two_samples")),
    ),
    "train": ("specdec/training/*.py", "specdec/models/eagle*.py", "workflow/study/heads.py"),
    "figure": ("workflow/study/figures/*.py", "workflow/study/values_drafts.py"),
    "report": (
        "report_templates/**/*",
        *(f"workflow/study/{name}*.py" for name in ("report", "values", "setting", "named", "results")),
        *(f"workflow/study/{name}*.py" for name in ("numbering", "rendering", "citations", "formulas", "formatting")),
        "workflow/study/statistics.py",
    ),
    **MEASURE_CODE,
}
"""The files whose content a stage's results depend on, beyond its script."""


class Plan(DraftPlan, MeasurePlan):
    """The study as Snakemake sees it.  Methods that take `wildcards` are input or params functions of rules."""

    def __init__(self, config: Mapping, base: str | Path):
        self.config: StudyConfig = load_mapping(config)
        self.base = Path(base)
        self.started = time.time()
        self._digests: dict[tuple, str] = {}

    @classmethod
    def of(cls, config: Mapping, base: str | Path) -> Plan:
        """The plan, or one line on the terminal and exit code 1."""
        try:
            plan = cls(config, base)
            # a missing or broken file of prompts, and parts that do not go together, should show here, before any job
            plan.prompts  # noqa: B018
            all_cells(plan.config)
        except UserError as error:
            sys.exit(f"error: {error}")
        return plan

    @property
    def pair(self) -> str:
        return self.config.pair

    # -- what there is ----------------------------------------------------------------------------
    @property
    def cell_pattern(self) -> str:
        return PATTERN

    @property
    def tables(self) -> list[str]:
        asked_for = self.config.experiments.verification.distribution is not None
        return [*TABLES, "distribution"] if asked_for else list(TABLES)

    @property
    def figures(self) -> list[str]:
        return self.planned(FIGURES)

    @property
    def draft_pattern(self) -> str:
        return "|".join(re.escape(name) for name in self.config.pair_in_force().drafts)

    @property
    def model_pattern(self) -> str:
        """The models that the workflow fetches and converts itself."""
        return "|".join(re.escape(name) for name, model in self.config.models.items() if model.fetched) or "none made"

    @property
    def all_figures(self) -> list[str]:
        """Those that can be asked for by name, too."""
        return list(FIGURES)

    # -- models -----------------------------------------------------------------------------------
    def model_values(self, wildcards: Any) -> dict:
        return self._source(wildcards.model)

    def _source(self, name: str) -> dict:
        return self.config.model(name).model_dump(exclude_none=True)

    def _models_of(self, cell: Cell) -> list[str]:
        return self._models_with(cell.draft)

    def _models_with(self, draft: str) -> list[str]:
        names = [self.config.pair_in_force().target]
        if draft != "none" and isinstance(spec := self.config.draft(draft), LanguageModelDraft):
            names.append(spec.model)
        return names

    def start(self, jobs: Iterable[tuple[str, Any]]) -> None:
        """Before the first of the jobs (rule, wildcards): stop where something of the user's own is missing, else say
        how long it may take."""
        jobs = list(jobs)
        cells = [self.cell(wildcards) for rule, wildcards in jobs if rule == "decode"]
        trained = [wildcards.draft for rule, wildcards in jobs if rule == "head"]
        if not cells and not trained:
            return
        missing = self.missing_weights(cells)
        if trained and (text := self.config.missing_text()):
            missing.append(text)
        if missing:
            sys.exit("\n".join(f"error: {message}" for message in missing))
        if trained:
            print(self.training_forecast(trained), file=sys.stderr)
        if cells:
            print(f"{len(cells)} cells to decode: {self.forecast(len(cells))}", file=sys.stderr)

    def missing_weights(self, cells: Iterable[Cell]) -> list[str]:
        """One message for each model, and each head, that the cells need and that is not there."""
        drafts = dict.fromkeys(cell.draft for cell in cells if cell.draft != "none")
        found = [self.config.missing_model(self.config.pair_in_force().target)]
        return list(dict.fromkeys(text for text in found + [self.config.missing(draft) for draft in drafts] if text))

    def forecast(self, jobs: int) -> str:
        """What the cells may take at SPEED, both arms, if no answer ends early."""
        config = self.config
        answers = sum(len(prompt.turns) for prompt in self.slice) * config.run.repetitions
        hours = jobs * 2 * answers * config.size.max_new_tokens / SPEED / 3600
        time = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes"
        return f"up to {time} at {SPEED} tokens/s"

    # -- cells ------------------------------------------------------------------------------------
    def cell(self, wildcards: Any) -> Cell:
        return legal.check(self.config, Cell.from_name(self.pair, wildcards.cell))

    def decode_inputs(self, wildcards: Any) -> dict:
        """What a cell needs where the workflow makes it: models, head and prompts; and its draft's calibration."""
        cell = self.cell(wildcards)
        needed: dict = {"made": self.made_for(cell.draft)}
        if cell.prompt_set != PROJECT:
            needed["made"].append(own_kind_file(self.config).as_posix())
        if legal.needs_calibration(self.config, cell):
            needed["calibration"] = self.calibration_file(cell.draft).as_posix()
        return needed

    def stamp(self, model: str) -> list[str]:
        """What says that a model is there, where the workflow makes it."""
        return [f"{self.config.model_path(model).as_posix()}/{STAMP}"] if self.config.model(model).made_here else []

    def decode_values(self, wildcards: Any) -> dict:
        """Everything a cell's rows depend on that is not in its name."""
        config, cell = self.config, self.cell(wildcards)
        pair, run = config.pair_in_force(), config.run
        values = {
            "models": {name: self._source(name) for name in self._models_of(cell)},
            "draft": None if cell.draft == "none" else config.draft(cell.draft).model_dump(),
            "chat": pair.chat.model_dump(exclude_none=True),
            "prompts": self.prompts if cell.prompt_set == PROJECT else self.own_prompts_values(),
            "max_new_tokens": config.max_new_tokens(cell.dtype),
            "run": {name: getattr(run, name) for name in ("device", "threads", "repetitions", "warmup", "static")},
        }
        values |= self.weights_in_force(cell.draft)
        if cell.shape in config.shapes:
            values["shape"] = config.shapes[cell.shape].model_dump(exclude_none=True)
        if cell.temperature > 0:
            values["sampling"] = config.sampling.model_dump()
        return values

    # -- calibration ------------------------------------------------------------------------------
    def calibration_file(self, draft: str) -> Path:
        """The committed file where the size in force reads such and there is one for this draft as it is configured,
        else the one that is measured."""
        committed = COMMITTED / self.pair / f"{draft}.json"
        usable = self.config.size.calibration == "committed" and (self.base / committed).is_file()
        if usable and Calibration.load(self.base / committed).subject == self.calibration_subject(draft):
            return committed
        return MEASURED / self.pair / f"{draft}.json"

    def calibration_subject(self, draft: str) -> dict:
        """What a calibration is of; for another draft, target or number format it says nothing."""
        spec = self.config.draft(draft).model_dump(exclude={"lookup"})  # it changes none of the draft's own guesses
        models = {name: self._source(name) for name in self._models_with(draft)}
        for source in models.values():
            source.pop("path", None)  # where a checkpoint lies does not change it
        own = {"head": None} | self.weights_in_force(draft)
        return {"draft": spec, **own, "models": models, "dtype": self.config.run.dtype}

    def calibrate_inputs(self, wildcards: Any) -> list[str]:
        return self.made_for(wildcards.draft)

    def calibrate_values(self, wildcards: Any) -> dict:
        """Everything a calibration depends on."""
        config = self.config
        return {
            "subject": self.calibration_subject(wildcards.draft),
            "models": {name: self._source(name) for name in self._models_with(wildcards.draft)},
            "chat": config.pair_in_force().chat.model_dump(exclude_none=True),
            "prompts": digest(calibration_slice(config)),
            "run": {name: getattr(config.run, name) for name in ("device", "threads")},
        }

    @cached_property
    def slice(self) -> list[Prompt]:
        return evaluation_slice(self.config)

    @cached_property
    def prompts(self) -> str:
        return digest(self.slice)

    # -- tables, figures, report ------------------------------------------------------------------
    def table_inputs(self, wildcards: Any) -> list[str]:
        if wildcards.table == "distribution":
            return [f"results/distribution/{cell.pair}/{cell.name}.json" for cell in distributed(self.config)]
        return [cell.path for cell in cells_for_table(self.config, wildcards.table)] + self.records_for(wildcards.table)

    def distribution_values(self, wildcards: Any) -> dict:
        settings = self.config.experiments.verification.distribution
        return self.decode_values(wildcards) | {"distribution": settings and settings.model_dump(exclude={"shift"})}

    def table_values(self, wildcards: Any) -> dict:
        if wildcards.table == "distribution":
            settings = self.config.experiments.verification.distribution
            return {"pair": self.pair, "distribution": settings and settings.model_dump()}
        values: dict = {
            "pair": self.pair,
            "cells": [cell.name for cell in cells_for_table(self.config, wildcards.table)],
        }
        if wildcards.table in ("dynamic_k", "best_k"):
            values["calibration"] = {
                name: {"best_k": known.best_k, "provenance": known.provenance}
                for name, known in sorted(self.config.calibration.get(self.pair, {}).items())
            }
        return values

    def figure_inputs(self, wildcards: Any) -> list[str]:
        return [f"results/tables/{table}.csv" for table in FIGURES[wildcards.figure]]

    def report_values(self, wildcards: Any) -> dict:
        """The report prints the configuration in force."""
        return self.config.model_dump(mode="json")

    # -- code and failures ------------------------------------------------------------------------
    def code(self, stage: str) -> str:
        """A hash of the files a stage depends on."""
        return self.digest_of(self.base, CODE[stage])

    def digest_of(self, folder: Path, patterns: tuple[str, ...]) -> str:
        """A hash of files that stay as they are while a plan is in force."""
        key = (folder, patterns)
        if key not in self._digests:
            self._digests[key] = code_hash(folder, patterns)
        return self._digests[key]

    def failures(self) -> str:
        """For each log written in this run that ends in an error: its name and that line."""
        found = []
        for path in sorted(Path("logs").rglob("*.log")):
            if path.stat().st_mtime < self.started:
                continue
            lines = [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
            if lines and (lines[-1].startswith("error: ") or "Traceback (most recent call last):" in lines):
                found.append(f"failed: {path}: {lines[-1]}")
        return "\n".join(found) or "failed; the lines above name the rule and its log"


__all__ = ["CELLS_FOLDER", "FIGURES", "STAMP", "Plan", "code_hash"]
