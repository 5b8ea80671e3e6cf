"""List the tokens of the training text's answers, the most frequent first."""

from job import job

with job(snakemake):  # noqa: F821
    from workflow.study.config import load_mapping
    from workflow.study.heads import run

    config = load_mapping(snakemake.config)  # noqa: F821
    run(["vocabulary", str(config.text_path()), snakemake.output[0]])  # noqa: F821
