"""A small language model that learns: some layers of the target, its embedding and its head, run over whole texts.

It is the forward of `specdec/models/transformer.py` for batches and autograd: the same order of operations, products
fused alike (q, k, v in one, gate and up in another), rotary pairs side by side.  Texts are padded on the right, where
causal attention never looks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec.errors import UserError
from specdec.models import rotary
from specdec.models.config import ModelConfig

_SINGLE = {"o": "self_attn.o_proj", "down": "mlp.down_proj"}
_NORMS = {"attention": "input_layernorm", "mlp": "post_attention_layernorm"}


class _Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        c = self.config = config
        q, kv, h = c.heads * c.head_dim, c.kv_heads * c.head_dim, c.hidden_size
        self.qkv = nn.Linear(h, q + 2 * kv, bias=c.qkv_bias)
        self.o = nn.Linear(q, h, bias=c.o_bias)
        self.gate_up = nn.Linear(h, 2 * c.intermediate_size, bias=c.mlp_bias)
        self.down = nn.Linear(c.intermediate_size, h, bias=c.mlp_bias)
        widths = {"attention": h, "mlp": h} | ({"q": c.head_dim, "k": c.head_dim} if c.qk_norm else {})
        self.norms = nn.ParameterDict({name: torch.ones(width) for name, width in widths.items()})

    def forward(self, hidden: Tensor, turns: Tensor) -> Tensor:
        """hidden [B, T, h], turns [T, d/2] -> [B, T, h]."""
        c = self.config
        heads = self.qkv(self._norm("attention", hidden)).unflatten(-1, (c.heads + 2 * c.kv_heads, c.head_dim))
        q, k, v = heads.split([c.heads, c.kv_heads, c.kv_heads], dim=-2)
        q, k = q.float(), k.float()
        if c.qk_norm:
            q, k = self._norm("q", q), self._norm("k", k)
        q, k = (rotary.rotate(x, turns).to(v.dtype) for x in (q, k))
        groups = c.heads // c.kv_heads
        rows = [q, k.repeat_interleave(groups, dim=-2), v.repeat_interleave(groups, dim=-2)]
        mixed = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in rows), is_causal=True)
        hidden = hidden + self.o(mixed.transpose(1, 2).flatten(-2))
        gate, up = self.gate_up(self._norm("mlp", hidden)).chunk(2, dim=-1)
        return hidden + self.down(F.silu(gate) * up)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.norms[name], self.config.eps)

    @torch.no_grad()
    def take(self, weight) -> None:
        """Take a layer's tensors from `weight(name)`, named and laid out as Transformers does."""
        d = self.config.head_dim
        for kind in ("weight", "bias"):
            if getattr(self.qkv, kind) is not None:
                q, k = (rotary.pair_neighbours(weight(f"self_attn.{n}_proj.{kind}"), d) for n in "qk")
                getattr(self.qkv, kind).copy_(torch.cat([q, k, weight(f"self_attn.v_proj.{kind}")]))
            if getattr(self.gate_up, kind) is not None:
                halves = [weight(f"mlp.{n}_proj.{kind}") for n in ("gate", "up")]
                getattr(self.gate_up, kind).copy_(torch.cat(halves))
            for ours, theirs in _SINGLE.items():
                if getattr(getattr(self, ours), kind) is not None:
                    getattr(getattr(self, ours), kind).copy_(weight(f"{theirs}.{kind}"))
        for ours, theirs in _NORMS.items():
            self.norms[ours].copy_(weight(f"{theirs}.weight"))
        if self.config.qk_norm:
            for n in "qk":
                self.norms[n].copy_(rotary.pair_neighbours(weight(f"self_attn.{n}_norm.weight"), d))

    def give(self) -> dict[str, Tensor]:
        """The inverse of `take`."""
        c, found = self.config, {}
        sizes = [c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim]
        for kind in ("weight", "bias"):
            if (whole := getattr(self.qkv, kind)) is not None:
                q, k, v = whole.split(sizes)
                found[f"self_attn.q_proj.{kind}"] = rotary.pair_halves(q, c.head_dim)
                found[f"self_attn.k_proj.{kind}"] = rotary.pair_halves(k, c.head_dim)
                found[f"self_attn.v_proj.{kind}"] = v
            if (whole := getattr(self.gate_up, kind)) is not None:
                found[f"mlp.gate_proj.{kind}"], found[f"mlp.up_proj.{kind}"] = whole.chunk(2)
            for ours, theirs in _SINGLE.items():
                if (whole := getattr(getattr(self, ours), kind)) is not None:
                    found[f"{theirs}.{kind}"] = whole
        found |= {f"{theirs}.weight": self.norms[ours] for ours, theirs in _NORMS.items()}
        if c.qk_norm:
            for n in "qk":
                found[f"self_attn.{n}_norm.weight"] = rotary.pair_halves(self.norms[n], c.head_dim)
        return found


class SmallModel(nn.Module):
    """`embedding` [V, h] is the target's, frozen, and no part of what is saved."""

    def __init__(self, config: ModelConfig, embedding: Tensor):
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList([_Layer(config) for _ in range(config.layers)])
        self.norm = nn.Parameter(torch.ones(config.hidden_size))
        self.register_buffer("embedding", embedding, persistent=False)

    def start_from(self, weights: dict[str, Tensor], layers: Sequence[int]) -> None:
        """Begin with these layers of the target, whose `weights` bear Transformers' names."""
        for ours, theirs in zip(self.layers, layers, strict=True):
            ours.take(lambda name, prefix=f"model.layers.{theirs}.": weights[prefix + name].float())
        with torch.no_grad():
            self.norm.copy_(weights["model.norm.weight"].float())

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [B, T] -> what the head is given, [B, T, h], behind the final norm."""
        hidden, turns = self.begin(tokens)
        for layer in self.layers:
            hidden = layer(hidden, turns)
        return self.end(hidden)

    def begin(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens [B, T] -> what the first layer is given, [B, T, h], and the turns of every layer."""
        turns = rotary.table(self.config, tokens.shape[1], torch.float32, tokens.device)
        return F.embedding(tokens, self.embedding).float(), turns

    def end(self, hidden: Tensor) -> Tensor:
        """The final norm."""
        return F.rms_norm(hidden, hidden.shape[-1:], self.norm, self.config.eps)

    def weights(self) -> dict[str, Tensor]:
        """The draft's own tensors under Transformers' names."""
        named = {"model.norm.weight": self.norm}
        for i, layer in enumerate(self.layers):
            named |= {f"model.layers.{i}.{name}": value for name, value in layer.give().items()}
        return {name: value.detach().cpu().clone() for name, value in named.items()}

    @torch.no_grad()
    def round_off(self) -> None:
        """Round the weights to bf16, in which a draft is stored."""
        for parameter in self.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))


def check_layers(layers: Sequence[int], total: int) -> tuple[int, ...]:
    """Which of the target's `total` layers a draft is cut from: in order, none twice."""
    if not layers or sorted(set(layers)) != list(layers) or not 0 <= layers[0] <= layers[-1] < total:
        raise UserError(f"layers = {list(layers)}: must be ascending numbers between 0 and {total - 1}")
    return tuple(layers)
