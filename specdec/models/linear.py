"""Matrix products whose rows do not depend on how many rows are computed with them.

On a processor with bf16 instructions the weight is repacked once into oneDNN's blocked layout; the product then reads
each weight once for up to a few dozen rows.  Elsewhere (float32, float64, accelerators) it is PyTorch's own product.

The packed product is bit-identical for 1 to 32 rows except, on some processors, for a lone row at some shapes.  That is
found by measuring when a shape is first packed; a lone row is then computed as two.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor


@cache
def can_pack() -> bool:
    """Whether this processor and this build of PyTorch have packed bf16 products."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Linear:
    """y = x Wᵀ + b for x [rows, in] and W [out, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None):
        self.bytes = weight.nbytes + (bias.nbytes if bias is not None else 0)
        self._bias = bias
        self._packed = weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and can_pack()
        if self._packed:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 8)
            self._pair = _lone_row_differs(self._weight, tuple(weight.shape))
        else:
            self._weight = weight.contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        if not self._packed:
            return F.linear(x, self._weight, self._bias)
        if self._pair and x.shape[0] == 1:
            return _product(torch.cat((x, x)), self._weight, self._bias)[:1]
        return _product(x, self._weight, self._bias)


def _product(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


_LONE: dict[tuple[int, int, int], bool] = {}


def _lone_row_differs(packed: Tensor, shape: tuple[int, int]) -> bool:
    """Whether some element of a row changes when the row is computed alone; measured once a shape and thread count."""
    key = (*shape, torch.get_num_threads())
    if key not in _LONE:
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(32, shape[1], generator=generator).to(torch.bfloat16)
        together = _product(rows, packed, None)
        _LONE[key] = any(not torch.equal(_product(rows[i : i + 1], packed, None)[0], together[i]) for i in range(32))
    return _LONE[key]
