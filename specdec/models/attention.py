"""Who sees what in one forward: where rows go in the cache, how they turn, and the attention kernel that fits them.

An attention pattern is made once a forward and called once a layer.  `CachedAttention` is the pattern of decoding: rows
of one text, or of a tree behind it, over one cache.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.models.kvcache import BLOCK, CacheView, KVCache

NARROW = 32
"""Widths up to this are verification and drafting; wider passes are prefill."""


class Attention(Protocol):
    """`turns` [rows, d/2] rotates queries and keys; calling it mixes values for layer `index`."""

    turns: Tensor

    def __call__(self, index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [rows, heads, d], k and v [rows, kv_heads, d] -> [rows, heads, d]; stores k and v on the way."""


class CachedAttention:
    """Rows appended behind what the cache holds.

    Up to `NARROW` rows, each is a batch entry of its own that reads the shared cache in place, up to the end of the
    block that holds its own slot; grouped queries are the kernel's query rows, so no key is repeated.  A row's result
    then does not depend on what is computed with it, but for rare last bits: the kernel sums in an order that follows
    the alignment of its buffers.  Wider passes are one ordinary call.
    """

    def __init__(
        self,
        cache: KVCache | CacheView,
        width: int,
        turns: Tensor,
        dtype: torch.dtype,
        mask: Tensor | None = None,
    ):
        self.turns = turns
        self.start, self.width = cache.reserve(width), width
        self._kv_heads = cache.keys.shape[1]
        # views made once a forward: making them in every layer would cost more than some of the arithmetic
        written = slice(self.start, self.start + width)
        self._keys, self._values = (
            side[:, :, written].transpose(1, 2).unbind(0) for side in (cache.keys, cache.values)
        )
        self._narrow = width <= NARROW
        self._segments = []
        for rows, end in self._spans():
            allowed = _additive(_visible(self.start, width, mask, rows, end), dtype, turns.device)
            count = rows.stop - rows.start if self._narrow else 1
            self._segments.append(
                (rows, cache.windows(end, count), allowed[:, None, None, :] if self._narrow else allowed)
            )

    def _spans(self) -> list[tuple[slice, int]]:
        """Runs of rows that read the cache up to the same slot."""
        if not self._narrow:
            return [(slice(0, self.width), self.start + self.width)]
        spans, first = [], 0
        while first < self.width:
            end = ((self.start + first) // BLOCK + 1) * BLOCK
            last = min(self.width, end - self.start)
            spans.append((slice(first, last), end))
            first = last
        return spans

    def __call__(self, index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._keys[index].copy_(k)
        self._values[index].copy_(v)
        heads, dim, kv_heads = q.shape[1], q.shape[2], self._kv_heads
        if not self._narrow:
            _, windows, allowed = self._segments[0]
            q = q.transpose(0, 1)[None]
            mixed = F.scaled_dot_product_attention(q, *windows[index], allowed, enable_gqa=heads > kv_heads)
            return mixed[0].transpose(0, 1)
        q = q.reshape(self.width, kv_heads, heads // kv_heads, dim)
        parts = [
            F.scaled_dot_product_attention(q[rows], *seen[index], allowed) for rows, seen, allowed in self._segments
        ]
        mixed = parts[0] if len(parts) == 1 else torch.cat(parts)
        return mixed.reshape(self.width, heads, dim)


def _visible(start: int, width: int, mask: Tensor | None, rows: slice, end: int) -> Tensor:
    """[rows, end], bool: the slots each row may look at."""
    slots = torch.arange(end)
    if mask is None:
        return slots[None, :] <= torch.arange(start + rows.start, start + rows.stop)[:, None]
    prefix = start + width - mask.shape[1]
    seen = (slots < prefix).repeat(rows.stop - rows.start, 1)
    reach = min(end, start + width)
    seen[:, prefix:reach] = mask[rows, : reach - prefix].cpu()
    return seen


def _additive(seen: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -math.inf).to(device)
