"""A distilled draft on disk: what is its own, and the whole model that any tool loads.

A draft's folder holds its layers and final norm in bf16 and the configuration of the whole model; embedding and head
are the target's and are not stored twice.  `assemble` puts both together, with the target's tokenizer, into a folder
that Transformers (and this package) load as any other language model.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from specdec.errors import UserError
from specdec.models.config import ModelConfig
from specdec.models.loading import expected_shapes, read_config, read_tensors, read_weights, resolve, weight_files
from specdec.models.tokenizer import Tokenizer

_PER_LAYER = ("layer_types", "max_window_layers")
"""Settings that speak of each layer: a draft has fewer, all of one kind."""


def cut_config(raw: dict, layers: int) -> dict:
    """The target's `config.json` for a model of `layers` of its layers."""
    kept = {key: value for key, value in raw.items() if key not in (*_PER_LAYER, "torch_dtype")}
    return kept | {"num_hidden_layers": layers, "dtype": "bfloat16"}


def shared_tensors(config: ModelConfig) -> list[str]:
    """What every model made of the target's layers has of the target unchanged."""
    return ["model.embed_tokens.weight"] + ([] if config.tied else ["lm_head.weight"])


def write_draft(folder: Path, raw: dict, weights: dict[str, Tensor]) -> None:
    """The draft's own tensors, in bf16, and the configuration `raw` of the whole model."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    saved = {name: value.to(torch.bfloat16).contiguous() for name, value in weights.items()}
    save_file(saved, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(raw, indent=2) + "\n", "utf-8")


def write_model(folder: Path, raw: dict, weights: dict[str, Tensor], tokenizer: Tokenizer) -> None:
    """A whole model, as Transformers loads it."""
    write_draft(folder, raw, weights)
    tokenizer.inner.save_pretrained(folder)
    ends = json.dumps({"eos_token_id": list(tokenizer.eos_ids)}, indent=2)
    (folder / "generation_config.json").write_text(ends + "\n", "utf-8")


def assemble(folder: Path, target: str | Path, out: Path) -> None:
    """Write the whole model of the draft in `folder` to `out`, whole or not at all.

    Raises `UserError` when the draft was cut from a model of another shape, or a tensor is missing or left over.
    """
    raw = read_config(folder)
    config, own = ModelConfig.from_dict(raw, str(folder)), read_tensors(weight_files(folder))
    origin, theirs = read_weights(target)
    for key in ("family", "vocab_size", "hidden_size", "tied"):
        if getattr(config, key) != getattr(origin, key):
            raise UserError(
                f"draft {folder}: {key} = {getattr(config, key)}, but that of {target} is {getattr(origin, key)}"
            )
    weights = own | {name: theirs[name] for name in shared_tensors(origin)}
    shapes = expected_shapes(config)
    for name in sorted(shapes.keys() ^ weights.keys()):
        raise UserError(f"draft {folder}: tensor {name} is {'missing' if name in shapes else 'not part of it'}")
    for name, shape in shapes.items():
        if tuple(weights[name].shape) != shape:
            raise UserError(f"draft {folder}: tensor {name} has shape {tuple(weights[name].shape)}, expected {shape}")
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / "config.json").is_file())):
        raise UserError(f"{out}: something else than a model is there; nothing was changed")
    tokenizer = Tokenizer.load(resolve(target))
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as work:
        whole = Path(work) / "model"
        write_model(whole, raw, weights, tokenizer)
        shutil.rmtree(out, ignore_errors=True)
        whole.rename(out)
