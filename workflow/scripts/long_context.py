"""Time the baseline behind long texts, with the machine to itself."""

from alone import alone
from job import job

with job(snakemake):  # noqa: F821
    from workflow.study.config import load_mapping

    config = load_mapping(snakemake.config)  # noqa: F821
    lock = alone(config, "long_context")
    from workflow.study import columns
    from workflow.study.long_context import long_context_rows

    table = columns.to_arrow("long_context", long_context_rows(config))
    columns.write(table, snakemake.output.csv, snakemake.output.parquet)  # noqa: F821
