"""The machine for one job: timed jobs and trainings never overlap, whatever --cores says."""

import hashlib
import os
import platform
import sys
from pathlib import Path


def alone(config, what):
    """Set the threads of the arithmetic and hold the machine's lock until this process ends, however it ends.

    To be called before torch is imported: the variables are read then.
    """
    from filelock import FileLock, Timeout

    # Snakemake sets these to the cores it was given, which is 1 under --cores 1; arithmetic has the machine to itself
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(config.threads())
    # one lock a machine: nodes of a cluster that share this folder need not wait for each other
    node = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
    path = Path("resources") / f"timed-{node}.lock"
    path.parent.mkdir(exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print(f"{what}: waiting for another timed job ({path})", file=sys.stderr)
        lock.acquire()
    return lock
