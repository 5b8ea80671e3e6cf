"""Rotary positions as one complex product.

Checkpoints in Transformers' layout rotate element i of a head with element i + d/2.  Rotating neighbours instead (2i
with 2i + 1) makes a head a vector of complex numbers and the rotation one product.  Attention sees only the inner
products of q and k, which do not change when both are permuted alike, so the rows of the q and k projections (and the
q/k norms) are permuted once when the model is loaded.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specdec.models.config import ModelConfig


def pair_neighbours(weight: Tensor, head_dim: int) -> Tensor:
    """Permute the leading dimension [heads * head_dim, ...]: the halves (i, i + d/2) become pairs (2i, 2i + 1)."""
    shape = weight.shape
    halves = weight.reshape(-1, 2, head_dim // 2, *shape[1:])
    return halves.transpose(1, 2).reshape(shape).contiguous()


def pair_halves(weight: Tensor, head_dim: int) -> Tensor:
    """The inverse of `pair_neighbours`: back to Transformers' layout."""
    shape = weight.shape
    return weight.reshape(-1, head_dim // 2, 2, *shape[1:]).transpose(1, 2).reshape(shape).contiguous()


def frequencies(config: ModelConfig) -> Tensor:
    """Radians per position, [head_dim / 2], float64; Llama-3 scaling applied where the configuration asks for it."""
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    inverse = config.rope_theta**-exponent
    scaling = config.rope_scaling
    if scaling is None:
        return inverse
    wavelength = 2 * math.pi / inverse
    blend = (scaling.original_max_positions / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * inverse / scaling.factor + blend * inverse


def table(config: ModelConfig, positions: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Unit complex numbers [positions, head_dim / 2], in double precision for float64 models, else single."""
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies(config))
    turns = torch.polar(torch.ones_like(angles), angles)
    return turns.to(torch.complex128 if dtype == torch.float64 else torch.complex64).to(device)


def rotate(heads: Tensor, turns: Tensor) -> Tensor:
    """Rotate heads [..., rows, n, d] (single or double precision, pairs adjacent) by turns [rows, d/2]."""
    pairs = torch.view_as_complex(heads.reshape(*heads.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns.unsqueeze(-2)).flatten(-2)
