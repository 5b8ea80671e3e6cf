"""Time passes of the target and steps of its drafts, with the machine to itself."""

from alone import alone
from job import job

with job(snakemake):  # noqa: F821
    from workflow.study.config import load_mapping

    config = load_mapping(snakemake.config)  # noqa: F821
    lock = alone(config, "cost_model")
    from workflow.study import columns
    from workflow.study.costs import cost_rows

    table = columns.to_arrow("cost_model", cost_rows(config))
    columns.write(table, snakemake.output.csv, snakemake.output.parquet)  # noqa: F821
