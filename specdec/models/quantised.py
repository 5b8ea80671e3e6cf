"""Weights held in 8 or 4 bits, in the blocks of GGUF's formats Q8_0 and Q4_1.

A group of 32 inputs of an output shares a scale, and in Q4_1 a least value, both in half precision.  Number n stands
for scale * n, or for scale * n + least, rounded to bf16: the engine reads the numbers and computes with what they stand
for, so that a product is, bit for bit, that of the bf16 weights `dequantised` gives, at half or a third of the reading.

Source of the formats: `block_q8_0` and `block_q4_1` of ggml (https://github.com/ggml-org/ggml).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.errors import unknown

GROUP = 32
FORMATS = ("q8_0", "q4_1")


@dataclass(frozen=True)
class Quantised:
    """A matrix [out, in]: `numbers` [out, in], int8 in Q8_0 and uint8 below 16 in Q4_1; `scales` and, in Q4_1, `least`
    [out, in / 32] in half precision."""

    numbers: Tensor
    scales: Tensor
    least: Tensor | None = None

    @property
    def format(self) -> str:
        return "q8_0" if self.least is None else "q4_1"

    @property
    def shape(self) -> torch.Size:
        return self.numbers.shape

    @property
    def nbytes(self) -> int:
        """What a pass reads: two numbers of 4 bits lie in a byte."""
        if self.least is None:
            return self.numbers.numel() + self.scales.nbytes
        return self.numbers.numel() // 2 + self.scales.nbytes + self.least.nbytes

    def dequantised(self) -> Tensor:
        """[out, in] in bf16."""
        grouped = self.numbers.unflatten(1, (-1, GROUP)).float() * self.scales.float()[..., None]
        if self.least is not None:
            grouped += self.least.float()[..., None]
        return grouped.flatten(1).bfloat16()

    def rows(self, index: Tensor | slice) -> Quantised:
        """Some of the outputs."""
        return self._each(lambda part: part[index])

    def chunk(self, count: int) -> list[Quantised]:
        """As `Tensor.chunk`, over the outputs."""
        return [self.rows(part) for part in torch.arange(len(self.numbers)).chunk(count)]

    def _each(self, change: Callable[[Tensor], Tensor]) -> Quantised:
        return Quantised(change(self.numbers), change(self.scales), None if self.least is None else change(self.least))


Matrix = Tensor | Quantised


def quantised(weight: Tensor, format: str) -> Matrix:
    """`weight` [out, in] rounded to a format; one whose inputs are no whole groups, or a vector, stays as it is.

    In Q8_0 the largest number of a group is 127; in Q4_1 its least and its greatest are hit but for the rounding of
    scale and least value.
    """
    if format not in FORMATS:
        raise unknown("weights", format, FORMATS)
    if weight.dim() != 2 or weight.shape[1] % GROUP:
        return weight
    grouped = weight.float().unflatten(1, (-1, GROUP))
    if format == "q8_0":
        scales = (grouped.abs().amax(-1) / 127).half()
        numbers = (grouped / _divisor(scales)).round().clamp(-127, 127).to(torch.int8)
        return Quantised(numbers.flatten(1), scales)
    least = grouped.amin(-1).half()
    scales = ((grouped.amax(-1) - least.float()) / 15).clamp(min=0).half()
    numbers = ((grouped - least.float()[..., None]) / _divisor(scales)).round().clamp(0, 15).to(torch.uint8)
    return Quantised(numbers.flatten(1), scales, least)


def held(weight: Matrix, format: str | None, like: Tensor, engine: bool) -> Matrix:
    """A tensor as a model keeps it: a matrix rounded to `format`, unless that is None or it is quantised already.

    Without the engine, which alone reads quantised ones, it is what they stand for, of `like`'s kind and place.
    """
    if format is not None and isinstance(weight, Tensor):
        weight = quantised(weight.to(like.dtype), format)
    return weight if engine and isinstance(weight, Quantised) else plain(weight).to(like)


def _divisor(scales: Tensor) -> Tensor:
    """A group that is all alike has scale 0 and number 0."""
    return torch.where(scales == 0, 1.0, scales.float())[..., None]


def stacked(parts: Sequence[Matrix]) -> Matrix:
    """Matrices under one another; those of different formats as bf16."""
    if all(isinstance(part, Quantised) for part in parts) and len({part.format for part in parts}) == 1:
        least = None if parts[0].least is None else torch.cat([part.least for part in parts])
        return Quantised(torch.cat([p.numbers for p in parts]), torch.cat([p.scales for p in parts]), least)
    return torch.cat([plain(part) for part in parts])


def reordered(weight: Matrix, order: Callable[[Tensor], Tensor]) -> Matrix:
    """With its outputs moved, as `order` moves a tensor's rows."""
    if isinstance(weight, Quantised):
        return weight.rows(order(torch.arange(len(weight.numbers))))
    return order(weight)


def plain(weight: Matrix) -> Tensor:
    """As a tensor."""
    return weight.dequantised() if isinstance(weight, Quantised) else weight
