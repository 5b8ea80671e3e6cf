"""Continuations of one prompt, by the target alone and under one rule, as counts."""

import json

from alone import alone
from job import job

with job(snakemake):  # noqa: F821
    from workflow.study.cells import Cell
    from workflow.study.columns import write_text
    from workflow.study.config import load_mapping

    config = load_mapping(snakemake.config)  # noqa: F821
    cell = Cell.from_name(config.pair, snakemake.wildcards.cell)  # noqa: F821
    lock = alone(config, f"continuations under {cell.verifier}")
    from workflow.study.run_continuations import continuations

    write_text(snakemake.output[0], json.dumps(continuations(config, cell)) + "\n")  # noqa: F821
