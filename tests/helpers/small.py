"""Small models cut from tiny targets: as modules that learn, with an objective, and as decoding runs them."""

from __future__ import annotations

import torch

from specdec.models.config import ModelConfig
from specdec.models.transformer import Transformer
from specdec.training.assemble import cut_config
from specdec.training.corpus import AnswerCorpus
from specdec.training.distill import Distillation, DistillRecipe
from specdec.training.objective import Teacher
from specdec.training.small import SmallModel
from tests.helpers import heads, tiny


def module_of(variant: str = "llama", layers: tuple[int, ...] = (0, 3)) -> SmallModel:
    """Cut from the tiny target of four layers."""
    origin = tiny.reference(variant, 4)
    config = ModelConfig.from_dict(cut_config(origin.config.to_dict(), len(layers)), "test")
    state = {name: value.clone() for name, value in origin.state_dict().items()}
    module = SmallModel(config, state["model.embed_tokens.weight"])
    module.start_from(state, layers)
    return module


def objective_of(used=None, variant: str = "llama", **changes) -> Distillation:
    recipe = DistillRecipe(**({"token_passes": 1, "precision": "float32"} | changes))
    return Distillation(recipe, Teacher(tiny.reference(variant, 4).state_dict()["lm_head.weight"], used, torch.float32))


def corpus_of(samples, variant: str = "llama") -> AnswerCorpus:
    return AnswerCorpus(heads.target_of(variant, torch.float32), samples, 2**30, torch.float32)


def cut_of(module: SmallModel, variant: str = "llama", dtype: torch.dtype = torch.float32):
    """The same model as decoding runs it."""
    state = tiny.reference(variant, 4).state_dict()
    shared = {name: state[name] for name in ("model.embed_tokens.weight", "lm_head.weight")}
    return Transformer(module.config, module.weights() | shared, dtype=dtype)
