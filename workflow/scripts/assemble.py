"""Put a distilled draft and what it shares with its target together; the stamp is written last."""

import json
from pathlib import Path

from job import job

with job(snakemake):  # noqa: F821
    from specdec.training.assemble import assemble
    from workflow.study.columns import write_text
    from workflow.study.config import load_mapping

    config = load_mapping(snakemake.config)  # noqa: F821
    stamp = Path(snakemake.output.stamp)  # noqa: F821
    assemble(config.head_path(snakemake.params.draft), config.target_path(), stamp.parent)  # noqa: F821
    write_text(stamp, json.dumps({"draft": snakemake.params.draft}) + "\n")  # noqa: F821
