"""Train one draft by its recipe, with the machine to itself."""

from pathlib import Path

from alone import alone
from job import job

with job(snakemake):  # noqa: F821
    from workflow.study.config import load_mapping

    config = load_mapping(snakemake.config)  # noqa: F821
    draft = snakemake.wildcards.draft  # noqa: F821
    lock = alone(config, f"training {draft}")
    from workflow.study.heads import make_head

    make_head(config, draft, snakemake.params.values, Path(snakemake.output.record).parent)  # noqa: F821
