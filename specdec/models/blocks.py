"""One decoder layer's weights: as they come, and as PyTorch's path holds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.models import rotary
from specdec.models.config import ModelConfig
from specdec.models.linear import Linear
from specdec.models.norm import RMSNorm
from specdec.models.quantised import Matrix, reordered, stacked


@dataclass(frozen=True)
class BlockWeights:
    """A layer's tensors: q, k, v in one product, queries and keys with neighbouring pairs (`rotary.py`)."""

    qkv: Matrix
    o: Matrix
    gate: Matrix
    up: Matrix
    down: Matrix
    mlp_norm: Tensor
    attention_norm: Tensor | None = None
    qkv_bias: Tensor | None = None
    o_bias: Tensor | None = None
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None

    @classmethod
    def of(cls, config: ModelConfig, tensor: Callable[[str], Matrix]) -> BlockWeights:
        """From Transformers' names within a layer."""
        c, d = config, config.head_dim

        def paired(weight: Tensor) -> Tensor:
            return rotary.pair_neighbours(weight, d)

        def qkv(kind: str) -> Matrix:
            q, k = (reordered(tensor(f"self_attn.{name}_proj.{kind}"), paired) for name in "qk")
            return stacked([q, k, tensor(f"self_attn.v_proj.{kind}")])

        optional: dict[str, Tensor] = {}
        if c.qkv_bias:
            optional["qkv_bias"] = qkv("bias")
        if c.o_bias:
            optional["o_bias"] = tensor("self_attn.o_proj.bias")
        if c.mlp_bias:
            optional |= {f"{name}_bias": tensor(f"mlp.{name}_proj.bias") for name in ("gate", "up", "down")}
        if c.qk_norm:
            for name in "qk":
                optional[f"{name}_norm"] = paired(tensor(f"self_attn.{name}_norm.weight"))
        return cls(
            qkv=qkv("weight"),
            o=tensor("self_attn.o_proj.weight"),
            gate=tensor("mlp.gate_proj.weight"),
            up=tensor("mlp.up_proj.weight"),
            down=tensor("mlp.down_proj.weight"),
            attention_norm=tensor("input_layernorm.weight"),
            mlp_norm=tensor("post_attention_layernorm.weight"),
            **optional,
        )

    @property
    def attention_bytes(self) -> int:
        return _bytes(self.qkv, self.qkv_bias, self.o, self.o_bias)

    @property
    def mlp_bytes(self) -> int:
        return _bytes(self.gate, self.gate_bias, self.up, self.up_bias, self.down, self.down_bias)


def _bytes(*tensors: Matrix | None) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


class Block:
    """The same layer as products and norms, gate and up in one product."""

    def __init__(self, weights: BlockWeights, norm: Callable[[Tensor], RMSNorm]):
        w = weights
        self.qkv, self.o, self.down = Linear(w.qkv, w.qkv_bias), Linear(w.o, w.o_bias), Linear(w.down, w.down_bias)
        gate_up_bias = None if w.gate_bias is None else torch.cat([w.gate_bias, w.up_bias])
        self.gate_up = Linear(torch.cat([w.gate, w.up]), gate_up_bias)
        self.attention_norm, self.mlp_norm = norm(w.attention_norm), norm(w.mlp_norm)
        self.q_norm, self.k_norm = (None if weight is None else norm(weight) for weight in (w.q_norm, w.k_norm))
