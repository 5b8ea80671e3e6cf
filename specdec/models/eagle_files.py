"""EAGLE checkpoints: the three public dialects read, one written.

SafeAILab and SpecForge name the layer `midlayer.`, speculators (and EAGLE-1) `layers.0.`; further layers of an EAGLE-3
head, which speculators and vLLM know, are `layers.1.` and so on.  What is in a file is decided by its tensors, never by
the `architectures` entry.  Tapped layers are stored under two conventions: speculators (and
vLLM) count inputs of layers, as `hidden_states` does, SpecForge (and sglang) count outputs, one less.  `d2t` holds
offsets: the target's id of draft token i is i + d2t[i].

A head that decides by the target's own rows stores none: `target_lm_head` says so here, beside d2t; a
`draft_vocab_size` of null says it elsewhere (sglang), of the whole vocabulary.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from specdec.errors import UserError
from specdec.models import rotary
from specdec.models.config import ModelConfig, rotary_settings
from specdec.models.eagle import EagleConfig, at, default_taps
from specdec.models.loading import read_tensors, weight_files

_NORMS = {"input_layernorm": "input", "hidden_norm": "hidden", "post_attention_layernorm": "post"}
_SINGLE = {"self_attn.o_proj": "o", "mlp.down_proj": "down"}
_REFUSED = {"norm_before_fc": "a norm before the fusion", "fc_norm": "norms of single taps"}


class _File:
    """What lies in a head's folder, with errors that name it."""

    def __init__(self, folder: Path):
        self.folder = folder
        path = folder / "config.json"
        if not path.is_file():
            raise self.error("there is no config.json in that folder")
        try:
            self.raw = json.loads(path.read_text("utf-8"))
        except json.JSONDecodeError as error:
            raise self.error(f"config.json is not valid JSON ({error})") from None
        self.inner = self.raw.get("transformer_layer_config", self.raw)  # speculators nests the layer's settings
        read = read_tensors(weight_files(folder))
        self.tensors = {name.removeprefix("model."): value for name, value in read.items()}
        prefixes = [p for p in ("midlayer.", "layers.0.") if any(name.startswith(p) for name in self.tensors)]
        if not prefixes:
            raise self.error("neither midlayer.* nor layers.0.* is in the file: not an EAGLE head")
        self.prefixes = [prefixes[0]]
        while any(name.startswith(f"layers.{len(self.prefixes)}.") for name in self.tensors):
            self.prefixes.append(f"layers.{len(self.prefixes)}.")
        self.version = 3 if f"{self.prefixes[0]}hidden_norm.weight" in self.tensors else 1
        borrowed = self.raw.get("target_lm_head", self.raw.get("draft_vocab_size", 0) is None)
        self.own_head = self.version == 3 and not borrowed

    def error(self, text: str) -> UserError:
        return UserError(f"draft head {self.folder}: {text}")

    def get(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise self.error(f"tensor {name} is missing")
        return self.tensors[name]

    def layer(self, name: str, index: int = 0) -> Tensor:
        return self.get(f"{self.prefixes[index]}{name}.weight")

    def setting(self, key: str) -> object:
        if key not in self.inner:
            raise self.error(f"config.json has no {key}")
        return self.inner[key]


def read_head(folder: Path, target: ModelConfig) -> tuple[EagleConfig, dict[str, Tensor], Tensor | None]:
    """(shape, tensors by the names of `EagleConfig`, target ids of the draft vocabulary or None for all).

    The tensors may also hold `fc.bias` and `embedding` [V, h], which stands in for the target's.
    Raises `UserError` naming tensors that are missing, unknown or misshapen, and settings that are not covered.
    """
    file = _File(folder)
    _refuse_uncovered(file)
    config = _config(file, target)
    _check(file, config, target)
    used = _vocabulary(file, target) if config.version == 3 else None
    return config, _weights(file, config), used


def _refuse_uncovered(file: _File) -> None:
    """Refuse by name what would otherwise run and be wrong."""
    raw, nested = file.raw, file.inner is not file.raw
    for key, what in _REFUSED.items():
        if raw.get(key):
            raise file.error(f"{key} = {raw[key]} ({what}) is not covered")
    # one name, two meanings: speculators feeds the normed state back when it is true, SpecForge leaves out the norm
    # before the head when it is false
    normal = not nested
    if raw.get("norm_output", normal) != normal:
        raise file.error(f"norm_output = {raw['norm_output']} is not covered")
    if file.inner.get("hidden_act", "silu") != "silu":
        raise file.error(f'hidden_act = "{file.inner["hidden_act"]}" is not covered; allowed: silu')


def _config(file: _File, target: ModelConfig) -> EagleConfig:
    """Sizes come from the tensors; the configuration gives the rest and must not contradict them."""
    inner, hidden = file.inner, file.layer("self_attn.o_proj").shape[0]
    heads = file.setting("num_attention_heads")
    kv_heads = inner.get("num_key_value_heads") or heads
    query = file.layer("self_attn.q_proj").shape[0]
    config = EagleConfig(
        version=file.version,
        hidden_size=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=query // heads,
        intermediate_size=file.layer("mlp.gate_proj").shape[0],
        eps=inner.get("rms_norm_eps", 1e-6),
        rope_theta=(rope := rotary_settings(inner, f"draft head {file.folder}"))[0],
        rope_scaling=rope[1],
        max_positions=inner.get("max_position_embeddings", inner.get("max_sequence_length", target.max_positions)),
        target_hidden_size=target.hidden_size,
        taps=_taps(file, target),
        draft_vocabulary=_size(file, target) if file.version == 3 else None,
        own_head=file.own_head,
        trained_depth=file.raw.get("trained_depth", 0),
        norm_before_residual=bool(file.raw.get("norm_before_residual", False)),
        layers=len(file.prefixes),
    )
    stated = {
        "hidden_size": (inner, hidden),
        "head_dim": (inner, config.head_dim),
        "intermediate_size": (inner, config.intermediate_size),
        "draft_vocab_size": (file.raw, config.draft_vocabulary),
        "target_hidden_size": (file.raw, target.hidden_size),
    }
    for key, (where, found) in stated.items():
        if found is not None and where.get(key) not in (None, found):
            raise file.error(f"{key} = {where[key]} in config.json, but the tensors and the target say {found}")
    return config


def _size(file: _File, target: ModelConfig) -> int:
    """Of the draft vocabulary."""
    if file.own_head:
        return file.get("lm_head.weight").shape[0]
    return len(file.tensors["d2t"]) if "d2t" in file.tensors else target.vocab_size


def _taps(file: _File, target: ModelConfig) -> tuple[int, ...]:
    """Tapped layers as indices of `hidden_states`."""
    n = target.layers
    if file.version == 1:
        return default_taps(1, n)
    inputs = file.raw.get("eagle_aux_hidden_state_layer_ids")
    outputs = (file.raw.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    taps = inputs or ([index + 1 for index in outputs] if outputs else default_taps(3, n))
    if not all(isinstance(tap, int) and 0 <= tap <= n for tap in taps):
        raise file.error(f"it taps layers {list(taps)}, but the target has {n}")
    return tuple(taps)


def _check(file: _File, config: EagleConfig, target: ModelConfig) -> None:
    """Every tensor is there, none is left over, and each has its shape."""
    c, products, expected = config, config.shapes(), {}
    for index, prefix in enumerate(file.prefixes):
        expected |= {f"{prefix}{name}.weight": shape for name, shape in _layer_shapes(c, index).items()}
    expected["fc.weight"] = products["fc"]
    optional = {"fc.bias": (c.hidden_size,), "embed_tokens.weight": (target.vocab_size, c.hidden_size)}
    if c.version == 3:
        expected |= {"norm.weight": (c.hidden_size,)}
        expected |= {"lm_head.weight": products["head"]} if c.own_head else {}
        optional |= {"d2t": (c.draft_vocabulary,), "t2d": (target.vocab_size,)}
    missing = sorted(set(expected) - set(file.tensors))
    extra = sorted(set(file.tensors) - set(expected) - set(optional))
    if missing:
        raise file.error(f"tensor {missing[0]} is missing ({len(missing)} in all)")
    if extra:
        raise file.error(f"tensor {extra[0]} is not part of an EAGLE-{c.version} head ({len(extra)} in all)")
    for name, shape in (expected | optional).items():
        if name in file.tensors and tuple(file.tensors[name].shape) != tuple(shape):
            raise file.error(f"tensor {name} has shape {tuple(file.tensors[name].shape)}, expected {tuple(shape)}")
    if not c.own_head and c.hidden_size != target.hidden_size:
        raise file.error(f"it is {c.hidden_size} wide and has no head; the target's is {target.hidden_size} wide")
    if "embed_tokens.weight" not in file.tensors and c.hidden_size != target.hidden_size:
        raise file.error(f"it is {c.hidden_size} wide and has no embedding; the target's is {target.hidden_size} wide")


def _layer_shapes(c: EagleConfig, index: int) -> dict[str, tuple[int, ...]]:
    """Of one layer's tensors, by their names in a file."""
    products = c.shapes()
    q, kv, wide = c.heads * c.head_dim, c.kv_heads * c.head_dim, products[at("qkv", index)][1]
    return {
        "self_attn.q_proj": (q, wide),
        "self_attn.k_proj": (kv, wide),
        "self_attn.v_proj": (kv, wide),
        "mlp.gate_proj": (c.intermediate_size, c.hidden_size),
        "mlp.up_proj": (c.intermediate_size, c.hidden_size),
        **{theirs: products[at(ours, index)] for theirs, ours in _SINGLE.items()},
        **{theirs: (c.hidden_size,) for theirs, ours in _NORMS.items() if at(ours, index) in c.norms()},
    }


def _vocabulary(file: _File, target: ModelConfig) -> Tensor | None:
    size = _size(file, target)
    if "d2t" not in file.tensors:
        if size != target.vocab_size:
            raise file.error(f"{size} draft tokens but no d2t to map them to the target's {target.vocab_size}")
        return None
    offsets = file.get("d2t").long()
    if not offsets.any() and size < target.vocab_size:
        raise file.error("d2t is all zero: the map was never set")
    used = torch.arange(size) + offsets
    if int(used.min()) < 0 or int(used.max()) >= target.vocab_size or len(used.unique()) < size:
        raise file.error(f"d2t does not map {size} draft tokens to different ids of the target")
    if "t2d" in file.tensors and not torch.equal(file.get("t2d").nonzero().flatten(), used.sort().values):
        raise file.error("t2d and d2t name different tokens")
    return used


def _weights(file: _File, config: EagleConfig) -> dict[str, Tensor]:
    weights = {"fc": file.get("fc.weight")}
    for index in range(config.layers):

        def own(name: str, index: int = index) -> Tensor:
            return file.layer(name, index)

        q, k = (rotary.pair_neighbours(own(f"self_attn.{name}_proj"), config.head_dim) for name in "qk")
        layer = {
            "qkv": torch.cat([q, k, own("self_attn.v_proj")]),
            "gate_up": torch.cat([own("mlp.gate_proj"), own("mlp.up_proj")]),
            **{ours: own(theirs) for theirs, ours in _SINGLE.items()},
            **{ours: own(theirs) for theirs, ours in _NORMS.items() if at(ours, index) in config.norms()},
        }
        weights |= {at(name, index): value for name, value in layer.items()}
    if config.version == 3:
        weights |= {"final": file.get("norm.weight")}
        weights |= {"head": file.get("lm_head.weight")} if config.own_head else {}
    optional = {"fc.bias": "fc.bias", "embed_tokens.weight": "embedding"}
    return weights | {ours: file.tensors[theirs] for theirs, ours in optional.items() if theirs in file.tensors}


def write_head(
    folder: Path, config: EagleConfig, weights: dict[str, Tensor], used: Tensor | None, vocabulary: int
) -> None:
    """Write SpecForge's dialect (SafeAILab's for EAGLE-1) in bf16: what sglang and vLLM serve.

    The target's embedding (and head) stay out.  `vocabulary` is the target's number of ids.
    """
    from safetensors.torch import save_file

    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    tensors = {"fc.weight": weights["fc"]}
    for index in range(config.layers):
        own = {name: weights[at(name, index)] for name in ("qkv", "gate_up", *_SINGLE.values())}
        own |= {name: weights[at(name, index)] for name in _NORMS.values() if at(name, index) in config.norms()}
        wq, wk, wv = own["qkv"].split([q, kv, kv])
        gate, up = own["gate_up"].chunk(2)
        p = "midlayer." if config.version == 3 and index == 0 else f"layers.{index}."
        tensors |= {
            f"{p}self_attn.q_proj.weight": rotary.pair_halves(wq, config.head_dim),
            f"{p}self_attn.k_proj.weight": rotary.pair_halves(wk, config.head_dim),
            f"{p}self_attn.v_proj.weight": wv,
            f"{p}mlp.gate_proj.weight": gate,
            f"{p}mlp.up_proj.weight": up,
            **{f"{p}{theirs}.weight": own[ours] for theirs, ours in (_SINGLE | _NORMS).items() if ours in own},
        }
    if "fc.bias" in weights:
        tensors["fc.bias"] = weights["fc.bias"]
    if config.version == 3:
        tensors |= {"norm.weight": weights["final"]}
        tensors |= {"lm_head.weight": weights["head"]} if config.own_head else {}
    saved = {name: value.detach().to(torch.bfloat16).contiguous().clone() for name, value in tensors.items()}
    if used is not None:
        member = torch.zeros(vocabulary, dtype=torch.bool)
        member[used] = True
        saved |= {"d2t": used - torch.arange(len(used)), "t2d": member}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(saved, folder / "model.safetensors", metadata={"format": "pt"})
    raw = _settings(config, vocabulary) | ({} if config.version == 3 else {"bias": "fc.bias" in weights})
    (folder / "config.json").write_text(json.dumps(raw, indent=2) + "\n", "utf-8")


def _settings(config: EagleConfig, vocabulary: int) -> dict:
    raw = {
        "architectures": ["LlamaForCausalLMEagle3" if config.version == 3 else "LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "rms_norm_eps": config.eps,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": config.max_positions,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "trained_depth": config.trained_depth,
    }
    if config.rope_scaling is not None:
        scaling = asdict(config.rope_scaling)
        scaling["original_max_position_embeddings"] = scaling.pop("original_max_positions")
        raw["rope_scaling"] = {"rope_type": "llama3", **scaling}
    if config.version == 3:
        raw["draft_vocab_size"] = config.draft_vocabulary
        if not config.own_head:
            raw["target_lm_head"] = True
            raw |= {"draft_vocab_size": None} if config.draft_vocabulary == vocabulary else {}
        ids = [tap - 1 for tap in config.taps]
        raw["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}
        raw["norm_before_residual"] = config.norm_before_residual
    return raw
