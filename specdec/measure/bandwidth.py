"""How fast this machine reads memory: the limit of decoding at batch size 1, where every token reads every weight.

The one idea: all threads stream through their part of a buffer far larger than the caches, in C where there is a
compiler (`read.c`), and the *fastest* of many passes counts: a limit may only be too high, never too low, or
something would seem to beat it.  On an accelerator its own memory counts, read by a sum.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from specdec.measure.alternate import alternate
from specdec.measure.clock import HostClock, clock_for
from specdec.measure.forward_times import seconds
from specdec.models.native.build import built
from specdec.models.native.memory import large_pages

SOURCE = Path(__file__).with_name("read.c")

BUFFER_BYTES = 512 * 2**20
"""Well above any cache that a machine of this kind has."""

DEVICE_BYTES = 2 * 2**30
"""The same for an accelerator."""

PASSES = 15


@dataclass(frozen=True)
class Bandwidth:
    """`bytes_per_s` of the fastest pass, and how it was measured: `c` or `torch`."""

    bytes_per_s: float
    method: str


@cache
def _reader() -> Callable | None:
    """The C function, or None without a compiler."""
    try:
        function = ctypes.CDLL(str(built("read", [SOURCE]))).read_words
    except (OSError, subprocess.SubprocessError):
        return None
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_long], ctypes.c_uint64
    return function


def read_bandwidth(threads: int, size: int = BUFFER_BYTES, passes: int = PASSES, clock=None) -> Bandwidth:
    """Of the host's memory, by `threads` threads over a buffer of `size` bytes."""
    # in large pages, as the weights are
    words = torch.arange(size // 8, out=large_pages(size).view(torch.int64))
    clock, reader = clock or HostClock(), _reader()
    if reader is None:
        # a plain reduction; slower than the limit on some machines, which `method` tells
        samples = alternate({"torch": lambda: seconds(clock, words.sum)}, passes)["torch"]
        return Bandwidth(words.nbytes / min(samples), "torch")
    bounds = [len(words) * i // threads for i in range(threads + 1)]
    parts = [(words[a:].data_ptr(), b - a) for a, b in zip(bounds, bounds[1:], strict=False)]
    with ThreadPoolExecutor(threads) as pool:  # the call lets go of the interpreter

        def read() -> None:
            for future in [pool.submit(reader, *part) for part in parts]:
                future.result()

        samples = alternate({"c": lambda: seconds(clock, read)}, passes)["c"]
    return Bandwidth(words.nbytes / min(samples), "c")


def device_bandwidth(device: torch.device, size: int = DEVICE_BYTES, passes: int = PASSES) -> Bandwidth:
    """Of an accelerator's memory, over a buffer of `size` bytes."""
    words, clock = torch.ones(size // 4, device=device), clock_for(device)

    def read() -> float:
        first = clock.mark()
        words.sum()
        return clock.between(first, clock.mark())

    return Bandwidth(words.nbytes / min(alternate({"sum": read}, passes)["sum"]), "torch")


def bandwidth_of(device: torch.device, threads: int) -> Bandwidth:
    """Of the memory that a model on `device` is read from."""
    return read_bandwidth(threads) if device.type == "cpu" else device_bandwidth(device)


def matmul_peak(
    dtype: torch.dtype, size: int = 1536, passes: int = 7, clock=None, device: torch.device | str = "cpu"
) -> float:
    """Operations a second of a large square product, the arithmetic's limit as PyTorch reaches it."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator).to(device, dtype) for _ in range(2))
    clock = clock or clock_for(a.device)
    samples = alternate({"mm": lambda: seconds(clock, lambda: a @ b)}, passes)["mm"]
    return 2 * size**3 / min(samples)
