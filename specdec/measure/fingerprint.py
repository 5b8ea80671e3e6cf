"""Where a number was measured: four blocks, each hashed to an id that stands in every row.

`hardware` and `environment` decide whether two times may be compared; `model` and `code` say of what they are.  `state`
(load, clocks, free memory) moves from minute to minute and is in no hash.  No host name, user name or path is recorded.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import psutil
import torch

from specdec.models.loading import dtype_of
from specdec.models.native import native_for

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE", "CUDA_VISIBLE_DEVICES")


def identity(block: dict[str, Any]) -> str:
    """The id of a block: a hash of its canonical JSON."""
    return hashlib.sha256(json.dumps(block, sort_keys=True).encode()).hexdigest()[:16]


@cache
def hardware(device: str = "cpu") -> dict[str, Any]:
    """Processor, flags that matter, caches, memory, accelerator."""
    info = processor()
    flags = sorted(info.get("flags", []))
    block = {
        "processor": info.get("brand_raw", platform.processor() or "unknown"),
        "architecture": platform.machine(),
        "cores": psutil.cpu_count(logical=False) or psutil.cpu_count(),
        "logical_cores": psutil.cpu_count(),
        "bf16": any("bf16" in flag for flag in flags),
        "avx512": "avx512f" in flags,
        "flags": hashlib.sha256(" ".join(flags).encode()).hexdigest()[:16],
        "l2_bytes": info.get("l2_cache_size"),
        "l3_bytes": info.get("l3_cache_size"),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "accelerator": None,
    }
    if device == "cuda":
        index = torch.cuda.current_device()
        properties = torch.cuda.get_device_properties(index)
        block["accelerator"] = {
            "name": properties.name,
            "memory_gib": round(properties.total_memory / 2**30),
            "capability": list(torch.cuda.get_device_capability(index)),
        }
    return block


def processor(proc: Path = Path("/proc/cpuinfo"), caches: Path = CACHES) -> dict[str, Any]:
    """`brand_raw`, `flags`, `l2_cache_size` and `l3_cache_size`, as py-cpuinfo names them.

    Linux says them in files; py-cpuinfo, which starts programs and takes a second of every job, is for other systems.
    """
    try:
        lines = proc.read_text("utf-8").splitlines()
    except OSError:
        lines = []
    said: dict[str, str] = {}
    for key, _, value in (line.partition(":") for line in lines):
        said.setdefault(key.strip(), value.strip())  # the first processor speaks for all
    if not said.get("model name") or not said.get("flags"):
        import cpuinfo

        return cpuinfo.get_cpu_info()
    found = {"brand_raw": said["model name"], "flags": said["flags"].split()}
    for index in sorted(caches.glob("index*")):
        level, size = ((index / name).read_text("ascii").strip() for name in ("level", "size"))
        if level in "23" and size.endswith("K"):
            found[f"l{level}_cache_size"] = 1024 * int(size[:-1])
    return found


@cache
def packages() -> dict[str, str]:
    """Every installed distribution with its version."""
    said = [d.metadata for d in distributions()]  # every look at it parses the file again
    return dict(sorted((data["Name"].lower(), data["Version"]) for data in said if data["Name"]))


def environment(dtype: str, device: str, width_invariant: bool | None) -> dict[str, Any]:
    """Operating system, Python, packages, threads, number format, and whether the forward is width-invariant."""
    import threadpoolctl

    installed = packages()
    pools = {
        (p["user_api"], p["internal_api"], p.get("version"), p["num_threads"]) for p in threadpoolctl.threadpool_info()
    }
    return {
        "system": platform.system(),
        "release": _distribution(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": installed.get("transformers"),
        "packages": hashlib.sha256(json.dumps(installed).encode()).hexdigest()[:16],
        "pools": sorted([list(map(str, pool)) for pool in pools]),
        "threads": torch.get_num_threads(),
        "dtype": dtype,
        "device": device,
        "native": native_for(dtype_of(dtype), torch.device(device)) is not None,
        "tf32": bool(torch.backends.cuda.matmul.allow_tf32),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "width_invariant": width_invariant,
    }


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return platform.platform(terse=True)


def code(root: Path) -> dict[str, Any]:
    """Commit, and a digest of what differs from it."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    commit, changes = git("rev-parse", "HEAD"), git("diff", "HEAD", "--", "specdec", "workflow")
    dirty = hashlib.sha256(changes.encode()).hexdigest()[:16] if changes else None
    return {"commit": commit.strip() if commit else None, "dirty": dirty}


def state(device: str = "cpu") -> dict[str, Any]:
    """What moves: load, clock, free memory, temperature where the machine says."""
    frequency = psutil.cpu_freq()
    block = {
        "load": list(psutil.getloadavg()),
        "clock_mhz": round(frequency.current) if frequency else None,
        "free_bytes": psutil.virtual_memory().available,
        "celsius": _hottest(),
    }
    if device == "cuda":
        block["accelerator_free_bytes"] = torch.cuda.mem_get_info()[0]
    return block


def _hottest() -> float | None:
    readings = getattr(psutil, "sensors_temperatures", dict)()
    return max((r.current for sensor in readings.values() for r in sensor), default=None)


def peak_bytes(device: str = "cpu") -> int:
    """The most memory this process has held: resident on the host, allocated on the accelerator."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    import resource

    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
