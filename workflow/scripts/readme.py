"""Write the table of README.md from the table of peers."""

from pathlib import Path

from job import ROOT, job

with job(snakemake):  # noqa: F821
    from specdec.measure import fingerprint
    from workflow.study.config import load_mapping
    from workflow.study.readme import write_readme

    config = load_mapping(snakemake.config)  # noqa: F821
    processor = " ".join(fingerprint.hardware(config.run.device)["processor"].split())
    write_readme(Path(snakemake.input[0]), {"processor": processor, "threads": config.threads()}, ROOT)  # noqa: F821
