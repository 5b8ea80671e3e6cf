"""A decoder layer's work between its matrix products, and the attention of a few rows, in a small C library.

It is built on first use with the system's compiler, in about a second, and kept under the user's cache folder by a hash
of source, flags and processor.  Without a compiler nothing is lost but speed, and bit equality in rare cases: the
PyTorch path is the reference and the fallback.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

FLAGS = ("-O3", "-march=native", "-ffast-math", "-ffp-contract=off", "-fopenmp-simd", "-fPIC", "-shared")
SOURCE = Path(__file__).with_name("fused.c")


@cache
def library() -> ctypes.CDLL | None:
    """The built library, or None where it cannot be built or is switched off (SPECDEC_FUSED=0)."""
    if os.environ.get("SPECDEC_FUSED") == "0":
        return None
    try:
        loaded = ctypes.CDLL(str(built(SOURCE)))
    except (OSError, subprocess.SubprocessError):
        return None
    pointer, whole, real = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
    loaded.add_norm.argtypes = [pointer] * 5 + [whole, whole, real]
    loaded.place.argtypes = [pointer] * 4 + [real] + [pointer] * 3 + [whole] * 6
    loaded.gated.argtypes = [pointer, pointer, whole, whole]
    loaded.attend.argtypes = [pointer] * 8 + [whole] * 6 + [real]
    loaded.attend_apart.argtypes = [pointer] * 6 + [whole] * 5 + [real]
    for function in (loaded.add_norm, loaded.place, loaded.gated, loaded.attend, loaded.attend_apart):
        function.restype = None
    return loaded


def built(source: Path) -> Path:
    """The library made of one C file, compiled now if no earlier run has; raises `OSError` without a compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise OSError("no C compiler")
    digest = hashlib.sha256(source.read_bytes() + " ".join((compiler, *FLAGS)).encode() + _processor())
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specdec"
    target = folder / f"{source.stem}-{digest.hexdigest()[:16]}.so"
    if not target.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:  # built aside, so that two processes do not meet
            made = Path(work) / target.name
            command = [compiler, *FLAGS, "-o", str(made), str(source), "-lm"]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            made.replace(target)
    return target


def _processor() -> bytes:
    """What -march=native looks at."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return b""
    return "".join(line for line in lines if line.startswith(("flags", "model name", "Features"))).encode()


@cache
def _helper() -> ThreadPoolExecutor:
    """A second thread for work that is C throughout and lets go of the interpreter."""
    return ThreadPoolExecutor(1)


class Reach:
    """What each row of a pass may see: its first `prefix` slots, then listed ones, a tree's ancestors in path order."""

    def __init__(self, start: int, rows: int, mask: Tensor | None):
        if mask is None:
            self.prefix = torch.arange(start + 1, start + rows + 1)
            self.extras = torch.zeros(rows, dtype=torch.long)
            self.extra = torch.zeros(rows, 1, dtype=torch.long)
        else:
            begin = start + rows - mask.shape[1]
            self.prefix = torch.full((rows,), begin)
            self.extras = mask.sum(1)
            # ancestors first: the slots a row sees, ascending, since parents are stored before their children
            order = torch.where(mask, torch.arange(mask.shape[1]), mask.shape[1]).sort(1).values
            self.extra = (order + begin).contiguous()
        self._longest = int((self.prefix + self.extras).max())
        self._work: Tensor | None = None

    def work(self, group: int, width: int) -> int:
        """Address of the kernel's workspace, made once a pass."""
        if self._work is None:
            self._work = torch.empty(group * (2 * width + self._longest) + self._longest)
        return self._work.data_ptr()


class Fused:
    """The library's functions over tensors: contiguous, on the CPU, bf16 and float32 as the C source says."""

    def __init__(self, loaded: ctypes.CDLL):
        self._add_norm, self._place, self._gated = loaded.add_norm, loaded.place, loaded.gated
        self._attend, self._attend_apart = loaded.attend, loaded.attend_apart

    def add_norm(self, hidden: Tensor, update: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(hidden + update, its norm in bf16); the inputs are not changed."""
        rows, width = hidden.shape
        total = hidden if update is None else torch.empty_like(hidden)
        out = torch.empty(rows, width, dtype=torch.bfloat16)
        added = None if update is None else update.data_ptr()
        self._add_norm(hidden.data_ptr(), added, weight.data_ptr(), total.data_ptr(), out.data_ptr(), rows, width, eps)
        return total, out

    def place(
        self,
        qkv: Tensor,
        turns: Tensor,
        norms: tuple[Tensor | None, Tensor | None],
        eps: float,
        keys: Tensor,
        values: Tensor,
        heads: int,
        start: int,
    ) -> Tensor:
        """Turned queries [rows, heads, d]; turned keys and the values go to their slots [kv_heads, capacity, d]."""
        kv_heads, capacity, width = keys.shape
        rows = len(qkv)
        q = torch.empty(rows, heads, width, dtype=torch.bfloat16)
        q_norm, k_norm = (None if norm is None else norm.data_ptr() for norm in norms)
        self._place(
            qkv.data_ptr(),
            turns.data_ptr(),
            q_norm,
            k_norm,
            eps,
            q.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            rows,
            heads,
            kv_heads,
            width,
            capacity,
            start,
        )
        return q

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, reach: Reach) -> Tensor:
        """Values mixed for q [rows, heads, d] over the slots that each row may see; [rows, heads, d]."""
        rows, heads, width = q.shape
        kv_heads, capacity, _ = keys.shape
        out = torch.empty_like(q)
        self._attend(
            q.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            out.data_ptr(),
            reach.work(heads // kv_heads, width),
            reach.prefix.data_ptr(),
            reach.extra.data_ptr(),
            reach.extras.data_ptr(),
            rows,
            heads,
            kv_heads,
            width,
            capacity,
            reach.extra.shape[1],
            width**-0.5,
        )
        return out

    def attend_apart(self, q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        """Values mixed for q [rows, heads, d], each row over its own cache [rows, kv_heads, capacity, d]."""
        rows, heads, width = q.shape
        _, kv_heads, capacity, _ = keys.shape
        q, out = q.contiguous(), torch.empty(q.shape, dtype=q.dtype)

        def part(begin: int, end: int) -> None:
            work = torch.empty(heads // kv_heads * (2 * width + capacity) + capacity)
            places = (q[begin:], keys[begin:], values[begin:], out[begin:], work, lengths[begin:])
            sizes = (end - begin, heads, kv_heads, width, capacity)
            self._attend_apart(*(place.data_ptr() for place in places), *sizes, width**-0.5)

        other = _helper().submit(part, rows // 2, rows)
        part(0, rows // 2)
        other.result()
        return out

    def gated(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up [rows, n] of [rows, 2 n]."""
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty(rows, width, dtype=torch.bfloat16)
        self._gated(gate_up.data_ptr(), out.data_ptr(), rows, width)
        return out


def fused_for(dtype: torch.dtype, device: torch.device) -> Fused | None:
    """The fused operations, where they serve this number format and device."""
    if dtype != torch.bfloat16 or device.type != "cpu":
        return None
    loaded = library()
    return None if loaded is None else Fused(loaded)
