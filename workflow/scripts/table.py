"""Build one table from its cells and write it as CSV and parquet."""

from job import job

with job(snakemake):  # noqa: F821
    from workflow.study import columns, tables
    from workflow.study.config import load_mapping

    table = tables.build(load_mapping(snakemake.config), snakemake.wildcards.table)  # noqa: F821
    columns.write(table, snakemake.output.csv, snakemake.output.parquet)  # noqa: F821
