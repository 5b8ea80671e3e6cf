"""The same prompts in other tools, with the machine to itself."""

from alone import alone
from job import job

with job(snakemake):  # noqa: F821
    from workflow.study.config import load_mapping

    config = load_mapping(snakemake.config)  # noqa: F821
    lock = alone(config, "peers")
    from workflow.study import columns
    from workflow.study.peers import peer_rows

    table = columns.to_arrow("peers", peer_rows(config))
    columns.write(table, snakemake.output.csv, snakemake.output.parquet)  # noqa: F821
