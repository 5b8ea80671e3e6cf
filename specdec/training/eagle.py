"""An EAGLE head as a trainable module, run over whole conversations the way decoding runs it token by token.

Training-time test (EAGLE-3, arXiv 2503.01840).  The head runs over a conversation several times.  In step 0 every
position holds the target's state; in step k it holds the head's own output of step k - 1, with tokens shifted by one
more, exactly as in decoding k tokens deep.  A query of step k sees the true states of positions 0..t, and of the later
steps only its own index's: its attention is a causal block plus one diagonal for each later step.  The rotary position
of index t in step k is t + k.  A single step is what EAGLE-1 trains on.

What stands before the first answer gives keys and values in step 0 and nothing else: nothing is predicted there, and no
later step looks there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec.models import rotary
from specdec.models.config import ModelConfig
from specdec.models.eagle import EagleConfig, EagleLayer
from specdec.training.corpus import States


@dataclass(frozen=True)
class Batch:
    """Samples padded to T positions: hidden sources, tokens and masks.

    tokens [B, T + 1 + steps] are x[1:], so that step k embeds tokens[:, k : k + T]; loss [B, T + steps] says at index
    t + k whether x[t + 2 + k] is to be predicted; last [B, T + steps, h] the target's state that predicts it.
    """

    features: Tensor
    tokens: Tensor
    last: Tensor
    loss: Tensor

    @property
    def length(self) -> int:
        return self.features.shape[1]

    @property
    def first(self) -> int:
        """The first index that predicts anything, in any sample."""
        return int(self.loss.any(0).int().argmax())

    def to(self, device: torch.device) -> Batch:
        return Batch(*(getattr(self, field.name).to(device) for field in fields(self)))

    def silent(self) -> Batch:
        return replace(self, loss=torch.zeros_like(self.loss))


def collate(items: Sequence[States], steps: int) -> Batch:
    """Pad on the right: no position of a sample ever looks there, and none of the padding is in the loss."""
    longest = max(item.length for item in items)
    rows, width, h = len(items), items[0].features.shape[1], items[0].last.shape[1]
    features = torch.zeros(rows, longest, width, dtype=items[0].features.dtype)
    tokens = torch.zeros(rows, longest + 1 + steps, dtype=torch.long)
    last = torch.zeros(rows, longest + steps, h, dtype=items[0].last.dtype)
    loss = torch.zeros(rows, longest + steps, dtype=torch.bool)
    for i, item in enumerate(items):
        t = item.length
        features[i, :t] = item.features
        tokens[i, : t + 1] = item.ids[1:]
        last[i, :t] = item.last[1:]
        loss[i, :t] = item.mask[2:]
    return Batch(features, tokens, last, loss)


class StepAttention:
    """Attention of training-time test: keys of step 0 causally, of each later step on the diagonal."""

    def __init__(self, length: int, first: int = 0, device: torch.device | str = "cpu", layers: int = 1):
        """Its last layer answers for indices `first` to `length`, as all do in later steps."""
        future = torch.ones(length, length, dtype=torch.bool, device=device).triu(1)
        self._future = torch.zeros(length, length, device=device).masked_fill_(future, -math.inf)
        self._length, self._first, self._last = length, first, layers - 1
        self._keys: list[list[Tensor]] = [[] for _ in range(layers)]
        self._values: list[list[Tensor]] = [[] for _ in range(layers)]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, T, heads, d], k and v [B, T, kv_heads, d] -> the mixed values of the indices answered for; T is less
        by `first` in later steps."""
        keys, values = self._keys[layer], self._values[layer]
        if not keys and layer == self._last:
            q = q[:, self._first :]
        groups = q.shape[2] // k.shape[2]
        keys.append(k.repeat_interleave(groups, dim=2))
        values.append(v.repeat_interleave(groups, dim=2))
        scale, length = q.shape[-1] ** -0.5, self._length
        causal = torch.einsum("bthd,bshd->bhts", q, keys[0]).float() * scale + self._future[length - q.shape[1] :]
        diagonal = [torch.einsum("bthd,bthd->bht", q, key).float()[..., None] * scale for key in keys[1:]]
        weights = torch.cat([causal, *diagonal], dim=-1).softmax(-1).to(v.dtype)
        mixed = torch.einsum("bhts,bshd->bthd", weights[..., :length], values[0])
        for i, value in enumerate(values[1:]):
            mixed = mixed + weights[..., length + i].transpose(1, 2)[..., None] * value
        return mixed


class EagleModule(nn.Module):
    """The head's products and norms as parameters; its arithmetic is `EagleLayer`'s."""

    def __init__(self, config: EagleConfig, embedding: Tensor, head: Tensor | None = None):
        """`embedding` [V, h] is the target's, frozen; so is `head` [V_d, h], of a head that has none of its own."""
        super().__init__()
        self.config = config
        self.products = nn.ModuleDict({name: nn.Linear(i, o, bias=False) for name, (o, i) in config.shapes().items()})
        self.norms = nn.ParameterDict({name: torch.ones(config.hidden_size) for name in config.norms()})
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("target_head", head, persistent=False)
        for product in self.products.values():
            nn.init.normal_(product.weight, std=0.02)

    def start_from(self, target: ModelConfig, weights: dict[str, Tensor], used: Tensor | None) -> None:
        """Begin with the target's last layer, fed with the last of the tapped states.

        `weights` are the target's, under Transformers' names; `used` [V_d] the draft vocabulary, None for all.
        """
        prefix = f"model.layers.{target.layers - 1}."

        def layer(name: str) -> Tensor:
            return weights[f"{prefix}{name}.weight"].float()

        q, k = (rotary.pair_neighbours(layer(f"self_attn.{name}_proj"), self.config.head_dim) for name in "qk")
        products, norms, h = self.products, self.norms, self.config.hidden_size
        with torch.no_grad():
            products["o"].weight.copy_(layer("self_attn.o_proj"))
            products["down"].weight.copy_(layer("mlp.down_proj"))
            products["gate_up"].weight.copy_(torch.cat([layer("mlp.gate_proj"), layer("mlp.up_proj")]))
            products["qkv"].weight[:, -h:].copy_(torch.cat([q, k, layer("self_attn.v_proj")]))
            norms["post"].copy_(layer("post_attention_layernorm"))
            products["fc"].weight[:, -h:].copy_(torch.eye(h))
            if self.config.version == 3:
                norms["hidden"].copy_(layer("input_layernorm"))
                norms["final"].copy_(weights["model.norm.weight"].float())
            if self.config.own_head:
                head = output_head(target, weights)
                products["head"].weight.copy_(head if used is None else head[used])

    def layer(self) -> EagleLayer:
        products = dict(self.products)
        if not self.config.own_head:
            products["head"] = lambda x: F.linear(x, self.target_head)
        return EagleLayer(self.config, products, self.norms)

    @property
    def head(self) -> Tensor:
        """[V_d, h]: the rows that decide, the draft's own or the target's."""
        return self.products["head"].weight if self.config.own_head else self.target_head

    def weights(self) -> dict[str, Tensor]:
        """The head's tensors by the names of `EagleConfig`, as `write_head` and the draft take them."""
        named = {name: product.weight for name, product in self.products.items()} | dict(self.norms)
        return {name: value.detach().cpu().clone() for name, value in named.items()}

    @torch.no_grad()
    def round_off(self) -> None:
        """Round the weights to bf16, in which a head is stored."""
        for parameter in self.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))

    def unroll(self, batch: Batch, steps: int) -> Iterator[Tensor]:
        """Yield the states of each step, [B, T - first, h] of indices from `batch.first` on; the caller may stop
        early."""
        layer, length, first = self.layer(), batch.length, batch.first
        hidden = layer.fuse(batch.features.float())
        attention = StepAttention(length, first, hidden.device, self.config.layers)
        turns = rotary.table(self.config, length + steps, torch.float32, hidden.device)
        for k in range(steps):
            seen = slice(k + first if k else 0, k + length)
            embedded = F.embedding(batch.tokens[:, seen], self.embedding).float()
            hidden = layer.step(embedded, hidden, attention, turns[seen])
            yield hidden


def output_head(target: ModelConfig, weights: dict[str, Tensor]) -> Tensor:
    """The target's output head [V, h]."""
    return weights["model.embed_tokens.weight" if target.tied else "lm_head.weight"]
