"""Fetch and convert one model; the stamp is written last, so that it vouches for the rest of the folder."""

from pathlib import Path

from job import job

with job(snakemake):  # noqa: F821
    from specdec.models.fetch import provide_model

    stamp = Path(snakemake.output.stamp)  # noqa: F821
    provide_model(snakemake.wildcards.model, snakemake.params.values, stamp.parent)  # noqa: F821
