"""config.yaml's JSON schema, written from the types: `python -m workflow.study.schema`.

Editors complete and check keys with it.  The workflow itself validates through the types, whose messages say more.
"""

from __future__ import annotations

import json
from pathlib import Path

from workflow.study.config import StudyConfig

PATH = Path(__file__).resolve().parents[1] / "schemas" / "config.schema.json"


def schema() -> str:
    """The schema as the text of its file."""
    content = {"$schema": "https://json-schema.org/draft/2020-12/schema", **StudyConfig.model_json_schema()}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(schema(), encoding="utf-8")
