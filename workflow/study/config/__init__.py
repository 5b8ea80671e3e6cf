"""The typed configuration.  `load(path)` or `load_mapping(dict)` gives a `StudyConfig` or a one-line `UserError`."""

from workflow.study.config.base import MAX_K
from workflow.study.config.models import EagleDraft, LanguageModelDraft, LayerSkipDraft, Model, NgramDraft, Pair, Wheel
from workflow.study.config.study import StudyConfig, load, load_mapping
from workflow.study.config.trees import CHAIN

__all__ = [
    "CHAIN",
    "MAX_K",
    "EagleDraft",
    "LanguageModelDraft",
    "LayerSkipDraft",
    "Model",
    "NgramDraft",
    "Pair",
    "StudyConfig",
    "Wheel",
    "load",
    "load_mapping",
]
