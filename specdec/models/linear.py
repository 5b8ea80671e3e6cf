"""Matrix products whose rows do not depend on how many rows are computed with them.

On a CPU the weight is repacked once into oneDNN's blocked layout, float32 always and bf16 where the processor has
instructions for it; the product then reads each weight once for up to a few dozen rows.  Elsewhere (float64, float16,
accelerators) it is PyTorch's own product, which in float32 takes twice the time.

The packed product is bit-identical for `FEWEST` to 32 rows.  For fewer, oneDNN picks other kernels at some shapes,
which round differently and take 10 to 20 % longer; such rows are computed as `FEWEST`.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

FEWEST = 4
"""Rows of the narrowest packed product."""


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this processor and this build of PyTorch have packed products in `dtype`."""
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))


class Linear:
    """y = x Wᵀ + b for x [rows, in], rounded to the weight's format, and W [out, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None):
        self._bias, self._dtype = bias, weight.dtype
        self._packed = weight.device.type == "cpu" and can_pack(weight.dtype)
        self._weight = _pack(weight) if self._packed else weight.contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        if not self._packed:
            return F.linear(x.to(self._dtype), self._weight, self._bias)
        rows, width = x.shape
        if rows >= FEWEST:
            return _product(x.to(self._dtype), self._weight, self._bias)
        if rows > 1:
            x = torch.cat((x, x[:1].expand(FEWEST - rows, width)))
        repeated = torch.empty(FEWEST, width, dtype=self._dtype).copy_(x)  # rounds, and repeats a lone row, in one go
        return _product(repeated, self._weight, self._bias)[:rows]


def _pack(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 8)


def _product(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
