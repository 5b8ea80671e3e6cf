"""Random models small enough for a test: in memory, as Transformers folders, and as GGUF files.

Weights are drawn wide (far wider than a fresh model's), so that logits differ clearly between tokens and between rows;
norms and biases are drawn too, since a forward that forgets them agrees with ones and zeros.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from specdec.models.config import ModelConfig
from specdec.models.transformer import Transformer

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
VOCABULARY = 97
CONTEXT = 256

SPECIAL = ("<unk>", "<bos>", "<|endoftext|>", "<|im_start|>", "<|im_end|>")
UNK, BOS, EOS, START, END = range(len(SPECIAL))
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}"
)

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

VARIANTS: dict[str, tuple[str, tuple]] = {
    **{family: (family, ()) for family in FAMILIES},
    "llama-tied": ("llama", (("tie_word_embeddings", True),)),
    "llama-biases": ("llama", (("attention_bias", True), ("mlp_bias", True))),
    "llama3-rope": ("llama", (("rope_parameters", tuple(LLAMA3.items())),)),
    "qwen3-tied": ("qwen3", (("tie_word_embeddings", True),)),
    "qwen3-biases": ("qwen3", (("attention_bias", True),)),
    "llama-ungrouped": ("llama", (("num_key_value_heads", 4),)),
}


@cache
def reference(variant: str = "llama", layers: int = 2, seed: int = 0, dtype: torch.dtype = torch.float32, **changes):
    """Transformers' own model with random weights, in evaluation mode."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(_config(variant, layers, changes), attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                drawn = 1 + 0.2 * drawn
            elif name.endswith("bias"):
                drawn = 0.3 * drawn
            elif "embed_tokens" not in name and "lm_head" not in name:
                drawn = drawn / parameter.shape[-1] ** 0.5 * 1.5
            else:
                drawn = drawn * 0.4
            parameter.copy_(drawn)
    return model.to(dtype).eval()


def _config(variant: str, layers: int, changes: dict):
    from transformers import AutoConfig

    family, fixed = VARIANTS[variant]
    fixed = {key: dict(value) if isinstance(value, tuple) else value for key, value in fixed}
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16 if family == "qwen3" else 8,
        "intermediate_size": 64,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": None,
        "tie_word_embeddings": False,
    }
    if family == "mistral":
        settings["sliding_window"] = None
    return AutoConfig.for_model(family, **(settings | fixed | changes))


def convert(model, dtype: torch.dtype | None = None, vocabulary: int | None = None) -> Transformer:
    """Our model with the weights of Transformers' `model`."""
    raw = model.config.to_dict()
    weights = dict(model.state_dict())
    return Transformer(ModelConfig.from_dict(raw, "test"), weights, dtype=dtype or model.dtype, vocabulary=vocabulary)


@cache
def transformer(
    variant: str = "llama", layers: int = 2, seed: int = 0, dtype: torch.dtype = torch.float64, **changes
) -> Transformer:
    """A tiny model of ours, ready to decode."""
    return convert(reference(variant, layers, seed, torch.float32, **changes), dtype)


def noisy(variant: str, layers: int = 2, noise: float = 0.1) -> dict[str, Tensor]:
    """A model's weights with noise on them."""
    generator = torch.Generator().manual_seed(11)
    return {
        name: value + noise * value.std() * torch.randn(value.shape, generator=generator) if value.dim() > 1 else value
        for name, value in reference(variant, layers).state_dict().items()
    }


@cache
def cousin(variant: str, layers: int = 2, noise: float = 0.1, dtype: torch.dtype = torch.float64) -> Transformer:
    """The same model with noise on its weights: a draft that is often right and often wrong."""
    raw = reference(variant, layers).config.to_dict()
    return Transformer(ModelConfig.from_dict(raw, "test"), noisy(variant, layers, noise), dtype=dtype)


@torch.no_grad()
def logits_of(model, tokens: Iterable[int]) -> Tensor:
    """Transformers' own logits [rows, V] of a whole text."""
    return model(torch.tensor([list(tokens)]), use_cache=False).logits[0]


@torch.no_grad()
def greedy_loop(model, prompt: list[int], count: int) -> list[int]:
    """The naive loop: the whole text through Transformers' model for every token."""
    text = list(prompt)
    for _ in range(count):
        text.append(int(logits_of(model, text)[-1].argmax()))
    return text[len(prompt) :]


def prompt_of(length: int, seed: int = 0, vocabulary: int = VOCABULARY) -> list[int]:
    """Random ids, none of them special."""
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randint(len(SPECIAL), vocabulary, (length,), generator=generator).tolist()


# -- files -----------------------------------------------------------------------------------------------------------

CORPUS = [
    "the quick brown fox jumps over the lazy dog and the cat sat on the mat.",
    "speculative decoding drafts some tokens and then the target verifies them.",
    "system: user: assistant: a stop string may span two tokens, STOP here.",
    "0123456789 abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ",
]


@cache
def _backend(vocabulary: int) -> str:
    """A trained byte-pair tokenizer with `vocabulary` ids, as JSON."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    inner = Tokenizer(models.BPE(unk_token=None))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=list(SPECIAL), show_progress=False)
    inner.train_from_iterator(CORPUS * 3, trainer)
    assert inner.get_vocab_size() == vocabulary
    return inner.to_str()


def tokenizer(vocabulary: int = VOCABULARY, *, adds_bos: bool = False, template: str | None = CHAT_TEMPLATE):
    """Transformers' fast tokenizer around it."""
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer.from_str(_backend(vocabulary))
    if adds_bos:
        inner.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", bos_token="<bos>", eos_token="<|endoftext|>", chat_template=template
    )
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    return fast


def checkpoint(folder: Path, variant: str = "llama", *, form: str = "single", vocabulary: int = VOCABULARY, **changes):
    """Write a Transformers folder with a tokenizer of `vocabulary` ids; returns Transformers' model.

    `form`: `single` (one safetensors file), `shards`, or `bin`.
    """
    model = reference(variant, **changes)
    folder.mkdir(parents=True, exist_ok=True)
    if form == "bin":
        model.config.save_pretrained(folder)
        torch.save(dict(model.state_dict()), folder / "pytorch_model.bin")
    else:
        model.save_pretrained(folder, max_shard_size="20KB" if form == "shards" else "1GB")
    tokenizer(vocabulary).save_pretrained(folder)
    return model


def edit_json(path: Path, **changes) -> None:
    """Change keys of a JSON file; None removes one."""
    content = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    content |= changes
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}), "utf-8")


def edit_weights(folder: Path, change) -> None:
    """Rewrite a single-file checkpoint after `change(weights)`."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


_GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def gguf(
    path: Path, model=None, *, kind: str = "F32", extra_tensor: str | None = None, scaling: str | None = None
) -> None:
    """Write Transformers' `model` as a GGUF file with its tokenizer, laid out as llama.cpp's converter does.

    Matrices are stored as `kind` (`F32`, `Q8_0`, `Q4_1`, ...).  For the `llama` architecture the rows of q and k are
    interleaved: element i of a head's first half, then of its second.
    """
    from gguf import GGMLQuantizationType, GGUFWriter, quantize

    model = model or reference("llama")
    c = model.config
    writer = GGUFWriter(path, c.model_type)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_key_length(c.head_dim)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_vocab_size(c.vocab_size)
    if scaling:
        writer.add_string(f"{c.model_type}.rope.scaling.type", scaling)
    fast = tokenizer(c.vocab_size)
    ids = list(range(len(fast)))
    merges = json.loads(fast.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(fast.convert_ids_to_tokens(ids))
    writer.add_token_types([3 if index < len(SPECIAL) else 1 for index in ids])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_unk_token_id(UNK)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        stem, suffix = name.rsplit(".", 1)
        prefix = ""
        if stem.startswith("model.layers."):
            _, _, layer, stem = stem.split(".", 3)
            prefix = f"blk.{layer}."
        heads = {"self_attn.q_proj": c.num_attention_heads, "self_attn.k_proj": c.num_key_value_heads}.get(stem)
        if heads and c.model_type == "llama":
            rows = value.shape[0] // heads // 2
            value = value.reshape(heads, 2, rows, *value.shape[1:]).transpose(1, 2).reshape(value.shape)
        stored = GGMLQuantizationType[kind if value.dim() == 2 else "F32"]
        data = quantize(value.float().contiguous().numpy(), stored)
        writer.add_tensor(f"{prefix}{_GGUF_NAMES[stem]}.{suffix}", data, raw_dtype=stored)
    if extra_tensor:
        writer.add_tensor(extra_tensor, torch.zeros(4).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
