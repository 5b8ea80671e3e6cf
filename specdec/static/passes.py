"""One model's forward with fixed shapes: so many rows, a cache read up to a fixed end, slots that the device names."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.errors import UserError
from specdec.models.kvcache import KVCache
from specdec.models.transformer import Transformer


class SlotAttention:
    """Rows that go to the slots [rows] of a cache and see every slot up to their own.

    A key's rows and the queries that share it are one product, so that the cache is read once for all rows.
    """

    def __init__(self, cache: KVCache, slots: Tensor, seen: Tensor, turns: Tensor, dtype: torch.dtype):
        """`seen` [rows, end], bool."""
        self.turns, self._cache, self._slots = turns, cache, slots
        self._end = seen.shape[1]
        self._allowed = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -math.inf)

    def __call__(self, index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._cache.keys[index], self._cache.values[index]
        keys.index_copy_(1, self._slots, k.transpose(0, 1))
        values.index_copy_(1, self._slots, v.transpose(0, 1))
        rows, heads, dim = q.shape
        kv_heads = len(keys)
        group = heads // kv_heads
        asked = q.view(rows, kv_heads, group, dim).transpose(0, 1).reshape(1, kv_heads, rows * group, dim)
        allowed = self._allowed[:, None].expand(-1, group, -1).reshape(rows * group, self._end)
        window = (keys[None, :, : self._end], values[None, :, : self._end])
        mixed = F.scaled_dot_product_attention(asked, *window, allowed)
        return mixed.view(kv_heads, rows, group, dim).transpose(0, 1).reshape(rows, heads, dim)


class Passes:
    """A model with a cache of its own, allocated once."""

    def __init__(self, model: Transformer, capacity: int):
        if model.native is not None:
            raise UserError(
                "static decoding runs on PyTorch's operators, not on the native engine; use float32, a CUDA device, or "
                "SPECDEC_NATIVE=0"
            )
        self.model, self.cache = model, model.new_cache(capacity)
        self._turns = model.rotations(self.cache.capacity)
        self._places = torch.arange(self.cache.capacity, device=model.device)

    def read(self, prompt: list[int]) -> None:
        """Forget everything and take in a prompt but for its last token."""
        self.cache.truncate(0)
        if len(prompt) > 1:
            self.model.forward(prompt[:-1], self.cache, logits=False)

    def score(self, tokens: Tensor, slots: Tensor, end: int) -> Tensor:
        """Logits [rows, V] of tokens [rows] at slots [rows], both on the device, all below `end`.

        Keys and values go into those slots, over what was there; whoever stands behind a row is not seen by it.
        """
        model = self.model
        seen = self._places[:end] <= slots[:, None]
        attention = SlotAttention(self.cache, slots, seen, self._turns.index_select(0, slots), model.dtype)
        hidden, _ = model.layers(model.embed(tokens), model.full_plan, attention)
        return model.head(model.norm(hidden))
