"""Decode one cell while holding the machine's lock."""

from pathlib import Path

from job import hold_machine, job

with job(snakemake):  # noqa: F821
    from workflow.study.cells import Cell
    from workflow.study.config import load_mapping

    config = load_mapping(snakemake.config)  # noqa: F821
    cell = Cell.from_path(snakemake.output[0])  # noqa: F821
    lock = hold_machine(cell.name, config.threads())
    from workflow.study.run_cell import run_cell

    known = snakemake.input.get("calibration")  # noqa: F821
    run_cell(config=config, cell=cell, output=Path(snakemake.output[0]), calibration=known and Path(known))  # noqa: F821
