"""Continuations of one prompt, by the target alone and under one rule, as counts."""

import json

from job import hold_machine, job

with job(snakemake):  # noqa: F821
    from workflow.study.cells import Cell
    from workflow.study.columns import write_text
    from workflow.study.config import load_mapping

    config = load_mapping(snakemake.config)  # noqa: F821
    cell = Cell.from_name(config.pair, snakemake.wildcards.cell)  # noqa: F821
    lock = hold_machine(f"continuations under {cell.verifier}", config.threads())
    from workflow.study.run_continuations import continuations

    write_text(snakemake.output[0], json.dumps(continuations(config, cell)) + "\n")  # noqa: F821
