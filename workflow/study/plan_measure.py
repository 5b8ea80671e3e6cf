"""What the rules need to know about measurements that are no cells: their inputs, and the values they depend on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workflow.study.config import StudyConfig
from workflow.study.experiments import timed_cells
from workflow.study.measure_columns import ALWAYS, ON_REQUEST

if TYPE_CHECKING:
    from workflow.study.plan import Plan

MEASURE_FIGURES: dict[str, tuple[str, ...]] = {
    "time_by_width": ("cost_model",),
    "expected_speedup": ("break_even", "predicted"),
    "predicted_against_measured": ("predicted",),
    "roofline": ("roofline",),
    "peers": ("peers",),
    "time_by_context": ("long_context",),
}
"""Every figure with the tables it reads."""


def _study(*names: str) -> tuple[str, ...]:
    return tuple(f"workflow/study/{name}.py" for name in names)


MEASURE_CODE = {
    "costs": ("specdec/**/*", *_study("costs", "timing_only", "run_cell", "measure_columns")),
    "profiling": ("specdec/**/*", *_study("profiling", "run_cell", "measure_columns")),
    "predicted": (
        "specdec/measure/cost_model.py",
        *_study("predicted", "measured", "metrics", "statistics", "measure_columns"),
    ),
    "peers": ("specdec/**/*", "workflow/study/peers/*.py", *_study("run_cell", "statistics", "measure_columns")),
    "long_context": ("specdec/**/*", *_study("long_context", "measure_columns")),
    "readme": _study("readme"),
}


class MeasurePlan:
    """The half of the plan that speaks of measurements; the other half gives it configuration and cells."""

    config: StudyConfig

    @property
    def measured_tables(self) -> list[str]:
        """Those of the study in force."""
        return [*ALWAYS, *(name for name in ON_REQUEST if self._asked(name))]

    def _asked(self, name: str) -> bool:
        return getattr(self.config.experiments, name).in_report

    def planned(self, figures: dict[str, tuple[str, ...]]) -> list[str]:
        """Those figures whose tables the study holds."""
        left_out = {name for name in ON_REQUEST if not self._asked(name)}
        return [name for name, tables in figures.items() if not left_out & set(tables)]

    def measure_inputs(self: Plan, wildcards: Any) -> list[str]:
        """What the workflow makes of the pair's models and drafts; a draft that is missing is a row that says so."""
        there = [name for name in self.config.pair_in_force().drafts if self.config.missing(name) is None]
        return list(dict.fromkeys(made for draft in ("none", *there) for made in self.made_for(draft)))

    def measure_values(self: Plan, experiment: str) -> dict:
        """What a measurement of the pair in force depends on, beyond code."""
        config, pair = self.config, self.config.pair_in_force()
        values = {
            "pair": config.pair,
            "models": {name: config.model(name).model_dump(exclude_none=True) for name in pair.models},
            "drafts": {name: draft.model_dump() for name, draft in pair.drafts.items()},
            "there": {name: config.missing(name) is None for name in pair.drafts},
            "weights": {name: self.weights_in_force(name) for name in pair.drafts},
            "run": {name: getattr(config.run, name) for name in ("dtype", "device", "threads", "static")},
            "settings": getattr(config.experiments, experiment).model_dump(),
        }
        if experiment in ("peers", "profile"):
            values |= {"prompts": self.prompts, "chat": pair.chat.model_dump(exclude_none=True)}
        return values

    def cost_values(self, wildcards: Any) -> dict:
        return self.measure_values("cost_model")

    def profile_values(self, wildcards: Any) -> dict:
        return self.measure_values("profile") | {"primary": self.config.pair_in_force().primary}

    def peers_values(self, wildcards: Any) -> dict:
        return self.measure_values("peers")

    def long_context_values(self, wildcards: Any) -> dict:
        return self.measure_values("long_context")

    def predicted_inputs(self, wildcards: Any) -> list[str]:
        return [cell.path for cell in timed_cells(self.config)]

    def predicted_values(self, wildcards: Any) -> dict:
        drafts = self.config.pair_in_force().drafts
        return {
            "pair": self.config.pair,
            "kinds": {name: draft.kind for name, draft in drafts.items()},
            "depths": self.config.experiments.fixed_k.k,
        }
