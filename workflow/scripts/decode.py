"""Decode one cell while holding the machine's lock: timed jobs never overlap, whatever --cores says."""

import hashlib
import os
import platform
import sys
from pathlib import Path

from job import job

with job(snakemake):  # noqa: F821
    from filelock import FileLock, Timeout

    from workflow.study.cells import Cell
    from workflow.study.config import load_mapping

    config = load_mapping(snakemake.config)  # noqa: F821
    cell = Cell.from_path(snakemake.output[0])  # noqa: F821
    # Snakemake sets these to the cores it was given, which is 1 under --cores 1; arithmetic has the machine to itself.
    # They are read when torch is imported, so before that.
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
        print(f"{cell.name}: waiting for another timed job ({path})", file=sys.stderr)
        lock.acquire()
    # held until this process ends, however it ends; loading a model would disturb another job's clock as well
    from workflow.study.run_cell import run_cell

    run_cell(config=config, cell=cell, output=Path(snakemake.output[0]))  # noqa: F821
