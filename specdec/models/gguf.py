"""GGUF files, read into the names, layout and configuration of a Transformers checkpoint.

The format's tensors are dequantised by the `gguf` package.  Two things are undone here: names, and the row order of the
q and k projections, which llama.cpp's converter interleaves for the `llama` architecture (and only there).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from specdec.errors import UserError, unknown
from specdec.models.quantised import FORMATS, GROUP, Matrix, Quantised, reordered

GROUPED = tuple(name.upper() for name in FORMATS)
ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GGUFFile:
    """An open GGUF file: `config()` as a Transformers `config.json`, `tensors()` under Transformers' names."""

    def __init__(self, path: Path):
        from gguf import GGUFReader

        self.path = path
        try:
            self._reader = GGUFReader(path)
        except (ValueError, OSError, IndexError, KeyError) as error:
            raise UserError(f"{path}: not a whole GGUF file ({error})") from error
        self.architecture = self._field("general.architecture")
        if self.architecture not in ARCHITECTURES:
            raise unknown(f"architecture in {path}:", self.architecture, ARCHITECTURES)

    def _field(self, key: str, default=None):
        field = self._reader.fields.get(key)
        return default if field is None else field.contents()

    def _number(self, key: str, default=None):
        value = self._field(f"{self.architecture}.{key}", default)
        if value is None:
            raise UserError(f"{self.path}: metadata key {self.architecture}.{key} is missing")
        return value

    def config(self) -> dict:
        """The configuration, in Transformers' keys."""
        scaling = self._field(f"{self.architecture}.rope.scaling.type")
        names = {tensor.name for tensor in self._reader.tensors}
        if scaling not in (None, "none") or "rope_freqs.weight" in names:
            raise UserError(
                f"{self.path}: rotary scaling inside GGUF files is not covered; use the safetensors checkpoint"
            )
        hidden, heads = self._number("embedding_length"), self._number("attention.head_count")
        tokens = self._field("tokenizer.ggml.tokens", [])
        return {
            "architectures": [
                {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[self.architecture] + "ForCausalLM"
            ],
            "model_type": ARCHITECTURES[self.architecture],
            "vocab_size": int(self._field(f"{self.architecture}.vocab_size", len(tokens))),
            "hidden_size": int(hidden),
            "num_hidden_layers": int(self._number("block_count")),
            "num_attention_heads": int(heads),
            "num_key_value_heads": int(self._number("attention.head_count_kv", heads)),
            "head_dim": int(self._number("attention.key_length", hidden // heads)),
            "intermediate_size": int(self._number("feed_forward_length")),
            "rms_norm_eps": round(float(self._number("attention.layer_norm_rms_epsilon")), 12),
            "rope_theta": float(self._number("rope.freq_base", 10000.0)),
            "max_position_embeddings": int(self._number("context_length")),
            "hidden_act": "silu",
            "tie_word_embeddings": "output.weight" not in names,
            "bos_token_id": self._field("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self._field("tokenizer.ggml.eos_token_id"),
            "pad_token_id": self._field("tokenizer.ggml.padding_token_id"),
            "torch_dtype": "bfloat16",
        }

    def eos_ids(self) -> list[int]:
        """End-of-text ids: GGUF knows one, and an optional end of turn."""
        found = [self._field(f"tokenizer.ggml.{key}") for key in ("eos_token_id", "eot_token_id")]
        return sorted({int(value) for value in found if value is not None})

    def holds_groups(self) -> bool:
        """Whether any matrix is in a format that `tensors` can leave as it is."""
        return any(item.tensor_type.name in GROUPED and item.data.ndim == 2 for item in self._reader.tensors)

    def tensors(self, stored: bool = False) -> Iterator[tuple[str, Matrix]]:
        """Every tensor, dequantised to float32, under its Transformers name; `stored`: matrices in Q8_0 and Q4_1 as
        they are."""
        from gguf import dequantize

        heads = int(self._number("attention.head_count"))
        kv_heads = int(self._number("attention.head_count_kv", heads))
        for item in self._reader.tensors:
            name = _transformers_name(item.name, self.path)
            value: Matrix | None = _groups(item) if stored else None
            if value is None:
                try:
                    value = torch.from_numpy(dequantize(item.data, item.tensor_type).copy())
                except NotImplementedError:
                    text = f"{self.path}: {item.name} has type {item.tensor_type.name}, not readable"
                    raise UserError(text) from None
            if self.architecture == "llama" and item.name.split(".")[-2] in ("attn_q", "attn_k"):
                count = heads if ".attn_q." in item.name else kv_heads
                value = reordered(value, lambda weight, count=count: _undo_interleave(weight, count))
            yield name, value


def _groups(item) -> Quantised | None:
    """A matrix as it is stored; None for one in another format."""
    kind = item.tensor_type.name
    if kind not in GROUPED or item.data.ndim != 2:
        return None
    ends = [2, 2 + GROUP] if kind == "Q8_0" else [2, 4, 4 + GROUP // 2]
    groups = torch.from_numpy(item.data.copy()).unflatten(1, (-1, ends[-1]))
    scales, *least, numbers = groups.tensor_split(ends[:-1], dim=-1)
    halves = [part.contiguous().view(torch.float16)[..., 0] for part in (scales, *least)]
    if kind == "Q8_0":
        return Quantised(numbers.contiguous().view(torch.int8).flatten(1), *halves)
    return Quantised(torch.cat([numbers & 15, numbers >> 4], dim=-1).flatten(1), *halves)


def _transformers_name(name: str, path: Path) -> str:
    parts = name.split(".")
    if parts[0] == "blk" and parts[2] in _BLOCK:
        return f"model.layers.{parts[1]}.{_BLOCK[parts[2]]}.{parts[3]}"
    if parts[0] in _TOP:
        return f"{_TOP[parts[0]]}.{parts[1]}"
    raise UserError(f"{path}: tensor {name} is not one this reader knows")


def _undo_interleave(weight: Tensor, heads: int) -> Tensor:
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, half, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
