"""Models of a known shape with weights that mean nothing: time does not ask what weights say.

The shapes are those of the published configurations of Qwen3-1.7B and Qwen3-0.6B.  One block of random numbers fills
every tensor, which is quick and as good as fresh ones for a clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import psutil
import torch

from specdec.models.config import ModelConfig
from specdec.models.loading import dtype_of, expected_shapes
from specdec.models.transformer import Transformer

TARGET, DRAFT = "qwen3-1.7b", "qwen3-0.6b"

_SHARED = {
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
}
SHAPES = {
    TARGET: _SHARED | {"hidden_size": 2048, "intermediate_size": 6144},
    DRAFT: _SHARED | {"hidden_size": 1024, "intermediate_size": 3072},
}
COPIES = 2.5
"""Memory a model takes while it is packed, in units of its weights."""

BLOCK = 1 << 20


def shape_of(name: str) -> ModelConfig:
    return ModelConfig.from_dict(SHAPES[name], name)


def random_model(name: str, dtype: str, device: str) -> Transformer:
    """A model of that shape, ready to decode nonsense."""
    return fill(shape_of(name), dtype, device)


def fill(config: ModelConfig, dtype: str, device: str) -> Transformer:
    """A model of this configuration whose tensors repeat one block of small random numbers."""
    block = 0.02 * torch.randn(BLOCK, generator=torch.Generator().manual_seed(0))
    block = block.to(dtype_of(dtype))

    def tensor(shape: tuple[int, ...]) -> torch.Tensor:
        size = math.prod(shape)
        return block.repeat(-(-size // BLOCK))[:size].view(shape)

    weights = {name: tensor(shape) for name, shape in expected_shapes(config).items()}
    return Transformer(config, weights, dtype=dtype_of(dtype), device=device)


def shortage(names: Sequence[str], dtype: str) -> str | None:
    """Why there is not enough memory for these models at once, or None."""
    size = torch.empty(0, dtype=dtype_of(dtype)).element_size()
    elements = sum(math.prod(shape) for name in names for shape in expected_shapes(shape_of(name)).values())
    needed, free = int(COPIES * size * elements), psutil.virtual_memory().available
    if needed <= free:
        return None
    return f"{needed / 1e9:.1f} GB of memory are needed and {free / 1e9:.1f} are free"
