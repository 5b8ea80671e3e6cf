"""What the cost model says of every cell, and which acceptance each draft needs."""

from job import job

with job(snakemake):  # noqa: F821
    from workflow.study import columns
    from workflow.study.config import load_mapping
    from workflow.study.predicted import break_even_rows, predicted_rows, read_costs

    config, out = load_mapping(snakemake.config), snakemake.output  # noqa: F821
    costs = read_costs(snakemake.input.costs)  # noqa: F821
    columns.write(columns.to_arrow("predicted", predicted_rows(config, costs[0])), out.csv, out.parquet)
    table = columns.to_arrow("break_even", break_even_rows(config, costs))
    columns.write(table, out.break_even, out.break_even_parquet)
