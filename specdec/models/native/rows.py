"""Where the rows of a pass stand in a cache, and what each of them sees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ctypes import addressof, c_int32, sizeof
from dataclasses import dataclass

from torch import Tensor

from specdec.models.native.structs import BREADTH, Place


@dataclass(frozen=True)
class Rows:
    """Row i goes to slot `slots[i]`, turns by `positions[i]` and sees the slots below `prefix[i]`, then those that its
    row of `mask` [rows, m] names, slot `masked_from` first.

    `keys` and `values` are [layers, kv_heads, capacity, d], shared by all rows, or [layers, rows, kv_heads, capacity,
    d]: a cache for each.
    """

    keys: Tensor
    values: Tensor
    slots: Sequence[int]
    positions: Sequence[int]
    prefix: Sequence[int]
    mask: Tensor | None = None
    masked_from: int = 0

    @classmethod
    def behind(cls, cache, count: int, positions: Sequence[int] | None = None, mask: Tensor | None = None) -> Rows:
        """A chain behind what the cache holds, or a tree: `mask` [count, m] names, of the last m slots, those that a
        row sees, itself among them."""
        start = cache.reserve(count)
        slots = range(start, start + count)
        wanted = slots if positions is None else positions
        if mask is None:
            return cls(cache.keys, cache.values, slots, wanted, range(start + 1, start + count + 1))
        begin = start + count - mask.shape[1]
        return cls(cache.keys, cache.values, slots, wanted, [begin] * count, mask.contiguous(), begin)

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def capacity(self) -> int:
        return self.keys.shape[-2]

    def places(self, turns: Tensor) -> Iterator[tuple[int, Place]]:
        """The first row and the struct of every piece of at most `BREADTH` rows; `turns` is the rotary table."""
        count = len(self)
        numbers = (c_int32 * (3 * count))(*self.slots, *self.positions, *self.prefix)
        address, size = addressof(numbers), sizeof(c_int32)
        apart = self.keys.stride(1) if self.keys.dim() == 5 else 0
        for first in range(0, count, BREADTH):
            mask = None if self.mask is None else self.mask.data_ptr() + first * self.mask.shape[1]
            yield (
                first,
                Place(
                    rows=min(BREADTH, count - first),
                    keys=self.keys.data_ptr() + first * apart * self.keys.itemsize,
                    values=self.values.data_ptr() + first * apart * self.values.itemsize,
                    layer_stride=self.keys.stride(0),
                    row_stride=apart,
                    capacity=self.capacity,
                    slots=address + first * size,
                    positions=address + (count + first) * size,
                    prefix=address + (2 * count + first) * size,
                    mask=mask,
                    masked=0 if self.mask is None else self.mask.shape[1],
                    masked_from=self.masked_from,
                    turns=turns.data_ptr(),
                ),
            )
