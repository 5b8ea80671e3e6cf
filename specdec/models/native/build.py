"""Small C libraries, built on first use with the system's compiler, in about two seconds.

They are kept under the user's cache folder by a hash of sources, flags and processor.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fPIC", "-shared")
"""No fast-math: it would let the compiler choose the order of sums, and loading the library would change how the whole
process treats denormal numbers."""


@cache
def library() -> ctypes.CDLL | None:
    """The engine, or None where `obstacle` says why not."""
    return _loaded()[0]


def obstacle() -> str | None:
    """Why there is no engine, as a clause; None where there is one."""
    return _loaded()[1]


@cache
def _loaded() -> tuple[ctypes.CDLL | None, str | None]:
    if os.environ.get("SPECDEC_NATIVE") == "0":
        return None, "switched off by SPECDEC_NATIVE=0"
    processor = _processor()
    if processor and b"avx512_bf16" not in processor:
        return None, "this processor has no AVX-512 bf16 instructions"
    if compiler() is None:
        return None, "no C compiler; apt-get install gcc"
    try:
        return ctypes.CDLL(str(built("native", sorted(FOLDER.glob("*.[ch]")), "-fopenmp"))), None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        return None, f"the compiler refused it: {next((line for line in lines if 'error' in line), lines[-1])}"
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"it could not be built or loaded: {error}"


def compiler() -> str | None:
    return shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")


def built(name: str, files: Sequence[Path], *flags: str) -> Path:
    """The library made of C sources (headers are listed to be hashed), compiled now if no earlier run has.

    Raises `OSError` without a compiler, `subprocess.SubprocessError` where it fails.
    """
    program = compiler()
    if program is None:
        raise OSError("no C compiler")
    words = (program, *FLAGS, *flags)
    digest = hashlib.sha256(" ".join(words).encode() + _processor())
    for file in files:
        digest.update(file.read_bytes())
    folder = kept()
    target = folder / f"{name}-{digest.hexdigest()[:16]}.so"
    if not target.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:  # built aside, so that two processes do not meet
            made = Path(work) / target.name
            sources = [str(file) for file in files if file.suffix == ".c"]
            subprocess.run([*words, "-o", str(made), *sources, "-lm"], check=True, capture_output=True, timeout=120)
            made.replace(target)
    return target


def kept() -> Path:
    """The folder for what this machine need not make twice."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specdec"


def identity() -> str:
    """A hash of the engine, or of its absence, and of the processor."""
    library = _loaded()[0]
    return hashlib.sha256(_processor() + (b"" if library is None else Path(library._name).name.encode())).hexdigest()


def _processor() -> bytes:
    """What -march=native looks at; empty where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return b""
    return "".join(line for line in lines if line.startswith(("flags", "model name", "Features"))).encode()
