"""Memory in large pages, where the system has them: a straight stream over small ones stops at the end of each."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

PAGE = 2 << 20


def large_pages(size: int) -> Tensor:
    """[size] bytes of zeros.  Less than a large page stays in small ones."""
    if size < PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(size, dtype=torch.uint8)
    block = mmap.mmap(-1, size + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(block, dtype=torch.uint8)
    begin = -whole.data_ptr() % PAGE
    return whole[begin : begin + size]
