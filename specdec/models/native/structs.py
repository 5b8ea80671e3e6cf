"""The structs of `native.h`, and the memory that they point to.

A struct knows addresses only, so whoever makes one keeps its tensors (`Arena` holds what is packed into it).
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from specdec.models.native.memory import large_pages
from specdec.models.quantised import FORMATS, GROUP, Matrix, Quantised

BLOCK = 32
"""Outputs a block of packed weights."""

BREADTH = 64
"""Rows one call takes at most; wider passes go in pieces."""

CHUNK = 32 << 20
LINE = 64
PART = {"q8_0": 64 + 32 * BLOCK, "q4_1": 128 + 16 * BLOCK}
"""Bytes that a group of inputs takes in a block."""
KIND = {name: number for number, name in enumerate(("bf16", *FORMATS))}
"""As C numbers the formats."""

_KINDS: dict[str, type] = {"pointer": ctypes.c_void_p, "whole": ctypes.c_int64, "real": ctypes.c_double}


def _struct(name: str, fields: str) -> type[ctypes.Structure]:
    """A struct whose `fields` are declared as in C: a kind and names, and so on, separated by commas."""
    declared = [(field, _KINDS[kind]) for kind, *names in map(str.split, fields.split(",")) for field in names]
    _KINDS[name] = made = type(name, (ctypes.Structure,), {"_fields_": declared})
    return made


Product = _struct("Product", "pointer weight bias, whole inputs outputs kind")
Layer = _struct("Layer", "Product qkv o gate up down, pointer attention_norm mlp_norm q_norm k_norm")
Shape = _struct("Shape", "whole hidden heads kv_heads width, real eps")
Work = _struct("Work", "pointer hidden qkv gate up mixed gated x scratch, whole wide scratch_size")
Place = _struct(
    "Place",
    "whole rows, pointer keys values, whole layer_stride row_stride capacity, pointer slots positions prefix mask,"
    "whole masked masked_from, pointer turns",
)
Model = _struct("Model", "Shape shape, Product head, pointer embedding final_norm layers, whole count")
Step = _struct("Step", "whole index attend mlp")
Asked = _struct(
    "Asked", "pointer tokens states left plan, whole steps, pointer taps, whole tapped, pointer features logits seconds"
)
Head = _struct(
    "Head",
    "Shape shape, Product fc head, pointer embedding input_norm hidden_norm final_norm layers,"
    "whole count norm_before_residual",
)
Guess = _struct("Guess", "pointer tokens features states out logits, whole scored, pointer seconds")


def check(loaded: ctypes.CDLL) -> None:
    """Both languages must see the same structs and numbers."""
    structs = (Product, Layer, Shape, Work, Place, Model, Step, Asked, Head, Guess)
    ours = [*map(ctypes.sizeof, structs), BLOCK, BREADTH]
    theirs = list((ctypes.c_int64 * len(ours)).in_dll(loaded, "sizes"))
    if theirs != ours:
        raise AssertionError(f"structs differ: {theirs} bytes in C, {ours} here")


class Arena:
    """Memory for weights, in large pages where the system has them: a straight stream over small ones stops at each.

    What is placed here lives as long as the arena or a tensor of it does.
    """

    def __init__(self, loaded: ctypes.CDLL) -> None:
        self._loaded = loaded
        self._chunk: Tensor | None = None
        self._used = 0
        self._kept: list[Tensor] = []

    def empty(self, count: int, dtype: torch.dtype) -> Tensor:
        """[count] zeros, at the start of a cache line."""
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

    def product(self, weight: Matrix, bias: Tensor | None = None) -> Product:
        """A weight [out, in] packed: blocks of 32 outputs, within a block 2 inputs of every output side by side."""
        outputs, inputs = weight.shape
        blocks = -(-outputs // BLOCK)
        if isinstance(weight, Quantised):
            kind = weight.format
            packed = self.empty(blocks * inputs // GROUP * PART[kind], torch.uint8)
            parts = (weight.numbers, weight.scales, weight.least)
            given = [None if part is None else part.contiguous() for part in parts]
            pack, last = self._loaded.pack_groups, (KIND[kind],)
        else:
            kind = "bf16"
            packed = self.empty(blocks * BLOCK * 2 * -(-inputs // 2), torch.bfloat16)
            given = [weight.bfloat16().contiguous()]
            pack, last = self._loaded.pack, ()
        addresses = [None if part is None else part.data_ptr() for part in (*given, packed)]
        numbers = (inputs, outputs, *last, torch.get_num_threads())
        pack(*map(ctypes.c_void_p, addresses), *map(ctypes.c_int64, numbers))
        return Product(
            packed.data_ptr(), None if bias is None else self.floats(bias, BLOCK), inputs, outputs, KIND[kind]
        )
