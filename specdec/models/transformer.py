"""One decoder-only forward for the Llama family (Llama, Mistral, Qwen2, Qwen3), for batch 1.

`embed`, `layers(hidden, plan)` and `head(rows)` are the three parts; a plan lists (layer, attention?, mlp?), so that
early exits and skipped blocks are calls, not copies of the model.

Numbers.  The residual stream, norms, rotations and softmax are float32 (float64 for float64 models), products are in
the model's dtype.  Neither the products (`linear.py`) nor the attention of a few rows (`attention.py`) mix rows, so
that a row's logits do not depend on how many rows are scored with it; `selftest.py` measures whether that holds on
the machine at hand.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.models import rotary
from specdec.models.attention import Attention, CachedAttention
from specdec.models.config import ModelConfig
from specdec.models.fused import fused_for
from specdec.models.kvcache import CacheView, KVCache
from specdec.models.linear import Linear
from specdec.models.norm import RMSNorm

Plan = Sequence[tuple[int, bool, bool]]


@dataclass(frozen=True)
class Output:
    """`logits` [rows, V] (None when not asked for), `features` [rows, taps * hidden] (None without taps), and `hidden`
    [rows, hidden], what the last block of the plan left, before the final norm."""

    logits: Tensor | None
    features: Tensor | None
    hidden: Tensor | None = None


class _Block:
    """Weights of one decoder layer: q, k, v in one product, gate and up in another."""

    def __init__(self, config: ModelConfig, weight, bias, norm):
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
        self.attention_norm = norm(weight("input_layernorm"))
        self.mlp_norm = norm(weight("post_attention_layernorm"))
        self.q_norm = self.k_norm = None
        if c.qk_norm:
            self.q_norm, self.k_norm = (norm(rotary.pair_neighbours(weight(f"self_attn.{n}_norm"), d)) for n in "qk")

    @property
    def head_norms(self) -> tuple[Tensor | None, Tensor | None]:
        """Weights of the norms on queries and keys."""
        return tuple(None if norm is None else norm.weight for norm in (self.q_norm, self.k_norm))

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in (self.qkv, self.o, self.gate_up, self.down))


class Transformer:
    """A model ready to decode.  `weights` maps Transformers' tensor names to tensors.

    `vocabulary` cuts the head to the tokenizer's ids, so that padding rows can never be emitted; `head_ids` [V_d],
    ascending, to these of them: column i of the logits then stands for id head_ids[i].
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: dict[str, Tensor],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        vocabulary: int | None = None,
        head_ids: Tensor | None = None,
    ):
        self.config, self.dtype, self.device = config, dtype, torch.device(device)
        self.vocabulary = vocabulary or config.vocab_size
        self.head_ids = None if head_ids is None else head_ids.to(self.device)
        self.accumulator = torch.float64 if dtype == torch.float64 else torch.float32

        def tensor(name: str) -> Tensor:
            return weights[name].to(device=self.device, dtype=dtype)

        def norm(weight: Tensor) -> RMSNorm:
            return RMSNorm(weight, config.eps, self.accumulator)

        self._embedding = tensor("model.embed_tokens.weight")
        self._blocks = []
        for i in range(config.layers):
            prefix = f"model.layers.{i}."
            block = _Block(
                config,
                weight=lambda name, p=prefix: tensor(f"{p}{name}.weight"),
                bias=lambda name, p=prefix: tensor(f"{p}{name}.bias"),
                norm=norm,
            )
            self._blocks.append(block)
        self.norm = norm(tensor("model.norm.weight"))
        head = self._embedding if config.tied else tensor("lm_head.weight")
        self._head = Linear(head[: self.vocabulary] if head_ids is None else head[self.head_ids])
        self.fused = fused_for(dtype, self.device)
        """None: the PyTorch path, which is the reference."""
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
        turns = self._rotations(cache.length, len(tokens), positions)
        attention = CachedAttention(cache, len(tokens), turns, self.dtype, mask, self.fused)
        hidden, tapped = self.layers(self.embed(tokens), plan, attention, taps)
        cache.length = attention.start + attention.width
        if logits or self.config.layers in taps:
            tapped[self.config.layers] = self.norm(hidden)
        features = torch.cat([tapped[k] for k in taps], dim=-1) if taps else None
        return Output(self.head(tapped[self.config.layers]) if logits else None, features, hidden)

    @torch.inference_mode()
    def resume(self, tokens: Sequence[int], cache: KVCache | CacheView, layers: int, hidden: Tensor) -> Output:
        """`forward` of a chain whose first rows have been through the first `layers` layers already.

        `hidden` [n, hidden], n up to len(tokens), is what those layers left of tokens[:n]; their keys and values stand
        in the slots behind what `cache` holds.  The other tokens go through those layers first.
        """
        base, known = cache.length, len(hidden)
        if known < len(tokens):
            cache.length = base + known
            late = self.forward(tokens[known:], cache, plan=self.full_plan[:layers], logits=False)
            hidden = torch.cat([hidden, late.hidden])
            cache.length = base
        turns = self._rotations(base, len(tokens), None)
        attention = CachedAttention(cache, len(tokens), turns, self.dtype, None, self.fused)
        hidden, _ = self.layers(hidden, self.full_plan[layers:], attention)
        cache.length = base + len(tokens)
        return Output(self.head(self.norm(hidden)), None, hidden)

    def embed(self, tokens: Sequence[int] | Tensor) -> Tensor:
        """[rows, hidden] in accumulator precision."""
        ids = torch.as_tensor(tokens, device=self.device)
        return F.embedding(ids, self._embedding).to(self.accumulator)

    def layers(
        self, hidden: Tensor, plan: Plan, attention: Attention, taps: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run the plan's blocks over hidden [rows, hidden]; returns it and the inputs of the tapped layers."""
        if self.fused is not None and isinstance(attention, CachedAttention):
            return self._fused_layers(hidden, plan, attention, taps)
        tapped: dict[int, Tensor] = {}
        for index, attend, mlp in plan:
            block = self._blocks[index]
            if index in taps:
                tapped[index] = hidden
            if attend:
                normed = block.attention_norm(hidden).to(self.dtype)
                hidden = hidden + self._attend(index, block, normed, attention)
            if mlp:
                normed = block.mlp_norm(hidden).to(self.dtype)
                gate, up = block.gate_up(normed).chunk(2, dim=-1)
                hidden = hidden + block.down(F.silu(gate) * up)
        return hidden, tapped

    def _fused_layers(
        self, hidden: Tensor, plan: Plan, attention: CachedAttention, taps: Collection[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """The same blocks with the operations between products fused: a product's result waits to be added in the next
        norm."""
        tapped: dict[int, Tensor] = {}
        c, fused, update = self.config, self.fused, None
        for index, attend, mlp in plan:
            block = self._blocks[index]
            if index in taps:
                hidden, update = hidden if update is None else hidden + update, None
                tapped[index] = hidden
            if attend:
                hidden, normed = fused.add_norm(hidden, update, block.attention_norm.weight, c.eps)
                qkv, slots = block.qkv(normed), attention.slots(index)
                q = fused.place(qkv, attention.turns, block.head_norms, c.eps, *slots, c.heads, attention.start)
                update = block.o(attention.mix(index, q).reshape(len(q), -1))
            if mlp:
                hidden, normed = fused.add_norm(hidden, update, block.mlp_norm.weight, c.eps)
                update = block.down(fused.gated(block.gate_up(normed)))
        return hidden if update is None else hidden + update, tapped

    def head(self, normed: Tensor) -> Tensor:
        """[rows, V], or [rows, V_d] of a cut head, from rows behind the final norm."""
        return self._head(normed.to(self.dtype))

    def head_rows(self, ids: Tensor) -> Tensor:
        """[ids, hidden]: what the head weighs these ids by, for a draft that decides by the target's own rows."""
        if self.config.tied:
            return self._embedding[ids]
        # the head is kept as a product alone; given one coordinate at a time, it says its weights exactly
        unit = torch.eye(self.config.hidden_size, dtype=self.dtype, device=self.device)
        return torch.cat([self._head(part)[:, ids] for part in unit.split(64)]).T.contiguous()

    def rotations(self, positions: int) -> Tensor:
        """The rotary table, [positions or more, head_dim / 2]; grown when needed."""
        if len(self._turns) < positions:
            grown = max(positions, min(2 * len(self._turns), self.config.max_positions), 512)
            self._turns = rotary.table(self.config, grown, self.dtype, self.device)
        return self._turns

    def _rotations(self, start: int, width: int, positions: Sequence[int] | None) -> Tensor:
        if positions is None:
            return self.rotations(start + width)[start : start + width]
        return self.rotations(max(positions) + 1)[torch.as_tensor(positions, device=self.device)]

    def _attend(self, index: int, block: _Block, x: Tensor, attention: Attention) -> Tensor:
        """x [rows, hidden] -> [rows, hidden]."""
        c, rows = self.config, len(x)
        heads = block.qkv(x).view(rows, c.heads + 2 * c.kv_heads, c.head_dim)
        turning = heads[:, : c.heads + c.kv_heads].to(self.accumulator)
        if block.q_norm is not None:
            q, k = turning.split([c.heads, c.kv_heads], dim=1)
            turning = torch.cat([block.q_norm(q), block.k_norm(k)], dim=1)
        turned = rotary.rotate(turning, attention.turns).to(self.dtype)
        q, k = turned[:, : c.heads], turned[:, c.heads :]
        mixed = attention(index, q, k, heads[:, c.heads + c.kv_heads :])
        return block.o(mixed.reshape(rows, c.heads * c.head_dim))
