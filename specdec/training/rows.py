"""Many texts at once, one token a step: the target as a writer of training text.

Each row has a cache and a length of its own, so that a finished text is replaced at once and no row waits for another.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.models.native.rows import Rows
from specdec.models.transformer import Transformer

STRIDE = 64
"""The cache is read in steps of this many slots."""


class RowCache:
    """Keys and values [layers, rows, kv_heads, capacity, head_dim]; `lengths` [rows] counts what each row holds."""

    def __init__(self, model: Transformer, rows: int, capacity: int):
        c = model.config
        self.capacity = -(-capacity // STRIDE) * STRIDE
        shape = (c.layers, rows, c.kv_heads, self.capacity, c.head_dim)
        self.keys = torch.zeros(shape, dtype=model.dtype, device=model.device)
        self.values = torch.zeros(shape, dtype=model.dtype, device=model.device)
        self.lengths = torch.zeros(rows, dtype=torch.long, device=model.device)

    def open(self, row: int, opening: RowCache) -> None:
        """Start a text in `row` with what the one-row cache `opening` holds."""
        length = int(opening.lengths[0])
        self.keys[:, row, :, :length] = opening.keys[:, 0, :, :length]
        self.values[:, row, :, :length] = opening.values[:, 0, :, :length]
        self.lengths[row] = length


class RowAttention:
    """One new token in every row; a row sees what its own cache holds, and itself."""

    def __init__(self, model: Transformer, cache: RowCache):
        self._cache = cache
        self._rows = torch.arange(len(cache.lengths), device=model.device)
        self._end = min(cache.capacity, (int(cache.lengths.max()) // STRIDE + 1) * STRIDE)
        self.turns = model.rotations(self._end)[cache.lengths]
        seen = torch.arange(self._end, device=model.device)[None] <= cache.lengths[:, None]
        mask = torch.zeros(seen.shape, dtype=model.dtype, device=model.device).masked_fill_(~seen, -math.inf)
        self._mask = mask[:, None, None, :]

    def __call__(self, index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._cache.keys[index], self._cache.values[index]
        keys[self._rows, :, self._cache.lengths] = k
        values[self._rows, :, self._cache.lengths] = v
        rows, heads, dim = q.shape
        grouped = q.reshape(rows, k.shape[1], heads // k.shape[1], dim)
        end = self._end
        return F.scaled_dot_product_attention(grouped, keys[:, :, :end], values[:, :, :end], self._mask).reshape(
            q.shape
        )


@torch.inference_mode()
def step(model: Transformer, cache: RowCache, tokens: list[int]) -> Tensor:
    """Feed one token a row; logits [rows, V] for what follows."""
    if model.native is not None:
        ends = cache.lengths.tolist()
        rows = Rows(cache.keys, cache.values, ends, ends, [end + 1 for end in ends])
        logits, *_ = model.native.forward(tokens, rows, model.rotations(max(ends) + 1), model.full_plan)
        cache.lengths += 1
        return logits
    hidden, _ = model.layers(model.embed(tokens), model.full_plan, RowAttention(model, cache))
    cache.lengths += 1
    return model.head(model.norm(hidden))
