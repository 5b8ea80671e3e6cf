"""Let the target write the training text of the pair in force, with the machine to itself."""

from pathlib import Path

from alone import alone
from job import job

with job(snakemake):  # noqa: F821
    from workflow.study.config import load_mapping

    config = load_mapping(snakemake.config)  # noqa: F821
    lock = alone(config, f"training text of {config.pair}")
    from workflow.study.heads import make_text

    make_text(config, Path(snakemake.output.stamp))  # noqa: F821
