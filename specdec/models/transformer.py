"""One decoder-only forward for the Llama family (Llama, Mistral, Qwen2, Qwen3), for batch 1.

`embed`, `layers(hidden, plan)` and `head(rows)` are the three parts; a plan lists (layer, attention?, mlp?), so that
early exits and skipped blocks are calls, not copies of the model.

Numbers.  The residual stream, norms, rotations, softmax and logits are float32 (float64 for float64 models), products
take the model's dtype.  Neither the products (`linear.py`) nor the attention of a few rows (`attention.py`) mix rows,
so that a row's logits do not depend on how many rows are scored with it; `selftest.py` measures whether that holds on
the machine at hand.

Where the engine of `native/` serves the processor and the number format, a forward is one call of it, and this file's
own is its reference.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.models import rotary
from specdec.models.attention import Attention, CachedAttention
from specdec.models.blocks import Block, BlockWeights
from specdec.models.config import ModelConfig
from specdec.models.kvcache import CacheView, KVCache
from specdec.models.linear import Linear
from specdec.models.native import NativeModel, native_for
from specdec.models.native.rows import Rows
from specdec.models.norm import RMSNorm
from specdec.models.quantised import Matrix, Quantised, held, plain

Plan = Sequence[tuple[int, bool, bool]]


@dataclass(frozen=True)
class Output:
    """`logits` [rows, V] (None when not asked for), `features` [rows, taps * hidden] (None without taps), and `hidden`
    [rows, hidden], what the last block of the plan left, before the final norm."""

    logits: Tensor | None
    features: Tensor | None
    hidden: Tensor | None = None


class Transformer:
    """A model ready to decode.  `weights` maps Transformers' tensor names to tensors, matrices quantised or not.

    `vocabulary` cuts the head to the tokenizer's ids, so that padding rows can never be emitted; `head_ids` [V_d],
    ascending, to these of them: column i of the logits then stands for id head_ids[i].  `rounded` rounds the matrices
    that are not quantised to this format of `quantised.py`.  The engine reads quantised ones as they are; PyTorch's
    path computes with the bf16 numbers that they stand for.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: dict[str, Matrix],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        vocabulary: int | None = None,
        head_ids: Tensor | None = None,
        rounded: str | None = None,
    ):
        self.config, self.dtype, self.device = config, dtype, torch.device(device)
        self.vocabulary = vocabulary or config.vocab_size
        self.head_ids = None if head_ids is None else head_ids.to(self.device)
        self.accumulator = torch.float64 if dtype == torch.float64 else torch.float32

        loaded = native_for(dtype, self.device)
        self.formats: set[str] = set()
        """Those of `quantised.py` that the engine reads this model's matrices in."""

        def tensor(name: str) -> Tensor:
            return plain(weights[name]).to(device=self.device, dtype=dtype)

        def matrix(name: str) -> Matrix:
            kept = held(weights[name], rounded, self._embedding, loaded is not None)
            if isinstance(kept, Quantised):
                self.formats.add(kept.format)
            return kept

        def norm(weight: Tensor) -> RMSNorm:
            return RMSNorm(weight, config.eps, self.accumulator)

        self._embedding = tensor("model.embed_tokens.weight")
        head = matrix("model.embed_tokens.weight" if config.tied else "lm_head.weight")
        kept = slice(self.vocabulary) if head_ids is None else self.head_ids
        head = head.rows(kept) if isinstance(head, Quantised) else head[kept]
        self._sizes: list[tuple[int, int]] = []
        """Bytes of each layer's attention and MLP."""

        def blocks() -> Iterator[BlockWeights]:
            for i in range(config.layers):
                made = BlockWeights.of(config, lambda name, i=i: matrix(f"model.layers.{i}.{name}"))
                self._sizes.append((made.attention_bytes, made.mlp_bytes))
                yield made

        self._head_bytes, final = head.nbytes, tensor("model.norm.weight")
        self.native: NativeModel | None = None
        """None: this file's forward."""
        if loaded is not None:
            self.native = NativeModel(loaded, config, self._embedding, blocks(), final, head)
        else:
            self._blocks = [Block(made, norm) for made in blocks()]
            self.norm, self._head = norm(final), Linear(head)
        self._turns = torch.empty(0, config.head_dim // 2)
        self.full_plan: Plan = tuple((i, True, True) for i in range(config.layers))

    # -- sizes -----------------------------------------------------------------------------------------------------

    def weight_bytes(self, plan: Plan | None = None) -> int:
        """Bytes of weights that one pass reads: the plan's blocks and the head."""
        total = self._head_bytes
        for index, attention, mlp in self.full_plan if plan is None else plan:
            attention_bytes, mlp_bytes = self._sizes[index]
            total += attention * attention_bytes + mlp * mlp_bytes
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
        if self.native is not None:
            rows = Rows.behind(cache, len(tokens), positions, mask)
            found = self.native.forward(tokens, rows, self.rotations(max(rows.positions) + 1), plan, taps, logits)
            cache.length = rows.slots.stop
            return Output(*found)
        turns = self._rotations(cache.length, len(tokens), positions)
        attention = CachedAttention(cache, len(tokens), turns, self.dtype, mask)
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
        rest = self.full_plan[layers:]
        if self.native is not None:
            rows = Rows.behind(cache, len(tokens), None, None)
            found = self.native.forward(tokens, rows, self.rotations(base + len(tokens)), rest, states=hidden)
            cache.length = rows.slots.stop
            return Output(*found)
        attention = CachedAttention(cache, len(tokens), self._rotations(base, len(tokens), None), self.dtype, None)
        hidden, _ = self.layers(hidden, rest, attention)
        cache.length = base + len(tokens)
        return Output(self.head(self.norm(hidden)), None, hidden)

    def embed(self, tokens: Sequence[int] | Tensor) -> Tensor:
        """[rows, hidden] in accumulator precision."""
        ids = torch.as_tensor(tokens, device=self.device)
        return F.embedding(ids, self._embedding).to(self.accumulator)

    def layers(
        self, hidden: Tensor, plan: Plan, attention: Attention, taps: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run the plan's blocks over hidden [rows, hidden]; returns it and the inputs of the tapped layers.

        The PyTorch path alone; the engine's is `native.forward`.
        """
        tapped: dict[int, Tensor] = {}
        for index, attend, mlp in plan:
            block = self._blocks[index]
            if index in taps:
                tapped[index] = hidden
            if attend:
                hidden = hidden + self._attend(index, block, block.attention_norm(hidden), attention)
            if mlp:
                gate, up = block.gate_up(block.mlp_norm(hidden)).chunk(2, dim=-1)
                hidden = hidden + block.down(F.silu(gate).mul_(up))
        return hidden, tapped

    def head(self, normed: Tensor) -> Tensor:
        """[rows, V], or [rows, V_d] of a cut head, from rows behind the final norm."""
        if self.native is not None:
            return self.native.logits(normed)
        return self._head(normed).to(self.accumulator)

    def head_rows(self, ids: Tensor) -> Tensor:
        """[ids, hidden]: what the head weighs these ids by, for a draft that decides by the target's own rows."""
        if self.config.tied:
            return self._embedding[ids]
        # the head is kept as a product alone; given one coordinate at a time, it says its weights exactly
        unit = torch.eye(self.config.hidden_size, dtype=self.accumulator, device=self.device)
        return torch.cat([self.head(part)[:, ids] for part in unit.split(64)]).T.contiguous()

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

    def _attend(self, index: int, block: Block, x: Tensor, attention: Attention) -> Tensor:
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
