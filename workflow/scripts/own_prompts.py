"""Prompts of the kind that drafts are trained on, from the held-out part of the training text."""

from pathlib import Path

from job import job

with job(snakemake):  # noqa: F821
    from specdec.models.tokenizer import Tokenizer
    from workflow.study.config import load_mapping
    from workflow.study.own_kind import write_prompts

    config = load_mapping(snakemake.config)  # noqa: F821
    write_prompts(
        config.text_path(),
        Tokenizer.load(config.target_path()),
        Path(snakemake.output[0]),  # noqa: F821
        count=config.prompts.own_kind,
        seed=config.prompts.slice_seed,
        thinking=config.pair_in_force().chat.enable_thinking,
    )
