"""Random EAGLE heads for tiny targets, as weights, as modules and as samples to train on."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec.models.config import ModelConfig
from specdec.models.eagle import EagleConfig
from specdec.training.corpus import HeadCorpus, Sample
from specdec.training.eagle import EagleModule
from tests.helpers import tiny


def config_of(version: int = 3, draft_vocabulary: int | None = None, variant: str = "llama", **changes) -> EagleConfig:
    target = ModelConfig.from_dict(tiny.reference(variant, 4).config.to_dict(), "test")
    return EagleConfig.for_target(target, version, draft_vocabulary, **changes)


def weights_of(config: EagleConfig, seed: int = 0) -> dict[str, Tensor]:
    """Weights wide enough that guesses differ from row to row."""
    generator = torch.Generator().manual_seed(50 + seed)
    weights = {
        name: torch.randn(shape, generator=generator) / shape[1] ** 0.5 * (1.5 if name != "head" else 4.0)
        for name, shape in config.shapes().items()
    }
    norms = {name: 1 + 0.2 * torch.randn(config.hidden_size, generator=generator) for name in config.norms()}
    return weights | norms


def vocabulary_of(size: int, total: int = tiny.VOCABULARY, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(total, generator=generator)[:size].sort().values


def module_of(config: EagleConfig, variant: str = "llama", seed: int = 0) -> EagleModule:
    """A module that holds `weights_of(config, seed)`."""
    state = tiny.reference(variant, 4).state_dict()
    module = EagleModule(config, state["model.embed_tokens.weight"], state["lm_head.weight"])
    fill(module, weights_of(config, seed))
    return module


def fill(module: EagleModule, weights: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, product in module.products.items():
            product.weight.copy_(weights[name])
        for name, norm in module.norms.items():
            norm.copy_(weights[name])


def target_of(variant: str = "llama", dtype: torch.dtype = torch.float64):
    return tiny.transformer(variant, layers=4, dtype=dtype)


def written(target, index: int, length: int = 32, prompt: int = 6) -> Sample:
    """A conversation whose answer is the target's own greedy text."""
    ids = tiny.prompt_of(prompt, seed=index)
    cache = target.new_cache(length)
    logits = target.forward(ids, cache).logits
    while len(ids) < length:
        ids.append(int(logits[-1].argmax()))
        logits = target.forward(ids[-1:], cache).logits
    return Sample(index, tuple(ids), tuple(i >= prompt for i in range(length)))


def corpus_of(
    config: EagleConfig, samples, variant: str = "llama", prompt: int = 64, budget: int = 2**30
) -> HeadCorpus:
    """In float32, so that what it holds can be compared exactly."""
    return HeadCorpus(target_of(variant, torch.float32), samples, config.taps, prompt, budget, torch.float32)
