"""Measure one draft on the calibration prompts while holding the machine's lock."""

from alone import alone
from job import job

with job(snakemake):  # noqa: F821
    from workflow.study.columns import write_text
    from workflow.study.config import load_mapping

    config, draft = load_mapping(snakemake.config), snakemake.wildcards.draft  # noqa: F821
    lock = alone(config, f"calibration of {draft}")
    from workflow.study.measuring import calibrate

    known = calibrate(config, draft, snakemake.params.values["subject"])  # noqa: F821
    write_text(snakemake.output[0], known.text())  # noqa: F821
