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
            self._weight = _pack(weight)
            self._pair = _lone_row_differs(tuple(weight.shape))
        else:
            self._weight = weight.contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        if not self._packed:
            return F.linear(x, self._weight, self._bias)
        if self._pair and x.shape[0] == 1:
            return _product(torch.cat((x, x)), self._weight, self._bias)[:1]
        return _product(x, self._weight, self._bias)


def _pack(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 8)


def _product(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


_LONE: dict[tuple[int, int, int], bool] = {}


def _lone_row_differs(shape: tuple[int, int]) -> bool:
    """Whether a row's result changes when the row is computed alone; measured once a shape and thread count.

    In the probe each product's terms cancel in pairs, so that what is left is rounding alone: any other order of
    summing shows, where ordinary numbers hide it behind the rounding to bf16 in all but a few elements of a thousand.
    """
    key = (*shape, torch.get_num_threads())
    if key not in _LONE:
        rows, width = shape
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(width, generator=generator)
        first, second = order[: width // 2], order[width // 2 : width // 2 * 2]
        weight = torch.randn(min(rows, 64), width, generator=generator).to(torch.bfloat16)
        weight[:, second] = weight[:, first]
        packed = _pack(weight.repeat(-(-rows // len(weight)), 1)[:rows])
        x = torch.randn(8, width, generator=generator).to(torch.bfloat16)
        x[:, second] = -x[:, first]
        together = _product(x, packed, None)
        _LONE[key] = any(not torch.equal(_product(x[i : i + 1], packed, None)[0], together[i]) for i in range(len(x)))
    return _LONE[key]
