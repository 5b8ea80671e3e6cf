"""Draw one figure from its tables."""

from job import job

with job(snakemake):  # noqa: F821
    from workflow.study.figures import draw

    draw(snakemake.wildcards.figure, "results/tables", snakemake.output[0])  # noqa: F821
