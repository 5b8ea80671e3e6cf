"""From a name to a model that can decode: a local folder, a GGUF file, or a hub id.

Weights are read tensor by tensor (safetensors is memory-mapped), names and shapes are checked against the
configuration, and nothing is skipped in silence.  Pickled files are read with `weights_only=True` alone.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor

from specdec.errors import UserError, unknown
from specdec.models.config import ModelConfig
from specdec.models.quantised import FORMATS, Matrix, Quantised, plain
from specdec.models.tokenizer import Tokenizer
from specdec.models.transformer import Transformer

STORED = "stored"
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer; `model_id` is a hash of weights, configuration and tokenizer."""

    model: Transformer
    tokenizer: Tokenizer
    model_id: str
    origin: str


def dtype_of(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise unknown("dtype", name, DTYPES)
    return DTYPES[name]


def load_model(
    source: str | Path,
    *,
    dtype: str = "bfloat16",
    device: str = "cpu",
    pad_vocabulary: bool = False,
    head_ids: Tensor | None = None,
    weights: str | None = None,
) -> LoadedModel:
    """Load a hub id, a folder (one file or shards) or a `.gguf` file.

    `pad_vocabulary` lets a checkpoint with fewer embedding rows than its tokenizer has ids in; such ids get a zero row.
    `head_ids` cuts the head of a draft to these ids (`read_head_ids`).  `weights` says how matrices are held: in the
    number format of all else (None), rounded to a format of `quantised.py` (a draft's may be), or "stored": as a GGUF
    file has them.
    Raises `UserError` when anything is missing, misshapen, truncated or not covered.
    """
    path = resolve(source)
    if weights not in (None, STORED, *FORMATS):
        raise unknown("weights", weights, [STORED, *FORMATS])
    if weights == STORED and dtype != "bfloat16":
        raise UserError(f"weights: stored goes with dtype bfloat16, not {dtype}: it is what stored numbers stand for")
    raw, read, files = _open(path, weights == STORED)
    config = ModelConfig.from_dict(raw, str(path))  # refuses before any weight is read
    precision = dtype_of(dtype)
    if device != "cpu" and not torch.cuda.is_available():
        raise UserError(f'device "{device}" is not there: this PyTorch sees no CUDA device; allowed here: cpu')
    tokenizer = Tokenizer.load(path)
    tensors = read(precision)
    _check(tensors, config, path)
    if len(tokenizer) > config.vocab_size:
        config = _pad(tensors, config, len(tokenizer), path, pad_vocabulary)
    if head_ids is not None and int(head_ids.max()) >= len(tokenizer):
        raise UserError(
            f"model {path}: its head cannot be cut to id {int(head_ids.max())}; it has {len(tokenizer)} ids"
        )
    model = Transformer(
        config,
        tensors,
        dtype=precision,
        device=device,
        vocabulary=len(tokenizer),
        head_ids=head_ids,
        rounded=None if weights == STORED else weights,
    )
    return LoadedModel(model, tokenizer, _model_id(files, tokenizer), str(source))


def read_head_ids(file: str | Path, size: int) -> Tensor:
    """The first `size` token ids of a file that lists them one a line, the most frequent first; ascending."""
    path = Path(file)
    try:
        ids = [int(line) for line in path.read_text("utf-8").split()]
    except OSError:
        raise UserError(
            f"{path}: no such file of token ids; `python -m specdec.training vocabulary` writes one"
        ) from None
    except ValueError as error:
        raise UserError(f"{path}: not a list of token ids, one a line ({error})") from None
    if not 1 <= size <= len(ids):
        raise UserError(f"{path}: vocabulary = {size}: must be between 1 and the {len(ids)} ids listed there")
    if min(ids) < 0 or len(set(ids)) < len(ids):
        raise UserError(f"{path}: an id is negative or listed twice")
    return torch.tensor(sorted(ids[:size]))


def resolve(source: str | Path) -> Path:
    """The local folder or file for `source`; a hub id is looked up in the cache, then fetched."""
    path = Path(source)
    if path.exists():
        return path
    text = str(source)
    if text.count("/") != 1 or text.startswith((".", "/", "~")):
        raise UserError(f"model {text}: no such folder or file")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(text, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]))
    except Exception as error:  # the hub client raises many types; each means the same to the user
        raise UserError(
            f"model {text}: not a local folder ({path.absolute()}), not in the hub cache, and the hub did not answer "
            f"({type(error).__name__}); fetch it where there is a network with: hf download {text} --local-dir DIR"
        ) from error


def read_weights(source: str | Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """A checkpoint's configuration and its tensors as they are stored, checked: what training starts from."""
    path = resolve(source)
    raw, read, _ = _open(path)
    config = ModelConfig.from_dict(raw, str(path))
    weights = read(torch.float32)
    _check(weights, config, path)
    return config, weights


def read_config(source: str | Path) -> dict:
    """A checkpoint's `config.json`, or what a GGUF file says in its place."""
    path = resolve(source)
    if path.suffix == ".gguf":
        from specdec.models.gguf import GGUFFile

        return GGUFFile(path).config()
    config = path / "config.json"
    if not config.is_file():
        raise UserError(f"model {path}: there is no config.json in that folder")
    try:
        return json.loads(config.read_text("utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{config}: not valid JSON ({error})") from None


def _open(path: Path, stored: bool = False) -> tuple[dict, Callable[[torch.dtype], dict[str, Matrix]], list[Path]]:
    """Configuration, a function that reads the weights, and the files that hold them; `stored`: as a GGUF file has
    them."""
    if path.suffix == ".gguf":
        from specdec.models.gguf import GGUFFile

        file = GGUFFile(path)
        if stored and not file.holds_groups():
            raise UserError(f"model {path}: holds no matrix in Q8_0 or Q4_1, the formats that weights: stored keeps")

        def read(dtype: torch.dtype) -> dict[str, Matrix]:
            return {n: v if isinstance(v, Quantised) else v.to(dtype) for n, v in file.tensors(stored)}

        return file.config(), read, [path]
    if stored:
        raise UserError(f"model {path}: weights: stored keeps the matrices of a GGUF file, and this is none")
    raw, files = read_config(path), weight_files(path)
    return raw, lambda dtype: read_tensors(files), [*files, path / "config.json"]


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a checkpoint's tensors: one, or shards; safetensors before pickles."""
    for suffix in ("safetensors", "bin"):
        stem = "model" if suffix == "safetensors" else "pytorch_model"
        index = folder / f"{stem}.{suffix}.index.json"
        if index.is_file():
            files = sorted({folder / name for name in json.loads(index.read_text("utf-8"))["weight_map"].values()})
            missing = [file for file in files if not file.is_file()]
            if missing:
                raise UserError(f"{missing[0]}: named in {index.name} but not there")
            return files
        if (folder / f"{stem}.{suffix}").is_file():
            return [folder / f"{stem}.{suffix}"]
    raise UserError(f"model {folder}: no model.safetensors, no shards and no pytorch_model.bin in that folder")


def read_tensors(files: list[Path]) -> dict[str, Tensor]:
    """Every tensor of some files, as stored; pickles are read as weights only."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    weights: dict[str, Tensor] = {}
    for file in files:
        try:
            if file.suffix == ".bin":
                weights |= torch.load(file, map_location="cpu", weights_only=True, mmap=True)
            else:
                weights |= load_file(file)
        except (SafetensorError, UnpicklingError, RuntimeError, OSError, EOFError) as error:
            raise UserError(f"{file}: not a whole weight file ({error}); fetch it again") from error
    return weights


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor a checkpoint of this configuration must hold, with its shape."""
    c = config
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c.vocab_size, c.hidden_size)}
    products = {
        "self_attn.q_proj": (q, c.hidden_size, c.qkv_bias),
        "self_attn.k_proj": (kv, c.hidden_size, c.qkv_bias),
        "self_attn.v_proj": (kv, c.hidden_size, c.qkv_bias),
        "self_attn.o_proj": (c.hidden_size, q, c.o_bias),
        "mlp.gate_proj": (c.intermediate_size, c.hidden_size, c.mlp_bias),
        "mlp.up_proj": (c.intermediate_size, c.hidden_size, c.mlp_bias),
        "mlp.down_proj": (c.hidden_size, c.intermediate_size, c.mlp_bias),
    }
    for i in range(c.layers):
        prefix = f"model.layers.{i}."
        for name, (out, into, bias) in products.items():
            shapes[f"{prefix}{name}.weight"] = (out, into)
            if bias:
                shapes[f"{prefix}{name}.bias"] = (out,)
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}{name}.weight"] = (c.hidden_size,)
        if c.qk_norm:
            shapes[f"{prefix}self_attn.q_norm.weight"] = shapes[f"{prefix}self_attn.k_norm.weight"] = (c.head_dim,)
    shapes["model.norm.weight"] = (c.hidden_size,)
    if not c.tied:
        shapes["lm_head.weight"] = (c.vocab_size, c.hidden_size)
    return shapes


def _check(weights: dict[str, Matrix], config: ModelConfig, path: Path) -> None:
    shapes = expected_shapes(config)
    harmless = {"lm_head.weight"} if config.tied else set()  # some tied checkpoints store the head as well
    extra = sorted(
        n for n in weights if n not in shapes and n not in harmless and not n.endswith("rotary_emb.inv_freq")
    )
    missing = sorted(n for n in shapes if n not in weights)
    if missing:
        raise UserError(f"model {path}: tensor {missing[0]} is missing ({len(missing)} in all)")
    if extra:
        raise UserError(f"model {path}: tensor {extra[0]} is not part of a {config.family} model ({len(extra)} in all)")
    for name, shape in shapes.items():
        if tuple(weights[name].shape) != shape:
            raise UserError(f"model {path}: tensor {name} has shape {tuple(weights[name].shape)}, expected {shape}")


def _pad(weights: dict[str, Matrix], config: ModelConfig, rows: int, path: Path, allowed: bool) -> ModelConfig:
    from dataclasses import replace

    if not allowed:
        raise UserError(
            f"model {path}: the tokenizer has {rows} ids but the checkpoint only {config.vocab_size} embedding rows; "
            "set pad_vocabulary: true to give the others a zero row"
        )
    for name in ("model.embed_tokens.weight",) + (() if config.tied else ("lm_head.weight",)):
        short = plain(weights[name])
        weights[name] = torch.cat([short, short.new_zeros(rows - config.vocab_size, short.shape[1])])
    return replace(config, vocab_size=rows)


def _model_id(files: list[Path], tokenizer: Tokenizer) -> str:
    """A hash of configuration, tokenizer and weights.

    Hashing gigabytes at every start would cost more than the start: a weight file contributes its size and its first
    and last mebibyte, which hold the header of every format read here and the last tensors.
    """
    digest = hashlib.sha256(tokenizer.fingerprint.encode())
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}".encode())
        with open(file, "rb") as stream:
            digest.update(stream.read(1 << 20))
            stream.seek(max(0, size - (1 << 20)), os.SEEK_SET)
            digest.update(stream.read(1 << 20))
    return digest.hexdigest()[:16]
