"""The key-value cache: preallocated, cut and compacted by moving its length.

Slots [0, length) hold committed rows in text order.  A forward writes its rows behind them.  Rejected rows are dropped
by `truncate`; the accepted path of a tree is made contiguous by `keep`, which copies only rows that change place.

Invariant: a cache may lag behind the tokens; whoever runs next feeds the gap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.errors import UserError
from specdec.models.config import ModelConfig
from specdec.models.native.memory import large_pages

BLOCK = 64
"""Attention reads the cache in whole blocks of this many slots, so that a row's result does not depend on others."""


class KVCache:
    """Keys and values of every layer, [layers, kv_heads, capacity, head_dim]."""

    def __init__(self, config: ModelConfig, capacity: int, dtype: torch.dtype, device: torch.device | str = "cpu"):
        self.capacity = -(-capacity // BLOCK) * BLOCK
        # Zeroed: masked slots are multiplied by a weight of zero, which is only harmless for finite numbers.
        shape = (config.layers, config.kv_heads, self.capacity, config.head_dim)
        self.keys, self.values = (_zeros(shape, dtype, torch.device(device)) for _ in "kv")
        self.length = 0
        self._windows: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}

    @property
    def bytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def reserve(self, rows: int) -> int:
        """The first of `rows` free slots; raises when they do not fit."""
        if self.length + rows > self.capacity:
            raise UserError(f"context is full: {self.length} + {rows} rows exceed the cache's {self.capacity}")
        return self.length

    def windows(self, end: int, rows: int) -> list[tuple[Tensor, Tensor]]:
        """By layer, keys and values of the first `end` slots, [rows (stride 0), kv_heads, end, head_dim].

        Views, made once: making them anew for every layer of every pass would cost more than some of the arithmetic.
        """
        if (end, rows) not in self._windows:
            keys, values = (side[:, None, :, :end].expand(-1, rows, -1, -1, -1) for side in (self.keys, self.values))
            self._windows[end, rows] = list(zip(keys.unbind(0), values.unbind(0), strict=True))
        return self._windows[end, rows]

    def truncate(self, length: int) -> None:
        """Forget every row behind `length`."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of length {self.length} to {length}")
        self.length = length

    def keep(self, base: int, rows: Sequence[int]) -> None:
        """Of the rows written from slot `base` on, keep `rows` (ascending), in order, and forget the others."""
        moved = next((i for i, row in enumerate(rows) if row != i), len(rows))
        if moved < len(rows):
            source = torch.tensor([base + row for row in rows[moved:]], device=self.keys.device)
            target = slice(base + moved, base + len(rows))
            self.keys[:, :, target] = self.keys[:, :, source]
            self.values[:, :, target] = self.values[:, :, source]
        self.length = base + len(rows)

    def view(self) -> CacheView:
        """A tentative continuation of this cache for a drafter that runs some of the target's layers."""
        return CacheView(self)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return large_pages(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)


class CacheView:
    """Another model's window on a cache: the committed length is the parent's, tentative rows are counted here.

    Tentative rows are written into the parent's free slots, where the parent's next forward overwrites them.
    """

    def __init__(self, parent: KVCache):
        self._parent = parent
        self._tentative = 0

    capacity = property(lambda self: self._parent.capacity)
    keys: Tensor = property(lambda self: self._parent.keys)
    values: Tensor = property(lambda self: self._parent.values)

    @property
    def length(self) -> int:
        return self._parent.length + self._tentative

    @length.setter
    def length(self, value: int) -> None:
        self._tentative = value - self._parent.length

    def reserve(self, rows: int) -> int:
        if self.length + rows > self.capacity:
            raise UserError(f"context is full: {self.length} + {rows} rows exceed the cache's {self.capacity}")
        return self.length

    def windows(self, end: int, rows: int) -> list[tuple[Tensor, Tensor]]:
        return self._parent.windows(end, rows)

    def rollback(self) -> None:
        """Forget what was tentative."""
        self._tentative = 0
