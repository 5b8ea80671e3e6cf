"""The engine's products, for tests."""

import ctypes
import math

import torch

from specdec.models.native import native_for
from specdec.models.native.structs import Arena


def product(x: torch.Tensor, weight, bias: torch.Tensor | None = None, threads: int = 1) -> torch.Tensor:
    """x W^T + b by the engine, for a tensor or a quantised weight."""
    loaded = native_for(torch.bfloat16, torch.device("cpu"))
    arena = Arena(loaded)
    packed, x = arena.product(weight, bias), x.contiguous()
    out = torch.full((len(x), weight.shape[0]), math.nan)
    pointers = (ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(out.data_ptr()))
    loaded.multiply(ctypes.byref(packed), *pointers, ctypes.c_int64(len(x)), ctypes.c_int64(threads))
    return out
