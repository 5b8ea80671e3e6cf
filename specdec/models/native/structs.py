"""The structs of `native.h`, `forward.c` and `eagle.c`, and the memory that they point to.

A struct knows addresses only, so whoever makes one keeps its tensors (`Arena` holds what is packed into it).
"""

from __future__ import annotations

import ctypes
import mmap

import torch
from torch import Tensor

BLOCK = 16
"""Outputs a block of packed weights."""

BREADTH = 64
"""Rows one call takes at most; wider passes go in pieces."""

CHUNK = 32 << 20
LINE = 64

_Pointer, _Whole, _Real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


def _struct(name: str, pointers: str = "", wholes: str = "", **others) -> type[ctypes.Structure]:
    fields = list(others.items())
    fields += [(field, _Pointer) for field in pointers.split()] + [(field, _Whole) for field in wholes.split()]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


Product = _struct("Product", "weight bias", "inputs outputs")
Layer = _struct(
    "Layer",
    "attention_norm mlp_norm q_norm k_norm",
    **{name: Product for name in ("qkv", "o", "gate", "up", "down")},
)
Shape = _struct("Shape", **{name: _Whole for name in ("hidden", "heads", "kv_heads", "width")}, eps=_Real)
Work = _struct("Work", "hidden qkv gate up mixed gated x scratch", "wide scratch_size")


class Place(ctypes.Structure):
    _fields_ = [
        ("rows", _Whole),
        ("keys", _Pointer),
        ("values", _Pointer),
        ("layer_stride", _Whole),
        ("row_stride", _Whole),
        ("capacity", _Whole),
        ("slots", _Pointer),
        ("positions", _Pointer),
        ("prefix", _Pointer),
        ("mask", _Pointer),
        ("masked", _Whole),
        ("masked_from", _Whole),
        ("turns", _Pointer),
    ]


Model = _struct("Model", "embedding final_norm layers", "count", shape=Shape, head=Product)
Step = _struct("Step", "", "index attend mlp")


class Asked(ctypes.Structure):
    _fields_ = [
        ("tokens", _Pointer),
        ("plan", _Pointer),
        ("steps", _Whole),
        ("taps", _Pointer),
        ("tapped", _Whole),
        ("features", _Pointer),
        ("logits", _Pointer),
        ("seconds", _Pointer),
    ]


Head = _struct(
    "Head",
    "embedding input_norm hidden_norm final_norm",
    "norm_before_residual",
    shape=Shape,
    layer=Layer,
    fc=Product,
    head=Product,
)


class Guess(ctypes.Structure):
    _fields_ = [
        ("tokens", _Pointer),
        ("features", _Pointer),
        ("states", _Pointer),
        ("out", _Pointer),
        ("logits", _Pointer),
        ("scored", _Whole),
        ("seconds", _Pointer),
    ]


def check(loaded: ctypes.CDLL) -> None:
    """Both languages must see the same structs."""
    for name, structs in {
        "sizes": (Product, Layer, Shape, Work, Place, Model, Step, Asked),
        "head_sizes": (Head, Guess),
    }.items():
        theirs = list((_Whole * len(structs)).in_dll(loaded, name))
        ours = [ctypes.sizeof(struct) for struct in structs]
        if theirs != ours:
            raise AssertionError(f"structs differ: {theirs} bytes in C, {ours} here")


class Arena:
    """Memory for weights, in large pages where the system has them: a straight stream over small ones stops at each.

    What is placed here lives as long as the arena or a tensor of it does.
    """

    def __init__(self) -> None:
        self._chunk: Tensor | None = None
        self._used = 0
        self._kept: list[Tensor] = []

    def empty(self, count: int, dtype: torch.dtype) -> Tensor:
        """[count], at the start of a cache line."""
        size = count * dtype.itemsize
        if self._chunk is None or self._used + size > len(self._chunk):
            self._chunk, self._used = large_pages(max(size, CHUNK)), 0
            self._kept.append(self._chunk)
        found = self._chunk[self._used : self._used + size].view(dtype)
        self._used += -(-size // LINE) * LINE
        return found

    def floats(self, values: Tensor, multiple: int = 1) -> int:
        """Address of a copy in single precision, filled up with zeros to a multiple."""
        count = values.numel()
        kept = self.empty(-(-count // multiple) * multiple, torch.float32)
        kept[:count], kept[count:] = values.flatten(), 0
        return kept.data_ptr()

    def product(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        """A weight [out, in] packed: blocks of 16 outputs, within a block 2 inputs of every output side by side."""
        outputs, inputs = weight.shape
        blocks, pairs = -(-outputs // BLOCK), -(-inputs // 2)
        even = weight.new_zeros(blocks * BLOCK, 2 * pairs)
        even[:outputs, :inputs] = weight
        packed = self.empty(even.numel(), torch.bfloat16)
        packed.view(torch.int32).view(blocks, pairs, BLOCK).copy_(
            even.view(torch.int32).view(blocks, BLOCK, pairs).transpose(1, 2)
        )
        return Product(packed.data_ptr(), None if bias is None else self.floats(bias, BLOCK), inputs, outputs)


def large_pages(size: int) -> Tensor:
    """[size] bytes of fresh memory."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(size, dtype=torch.uint8)
    page = 2 << 20
    block = mmap.mmap(-1, size + page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(block, dtype=torch.uint8)
    begin = -whole.data_ptr() % page
    return whole[begin : begin + size]
