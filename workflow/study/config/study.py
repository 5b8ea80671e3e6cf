"""The whole configuration: its cross-checks, and what the rest of the study asks of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import ValidationError

from specdec.errors import UserError
from workflow.study.config.base import PairName, Section, explain, refuse, refuse_name, says
from workflow.study.config.experiments import (
    THRESHOLD_RULES,
    Calibrated,
    Calibration,
    Experiments,
    Prompts,
    Run,
    Sampling,
    Size,
)
from workflow.study.config.heads import Heads, check_recipes, check_roles
from workflow.study.config.models import (
    ASSEMBLED_FOLDER,
    MODELS_FOLDER,
    Draft,
    LanguageModelDraft,
    Model,
    NgramDraft,
    OwnDraft,
    Pair,
)
from workflow.study.config.training import Training
from workflow.study.config.trees import CHAIN, CoarseFineShape, Shape, ShapeName


class StudyConfig(Heads, Section):
    """config.yaml, typed.  Everything below `pair` and `study` is looked up through the methods."""

    pair: Annotated[str, says("the name of one of `pairs` is expected")]
    study: Annotated[str, says("the name of one of `studies` is expected, such as default or full")]
    draft_source: Literal["shipped", "train"] = "shipped"
    draft_recipe: Literal["full", "quick"] = "full"
    models: dict[str, Model]
    pairs: dict[PairName, Pair]
    prompts: Prompts
    sampling: Sampling
    run: Run
    shapes: dict[ShapeName, Shape] = {}
    experiments: Experiments
    studies: dict[str, Size]
    training: Training = {}
    calibration: Calibration = {}

    # -- the pair and the size in force ---------------------------------------------------------
    def pair_in_force(self) -> Pair:
        return self.pairs[self.pair]

    @property
    def size(self) -> Size:
        return self.studies[self.study]

    def max_new_tokens(self, dtype: str) -> int:
        """Of a cell in this number format: those beside the study's own are for equality alone."""
        apart = self.experiments.losslessness.max_new_tokens if dtype != self.run.dtype else None
        return apart or self.size.max_new_tokens

    # -- drafts and models ----------------------------------------------------------------------
    def draft(self, name: str) -> Draft:
        """The draft of the pair in force, by name."""
        drafts = self.pair_in_force().drafts
        if name not in drafts:
            raise refuse_name("draft", name, f"draft of the pair {self.pair}", drafts)
        return drafts[name]

    def model(self, name: str) -> Model:
        if name not in self.models:
            raise refuse_name("model", name, "model", self.models)
        return self.models[name]

    def model_path(self, name: str) -> Path:
        """The folder a model lies in: the user's own, or the place in `resources` where the workflow puts it."""
        model = self.model(name)
        if model.assembled:
            return ASSEMBLED_FOLDER / self.pair / self.origin_of(name) / name
        return Path(model.path).expanduser() if model.path else MODELS_FOLDER / name

    def target_path(self) -> Path:
        return self.model_path(self.pair_in_force().target)

    def shape(self, name: str) -> Shape | None:
        """The shape of that name; None for the chain."""
        if name == CHAIN:
            return None
        if name not in self.shapes:
            raise refuse_name("shape", name, "shape", [CHAIN, *self.shapes])
        return self.shapes[name]

    # -- values of a run ------------------------------------------------------------------------
    def threads(self) -> int:
        """Threads of the arithmetic: as configured, else every core this process may use."""
        return self.run.threads or len(os.sched_getaffinity(0))

    def prompt_files(self) -> list[Path]:
        return [Path(name).expanduser() for name in [*self.prompts.files, *self.pair_in_force().extra_prompt_files]]

    def calibrated(self, draft: str) -> Calibrated | None:
        return self.calibration.get(self.pair, {}).get(draft)

    @property
    def rules(self) -> list[str]:
        """The dynamic rules that the size in force runs."""
        return list(self.experiments.dynamic_k.rules if self.size.rules is None else self.size.rules)

    def thresholds(self, draft: str, rule: str) -> list[float | None]:
        """The thresholds to run: the calibrated one, or the grid where the study is full or nothing is calibrated."""
        if rule not in THRESHOLD_RULES:
            return [None]
        if self.size.thresholds == "calibrated" and (known := self.calibrated(draft)):
            value = known.thresholds.of(rule)
            if value is not None:
                return [value]
        return list(self.experiments.dynamic_k.thresholds.of(rule))


def load_mapping(data: Any, where: str = "config") -> StudyConfig:
    """Type a mapping.  Raises `UserError`, one line, naming key, value and what is allowed."""
    if not isinstance(data, dict):
        raise UserError(f"{where}: a mapping with the keys {StudyConfig.keys()} is expected")
    try:
        config = StudyConfig.model_validate(to_plain(data))
    except ValidationError as error:
        raise explain(error) from None
    check(config)
    return config


def load(path: str | Path = "config.yaml") -> StudyConfig:
    """Read and type a configuration file."""
    path = Path(path)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    return load_mapping(data, str(path))


def to_plain(data: Any) -> Any:
    """Ordered mappings, as Snakemake hands them over, as plain ones."""
    if isinstance(data, dict):
        return {key: to_plain(value) for key, value in data.items()}
    return [to_plain(value) for value in data] if isinstance(data, list) else data


def check(config: StudyConfig) -> None:
    """Every name that refers to something must find it; every rule has what it needs."""
    if config.pair not in config.pairs:
        raise refuse_name("pair", config.pair, "pair", config.pairs)
    if config.study not in config.studies:
        raise refuse_name("study", config.study, "study", config.studies)
    for name, pair in config.pairs.items():
        _check_pair(config, f"pairs.{name}", pair)
    dynamic = config.experiments.dynamic_k
    for rule in dynamic.rules:
        if rule in THRESHOLD_RULES and not dynamic.thresholds.of(rule):
            raise refuse(
                f"experiments.dynamic_k.thresholds.{rule}", [], f"the rule {rule} needs at least one threshold"
            )
    _check_shapes(config)
    of_pairs = {"calibration": config.calibration, "training": config.training}
    for key, section in of_pairs.items():
        for pair_name, entry in section.items():
            if pair_name not in config.pairs:
                raise refuse_name(f"{key}.{pair_name}", pair_name, "pair", config.pairs)
            known = config.pairs[pair_name].drafts
            for draft in entry if key == "calibration" else entry.drafts:
                if draft not in known:
                    raise refuse_name(f"{key}.{pair_name}.{draft}", draft, f"draft of {pair_name}", known)
            if key == "training":
                check_recipes(f"{key}.{pair_name}.drafts", entry.drafts, known, config.models)


def _check_shapes(config: StudyConfig) -> None:
    """Every shape that is used has a name, and every slice of an experiment is a part of it."""
    known, experiments = [CHAIN, *config.shapes], config.experiments
    if CHAIN in config.shapes:
        raise refuse("shapes", CHAIN, "this name stands for one token a level; choose another")
    used = {f"experiments.trees.contenders.{name}.shape": c.shape for name, c in experiments.trees.contenders.items()}
    used |= {f"experiments.verification.rules.{name}": name for name in experiments.verification.rules}
    used |= {f"experiments.ablation.{name}": getattr(experiments.ablation, name) for name in ("shape", "beside")}
    for name, shape in config.shapes.items():
        if isinstance(shape, CoarseFineShape):
            halves = {half: getattr(shape, half) for half in ("coarse", "fine")}
            used |= {f"shapes.{name}.{half}": value for half, value in halves.items()}
            for half, value in halves.items():
                if isinstance(config.shapes.get(value), CoarseFineShape):
                    raise refuse(f"shapes.{name}.{half}", value, "turns within turns are not offered")
    for key, name in used.items():
        if name not in known:
            raise refuse_name(key, name, "shape", known)
    for name, size in config.studies.items():
        for index, contender in enumerate(size.trees.contenders or []):
            if contender not in experiments.trees.contenders:
                key = f"studies.{name}.trees.contenders[{index}]"
                raise refuse_name(key, contender, "contender", experiments.trees.contenders)
        for index, rule in enumerate(size.rules or []):
            if rule not in experiments.dynamic_k.rules:
                raise refuse_name(f"studies.{name}.rules[{index}]", rule, "rule", experiments.dynamic_k.rules)


def _check_pair(config: StudyConfig, key: str, pair: Pair) -> None:
    if pair.target not in config.models:
        raise refuse_name(f"{key}.target", pair.target, "model", config.models)
    if "none" in pair.drafts:
        raise refuse(f"{key}.drafts", "none", "this name stands for the autoregressive baseline; choose another")
    if pair.primary not in pair.drafts:
        raise refuse_name(f"{key}.primary", pair.primary, "draft", pair.drafts)
    for names in ("also", "dynamic", "optional"):
        for index, name in enumerate(getattr(pair, names)):
            if name not in pair.drafts:
                raise refuse_name(f"{key}.{names}[{index}]", name, "draft", pair.drafts)
    for name, draft in pair.drafts.items():
        cut = isinstance(draft, OwnDraft) and draft.vocabulary and not draft.vocabulary_file
        if cut and key.removeprefix("pairs.") not in config.training:
            text = "without vocabulary_file the tokens are those of the pair's training text, and it has none"
            raise refuse(f"{key}.drafts.{name}.vocabulary", draft.vocabulary, text)
        if isinstance(draft, LanguageModelDraft):
            where = f"{key}.drafts.{name}.model"
            if draft.model not in config.models:
                raise refuse_name(where, draft.model, "model", config.models)
            origin = config.models[draft.model].distilled
            if origin and origin.target != pair.target:
                text = f"it was cut from {origin.target}, but the pair's target is {pair.target}"
                raise refuse(where, draft.model, text)
    check_roles(key, pair, bool(config.experiments.dynamic_k.rules))
    if pair.tree_draft not in pair.drafts:
        raise refuse_name(f"{key}.trees", pair.tree_draft, "draft", pair.drafts)
    if isinstance(pair.drafts[pair.tree_draft], NgramDraft):
        text = "trees grow step by step, which this kind does not; name another draft"
        raise refuse(f"{key}.trees", pair.tree_draft, text)
