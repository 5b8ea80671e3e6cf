"""The EAGLE head: one decoder layer that continues the target's hidden states.

Position t holds the pair (state that predicted x[t+1], embedding of x[t+1]) and predicts x[t+2].  EAGLE-3 (arXiv
2503.01840) fuses a low, a middle and a high state of the target into one width, normalises state and embedding apart,
attends over both side by side, and has a head of its own over a draft vocabulary.  EAGLE-1 (arXiv 2401.15077) takes the
target's last state, merges it with the embedding in one product, and uses the target's own head.

`EagleLayer` is the structure alone: it is given its products and norms, so that training (autograd modules, batches)
and decoding (packed weights, a cache) run the same lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.models import rotary
from specdec.models.config import Llama3Scaling, ModelConfig


@dataclass(frozen=True)
class EagleConfig:
    """Shape of a head.

    `taps` are indices of Transformers' `hidden_states`; `draft_vocabulary` is None for EAGLE-1, whose head is the
    target's; without `own_head` an EAGLE-3 head's is, too, cut to the draft vocabulary; `trained_depth`: how many
    self-fed steps it was trained for, 0 when its file does not say.
    """

    version: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    eps: float
    rope_theta: float
    max_positions: int
    target_hidden_size: int
    taps: tuple[int, ...]
    draft_vocabulary: int | None
    own_head: bool = True
    trained_depth: int = 0
    norm_before_residual: bool = False
    rope_scaling: Llama3Scaling | None = None
    layers: int = 1

    @classmethod
    def for_target(cls, target: ModelConfig, version: int, draft_vocabulary: int | None, **changes) -> EagleConfig:
        """The published shape: one layer as wide as the target's; `draft_vocabulary` None means the target's."""
        values = {
            "version": version,
            "hidden_size": target.hidden_size,
            "heads": target.heads,
            "kv_heads": target.kv_heads,
            "head_dim": target.head_dim,
            "intermediate_size": target.intermediate_size,
            "eps": target.eps,
            "rope_theta": target.rope_theta,
            "rope_scaling": target.rope_scaling,
            "max_positions": target.max_positions,
            "target_hidden_size": target.hidden_size,
            "taps": default_taps(version, target.layers),
            "draft_vocabulary": (draft_vocabulary or target.vocab_size) if version == 3 else None,
            "own_head": version == 3,
        }
        return cls(**(values | changes))

    def shapes(self) -> dict[str, tuple[int, int]]:
        """[out, in] of every product the head owns."""
        h, q, kv = self.hidden_size, self.heads * self.head_dim, self.kv_heads * self.head_dim
        wide = 2 * h if self.version == 3 else h
        fused = len(self.taps) * self.target_hidden_size if self.version == 3 else 2 * h
        shapes = {"fc": (h, fused)}
        for index in range(self.layers):
            shapes |= {
                at("qkv", index): (q + 2 * kv, h if index else wide),
                at("o", index): (h, q),
                at("gate_up", index): (2 * self.intermediate_size, h),
                at("down", index): (h, self.intermediate_size),
            }
        if self.version == 3 and self.own_head:
            shapes["head"] = (self.draft_vocabulary, h)
        return shapes

    def norms(self) -> tuple[str, ...]:
        """Names; every layer behind the first norms its input once and the middle once."""
        own = ("input", "hidden", "post", "final") if self.version == 3 else ("post",)
        return own + tuple(at(name, index) for index in range(1, self.layers) for name in ("input", "post"))

    def as_dict(self) -> dict:
        return asdict(self)


def at(name: str, layer: int) -> str:
    """A product's or norm's name in a layer of the head: bare in the first."""
    return f"{name}_{layer}" if layer else name


def default_taps(version: int, layers: int) -> tuple[int, ...]:
    """EAGLE-3 reads what enters layers 2, N/2 and N - 3; EAGLE-1 the last state, behind the final norm."""
    if version == 1:
        return (layers,)
    return tuple(sorted((min(2, layers - 1), layers // 2, max(0, layers - 3))))


Product = Callable[[Tensor], Tensor]


class EagleLayer:
    """The head's arithmetic over rows of any leading shape.

    Products round what they are given to their own format; states, norms and rotations are single precision at least.
    """

    def __init__(self, config: EagleConfig, products: Mapping[str, Product], norms: Mapping[str, Tensor]):
        self.config, self._products, self._norms = config, products, norms

    def fuse(self, features: Tensor) -> Tensor:
        """Tapped states [..., taps * hidden] to the head's own width; EAGLE-1 takes them as they are."""
        return _wide(self._products["fc"](features)) if self.config.version == 3 else features

    def step(self, embedded: Tensor, hidden: Tensor, attention: Callable, turns: Tensor) -> Tensor:
        """Embeddings and states [..., rows, h] -> the next states, before the final norm.

        `attention(layer, q, k, v)` mixes [..., rows, heads, d]; `turns` [rows, d/2] are the rows' rotations.  In the
        last layer it may answer for the last rows alone: the others' work ends with their keys and values.
        """
        c = self.config
        if c.version == 3:
            normed = self._norm("hidden", hidden)
            residual = normed if c.norm_before_residual else hidden
            x = torch.cat([self._norm("input", embedded), normed], dim=-1)
        else:
            residual = x = _wide(self._products["fc"](torch.cat([embedded, hidden], dim=-1)))
        out = self._block(0, x, residual, attention, turns)
        for index in range(1, c.layers):
            out = self._block(index, self._norm(at("input", index), out), out, attention, turns)
        return out

    def _block(self, index: int, x: Tensor, residual: Tensor, attention: Callable, turns: Tensor) -> Tensor:
        """One decoder layer, given its normed input."""
        c = self.config
        heads = self._products[at("qkv", index)](x).unflatten(-1, (c.heads + 2 * c.kv_heads, c.head_dim))
        turning, values = heads.split([c.heads + c.kv_heads, c.kv_heads], dim=-2)
        turned = rotary.rotate(_wide(turning), turns)
        q, k = turned.to(heads.dtype).split([c.heads, c.kv_heads], dim=-2)
        mixed = attention(index, q, k, values).flatten(-2)
        a = residual[..., -mixed.shape[-2] :, :] + self._products[at("o", index)](mixed)
        gate, up = self._products[at("gate_up", index)](self._norm(at("post", index), a)).chunk(2, dim=-1)
        return a + self._products[at("down", index)](F.silu(gate) * up)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., rows, V_d]"""
        return self._products["head"](self.ready(hidden))

    def ready(self, hidden: Tensor) -> Tensor:
        """What the head is given."""
        return self._norm("final", hidden) if self.config.version == 3 else hidden

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self._norms[name], self.config.eps)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
