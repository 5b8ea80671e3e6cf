"""Profile both arms and hold passes against the machine's limits, with the machine to itself."""

import os

from alone import alone
from job import job

with job(snakemake):  # noqa: F821
    from workflow.study.config import load_mapping

    config = load_mapping(snakemake.config)  # noqa: F821
    lock = alone(config, "profile")
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler announces itself otherwise
    from workflow.study import columns
    from workflow.study.profiling import profile_tables

    for name, rows in profile_tables(config).items():
        csv = snakemake.output[name]  # noqa: F821
        columns.write(columns.to_arrow(name, rows), csv, csv.removesuffix("csv") + "parquet")
