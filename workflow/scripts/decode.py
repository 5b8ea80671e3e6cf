"""Decode one cell with the machine to itself."""

import os
import sys
from pathlib import Path

from alone import alone
from job import job

with job(snakemake):  # noqa: F821
    from workflow.study.cells import Cell
    from workflow.study.config import load_mapping

    config = load_mapping(snakemake.config)  # noqa: F821
    cell = Cell.from_path(snakemake.output[0])  # noqa: F821
    # loading a model would disturb another job's clock as well
    lock = alone(config, cell.name)
    from workflow.study.run_cell import run_cell

    known = snakemake.input.get("calibration")  # noqa: F821
    run_cell(config=config, cell=cell, output=Path(snakemake.output[0]), calibration=known and Path(known))  # noqa: F821

# all is written; taking PyTorch apart would keep the next cell waiting for half a second
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
