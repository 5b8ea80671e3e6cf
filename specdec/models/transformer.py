"""One decoder-only forward for the Llama family (Llama, Mistral, Qwen2, Qwen3), for batch 1.

`embed`, `layers(hidden, plan)` and `head(rows)` are the three parts; a plan lists (layer, attention?, mlp?), so that
early exits and skipped blocks are calls, not copies of the model.

Numbers.  The residual stream, norms, rotations and softmax are float32 (float64 for float64 models), products are in
the model's dtype.  Up to `NARROW` rows each row is its own entry of the attention kernel and reads the cache up to its
own block boundary, so that, with products that do not mix rows (`linear.py`), a row's logits do not depend on how many
rows are scored with it.  `selftest.py` measures whether that holds on the machine at hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.models import rotary
from specdec.models.config import ModelConfig
from specdec.models.kvcache import BLOCK, CacheView, KVCache
from specdec.models.linear import Linear

NARROW = 32
"""Widths up to this are verification and drafting; wider passes are prefill."""

Plan = Sequence[tuple[int, bool, bool]]


@dataclass(frozen=True)
class Output:
    """`logits` [rows, V] (None when not asked for) and `features` [rows, taps * hidden] (None without taps)."""

    logits: Tensor | None
    features: Tensor | None


@dataclass(frozen=True)
class _Pass:
    """What every layer of one forward shares: where rows go, how they turn, what they may see."""

    start: int
    width: int
    turns: Tensor
    segments: tuple[tuple[slice, int, Tensor], ...]  # rows, cache slots read, additive mask
    narrow: bool


class _Block:
    """Weights of one decoder layer: q, k, v in one product, gate and up in another."""

    def __init__(self, config: ModelConfig, weight, bias):
        c, d = config, config.head_dim
        q, k = (rotary.pair_neighbours(weight(f"self_attn.{name}_proj"), d) for name in "qk")
        qkv_bias = None
        if c.qkv_bias:
            qb, kb = (rotary.pair_neighbours(bias(f"self_attn.{name}_proj"), d) for name in "qk")
            qkv_bias = torch.cat([qb, kb, bias("self_attn.v_proj")])
        self.qkv = Linear(torch.cat([q, k, weight("self_attn.v_proj")]), qkv_bias)
        self.o = Linear(weight("self_attn.o_proj"), bias("self_attn.o_proj") if c.o_bias else None)
        gate_up_bias = torch.cat([bias("mlp.gate_proj"), bias("mlp.up_proj")]) if c.mlp_bias else None
        self.gate_up = Linear(torch.cat([weight("mlp.gate_proj"), weight("mlp.up_proj")]), gate_up_bias)
        self.down = Linear(weight("mlp.down_proj"), bias("mlp.down_proj") if c.mlp_bias else None)
        self.attention_norm = weight("input_layernorm")
        self.mlp_norm = weight("post_attention_layernorm")
        self.q_norm = self.k_norm = None
        if c.qk_norm:
            self.q_norm = rotary.pair_neighbours(weight("self_attn.q_norm"), d)
            self.k_norm = rotary.pair_neighbours(weight("self_attn.k_norm"), d)

    def to_accumulator(self, dtype: torch.dtype) -> None:
        """Norm weights multiply accumulator-precision numbers, so they are widened once."""
        for name in ("attention_norm", "mlp_norm", "q_norm", "k_norm"):
            value = getattr(self, name)
            setattr(self, name, None if value is None else value.to(dtype))

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in (self.qkv, self.o, self.gate_up, self.down))


class Transformer:
    """A model ready to decode.  `weights` maps Transformers' tensor names to tensors.

    `vocabulary` cuts the head to the tokenizer's ids, so that padding rows can never be emitted.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: dict[str, Tensor],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        vocabulary: int | None = None,
    ):
        self.config, self.dtype, self.device = config, dtype, torch.device(device)
        self.vocabulary = vocabulary or config.vocab_size
        self._accumulator = torch.float64 if dtype == torch.float64 else torch.float32

        def tensor(name: str) -> Tensor:
            return weights[name].to(device=self.device, dtype=dtype)

        self._embedding = tensor("model.embed_tokens.weight")
        self._blocks = []
        for i in range(config.layers):
            prefix = f"model.layers.{i}."
            block = _Block(
                config,
                weight=lambda name, p=prefix: tensor(f"{p}{name}.weight"),
                bias=lambda name, p=prefix: tensor(f"{p}{name}.bias"),
            )
            block.to_accumulator(self._accumulator)
            self._blocks.append(block)
        self._norm = tensor("model.norm.weight").to(self._accumulator)
        head = self._embedding if config.tied else tensor("lm_head.weight")
        self._head = Linear(head[: self.vocabulary])
        self._turns = torch.empty(0, config.head_dim // 2)
        self.full_plan: Plan = tuple((i, True, True) for i in range(config.layers))

    # -- sizes -----------------------------------------------------------------------------------------------------

    def weight_bytes(self, plan: Plan | None = None) -> int:
        """Bytes of weights that one pass reads: the plan's blocks and the head."""
        total = self._head.bytes
        for index, attention, mlp in self.full_plan if plan is None else plan:
            block = self._blocks[index]
            total += attention * (block.qkv.bytes + block.o.bytes) + mlp * (block.gate_up.bytes + block.down.bytes)
        return total

    def new_cache(self, capacity: int) -> KVCache:
        return KVCache(self.config, capacity, self.dtype, self.device)

    # -- the forward -----------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def forward(
        self,
        tokens: Sequence[int],
        cache: KVCache | CacheView,
        *,
        positions: Sequence[int] | None = None,
        mask: Tensor | None = None,
        plan: Plan | None = None,
        taps: Sequence[int] = (),
        logits: bool = True,
    ) -> Output:
        """Score `tokens` behind what `cache` holds and append their keys and values.

        `positions` [rows] and `mask` [rows, m] (bool) describe a tree: row i sees every slot but the last m after this
        append, and of those the ones its mask row names (itself among them).  Without them the rows are a chain.
        `taps` are indices of Transformers' `hidden_states`: k is the input of layer k, N the final norm's output.
        """
        plan = self.full_plan if plan is None else plan
        shared = self._prepare(cache, len(tokens), positions, mask)
        hidden, tapped = self.layers(self.embed(tokens), plan, cache, shared, frozenset(taps))
        cache.length = shared.start + shared.width
        normed = None
        if logits or self.config.layers in taps:
            normed = F.rms_norm(hidden, (self.config.hidden_size,), self._norm, self.config.eps)
            tapped[self.config.layers] = normed
        features = torch.cat([tapped[k] for k in taps], dim=-1) if taps else None
        return Output(self.head(normed) if logits else None, features)

    def embed(self, tokens: Sequence[int]) -> Tensor:
        """[rows, hidden] in accumulator precision."""
        ids = torch.tensor(tokens, device=self.device)
        return F.embedding(ids, self._embedding).to(self._accumulator)

    def head(self, normed: Tensor) -> Tensor:
        """[rows, V] from rows behind the final norm."""
        return self._head(normed.to(self.dtype))

    def layers(self, hidden: Tensor, plan: Plan, cache, shared: _Pass, taps: frozenset[int]) -> tuple[Tensor, dict]:
        """Run the plan's blocks over hidden [rows, hidden]; returns it and the inputs of the tapped layers."""
        tapped, width, eps = {}, (self.config.hidden_size,), self.config.eps
        for index, attention, mlp in plan:
            block = self._blocks[index]
            if index in taps:
                tapped[index] = hidden
            if attention:
                normed = F.rms_norm(hidden, width, block.attention_norm, eps).to(self.dtype)
                hidden = hidden + self._attend(block, normed, cache.keys[index], cache.values[index], shared)
            if mlp:
                normed = F.rms_norm(hidden, width, block.mlp_norm, eps).to(self.dtype)
                gate, up = block.gate_up(normed).chunk(2, dim=-1)
                hidden = hidden + block.down(F.silu(gate) * up)
        return hidden, tapped

    def _prepare(self, cache, width: int, positions, mask: Tensor | None) -> _Pass:
        start = cache.reserve(width)
        if positions is None:
            turns = self._rotations(start + width)[start : start + width]
        else:
            turns = self._rotations(max(positions) + 1)[torch.tensor(positions, device=self.device)]
        narrow = width <= NARROW
        # A narrow row reads the cache up to the end of the block that holds its own slot; prefill reads what is there.
        ends = [_block_end(start + i) for i in range(width)] if narrow else [start + width] * width
        segments = []
        first = 0
        while first < width:
            last = first
            while last < width and ends[last] == ends[first]:
                last += 1
            allowed = _visible(start, width, mask, range(first, last), ends[first], self.device)
            segments.append((slice(first, last), ends[first], allowed.to(self.dtype)))
            first = last
        return _Pass(start, width, turns, tuple(segments), narrow)

    def _rotations(self, positions: int) -> Tensor:
        if len(self._turns) < positions:
            grown = min(max(positions, 2 * len(self._turns), 512), max(positions, self.config.max_positions))
            self._turns = rotary.table(self.config, grown, self.dtype, self.device)
        return self._turns

    def _attend(self, block: _Block, x: Tensor, keys: Tensor, values: Tensor, shared: _Pass) -> Tensor:
        """x [rows, hidden] -> [rows, hidden]; writes the rows' keys and values [kv_heads, capacity, d] on the way."""
        c, rows = self.config, shared.width
        heads = block.qkv(x).view(rows, c.heads + 2 * c.kv_heads, c.head_dim)
        turning = heads[:, : c.heads + c.kv_heads].to(self._accumulator)
        q, k = turning, None
        if block.q_norm is not None:
            q, k = turning.split([c.heads, c.kv_heads], dim=1)
            q = F.rms_norm(q, (c.head_dim,), block.q_norm, c.eps)
            k = F.rms_norm(k, (c.head_dim,), block.k_norm, c.eps)
            q = torch.cat([q, k], dim=1)
        turned = rotary.rotate(q, shared.turns).to(self.dtype)
        slots = slice(shared.start, shared.start + rows)
        keys[:, slots] = turned[:, c.heads :].transpose(0, 1)
        values[:, slots] = heads[:, c.heads + c.kv_heads :].transpose(0, 1)
        group = c.heads // c.kv_heads
        if shared.narrow:
            # Grouped queries are the kernel's query rows: each text row is a batch entry that reads the shared cache in
            # place, [rows, kv_heads, group, d] against [rows (stride 0), kv_heads, slots, d].
            q = turned[:, : c.heads].reshape(rows, c.kv_heads, group, c.head_dim)
            parts = [
                F.scaled_dot_product_attention(
                    q[r],
                    keys[:, :end].expand(r.stop - r.start, -1, -1, -1),
                    values[:, :end].expand(r.stop - r.start, -1, -1, -1),
                    attn_mask=allowed[:, None, None, :],
                )
                for r, end, allowed in shared.segments
            ]
            mixed = parts[0] if len(parts) == 1 else torch.cat(parts)
        else:
            _, end, allowed = shared.segments[0]
            q = turned[:, : c.heads].transpose(0, 1).unsqueeze(0)
            mixed = F.scaled_dot_product_attention(
                q, keys[None, :, :end], values[None, :, :end], attn_mask=allowed, enable_gqa=group > 1
            )
            mixed = mixed.squeeze(0).transpose(0, 1)
        return block.o(mixed.reshape(rows, c.heads * c.head_dim))


def _block_end(slot: int) -> int:
    return (slot // BLOCK + 1) * BLOCK


def _visible(start: int, width: int, mask: Tensor | None, rows: range, end: int, device) -> Tensor:
    """Additive mask [rows, end]: 0 where a row may look, -inf elsewhere."""
    slots = torch.arange(end, device=device)
    if mask is None:
        own = torch.arange(start + rows.start, start + rows.stop, device=device)
        seen = slots[None, :] <= own[:, None]
    else:
        prefix = start + width - mask.shape[1]
        seen = (slots < prefix).repeat(len(rows), 1)
        reach = min(end, start + width)
        seen[:, prefix:reach] = mask[rows.start : rows.stop, : reach - prefix].to(device)
    return torch.zeros(seen.shape, device=device).masked_fill_(~seen, -math.inf)
