"""What a checkpoint's configuration says about the forward, and what the forward refuses.

Configurations are parsed here rather than through Transformers' classes, so that an architecture the forward does not
cover is refused by name before a single weight is read.  Both spellings of the rotary settings are understood
(`rope_theta` with `rope_scaling`, and the newer `rope_parameters`).
"""

from __future__ import annotations

from dataclasses import dataclass

from specdec.errors import UserError, unknown


@dataclass(frozen=True)
class Family:
    """What differs between the architectures: biases on q, k, v without a key that says so, and norms on q and k."""

    qkv_bias: bool = False
    qk_norm: bool = False


FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "mistral": Family(),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(qk_norm=True),
}


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama-3's stretched rotary frequencies: long wavelengths divided by `factor`, short ones kept, a blend
    between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True)
class ModelConfig:
    """The numbers the forward needs; widths are in elements."""

    family: str
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    eps: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    max_positions: int
    tied: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool

    @classmethod
    def from_dict(cls, raw: dict, origin: str) -> ModelConfig:
        """Parse a `config.json`; `origin` names it in errors.

        Raises `UserError` for an architecture, activation, attention window or rotary type the forward does not cover.
        """
        family = raw.get("model_type")
        if family not in FAMILIES:
            raise unknown(f"model_type in {origin}:", family, FAMILIES)
        traits = FAMILIES[family]
        _refuse_uncovered(raw, origin)
        try:
            hidden, heads = raw["hidden_size"], raw["num_attention_heads"]
            theta, scaling = rotary_settings(raw, origin)
            return cls(
                family=family,
                vocab_size=raw["vocab_size"],
                hidden_size=hidden,
                layers=raw["num_hidden_layers"],
                heads=heads,
                kv_heads=raw.get("num_key_value_heads") or heads,
                head_dim=raw.get("head_dim") or hidden // heads,
                intermediate_size=raw["intermediate_size"],
                eps=raw.get("rms_norm_eps", 1e-6),
                rope_theta=theta,
                rope_scaling=scaling,
                max_positions=raw["max_position_embeddings"],
                tied=bool(raw.get("tie_word_embeddings", False)),
                qkv_bias=traits.qkv_bias or bool(raw.get("attention_bias", False)),
                o_bias=not traits.qkv_bias and bool(raw.get("attention_bias", False)),
                mlp_bias=bool(raw.get("mlp_bias", False)),
                qk_norm=traits.qk_norm,
            )
        except KeyError as error:
            raise UserError(f"{origin}: key {error} is missing") from None


def _refuse_uncovered(raw: dict, origin: str) -> None:
    """Refuse by name what would otherwise run and be wrong."""
    # Qwen2 and Qwen3 carry a window that is off by default; Mistral's is on, and 4096 where no key says otherwise.
    mistral = raw["model_type"] == "mistral"
    window = raw.get("sliding_window", 4096 if mistral and raw.get("max_position_embeddings", 0) > 4096 else None)
    on = raw.get("use_sliding_window", mistral)
    if (window and on) or "sliding_attention" in (raw.get("layer_types") or []):
        raise UserError(f"{origin}: sliding-window attention (sliding_window = {window}) is not covered")
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if raw.get(key):
            raise UserError(f"{origin}: mixture of experts ({key} = {raw[key]}) is not covered")
    if raw.get("quantization_config"):
        raise UserError(f"{origin}: quantised weights (quantization_config) are not covered; use a bf16 checkpoint")
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise UserError(f'{origin}: hidden_act = "{activation}" is not covered; allowed: silu')
    if raw.get("partial_rotary_factor", 1.0) != 1.0:
        raise UserError(f"{origin}: partial_rotary_factor = {raw['partial_rotary_factor']} is not covered; allowed: 1")


def rotary_settings(raw: dict, origin: str) -> tuple[float, Llama3Scaling | None]:
    """Base and scaling of the rotary positions, from either spelling; refuses types that are not covered."""
    parameters = raw.get("rope_parameters") or {}
    theta = parameters.get("rope_theta", raw.get("rope_theta", 10000.0))
    scaling = parameters if parameters.get("rope_type") else (raw.get("rope_scaling") or {})
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return float(theta), None
    if kind != "llama3":
        raise UserError(f'{origin}: rope_type = "{kind}" is not covered; allowed: default, llama3')
    return float(theta), Llama3Scaling(
        factor=scaling["factor"],
        low_freq_factor=scaling["low_freq_factor"],
        high_freq_factor=scaling["high_freq_factor"],
        original_max_positions=scaling["original_max_position_embeddings"],
    )
