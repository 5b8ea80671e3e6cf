"""An EAGLE head as the draft: it continues the target's own hidden states.

Sources: EAGLE-1, arXiv 2401.15077; EAGLE-3, arXiv 2503.01840.

The head reads pairs (state that predicted a token, that token).  For committed text the states are the target's, out of
the verification pass that had to be run anyway; deeper in a draft they are the head's own outputs.  What was fed with
its own outputs is never kept: the next round feeds the committed pairs with the target's states.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.drafters.base import Context
from specdec.drafters.stepping import placement
from specdec.models import rotary
from specdec.models.attention import CachedAttention
from specdec.models.eagle import EagleConfig, EagleLayer
from specdec.models.eagle_files import read_head
from specdec.models.kvcache import KVCache
from specdec.models.linear import Linear
from specdec.models.loading import weight_files
from specdec.models.transformer import Output, Transformer


class Eagle:
    """`weights` holds the head's products and norms by the names of `EagleConfig`; `used` [V_d] its target ids.

    Draft tokens that the target's tokenizer does not have (padding rows) are cut off.
    """

    def __init__(
        self,
        config: EagleConfig,
        weights: dict[str, Tensor],
        target: Transformer,
        used: Tensor | None = None,
        model_id: str = "",
    ):
        self.config, self.model_id, self._target = config, model_id, target
        self.taps = config.taps
        weights, self.vocabulary, ids = _known(config, weights, used, target)
        dtype, wide = target.dtype, torch.float64 if target.dtype == torch.float64 else torch.float32

        def place(name: str) -> Tensor | None:
            return weights[name].to(target.device, dtype) if name in weights else None

        products = {name: Linear(place(name), place(f"{name}.bias")) for name in config.shapes()}
        self.weight_bytes = sum(product.bytes for product in products.values())
        if config.version == 1:
            products["head"] = target.head
            self.weight_bytes += target.weight_bytes(())
        elif not config.own_head:
            products["head"] = Linear(target.head_rows(ids))
            self.weight_bytes += products["head"].bytes
        norms = {name: weights[name].to(target.device, wide) for name in config.norms()}
        self._layer = EagleLayer(config, products, norms, dtype)
        self._turns = rotary.table(config, 512, dtype, target.device)
        self._embedding = place("embedding")

    @classmethod
    def load(cls, folder: str | Path, target: Transformer) -> Eagle:
        """A head from its folder, for this target."""
        folder = Path(folder)
        config, weights, used = read_head(folder, target.config)
        digest = hashlib.sha256()
        for file in [folder / "config.json", *weight_files(folder)]:
            digest.update(file.read_bytes())
        return cls(config, weights, target, used, digest.hexdigest()[:16])

    @property
    def room(self) -> int:
        if not self._pending and not self._committed:
            return 0  # the first round of a one-token prompt: there is no state to continue
        return self.config.max_positions - self._committed - len(self._pending)

    def start(self, prompt: Sequence[int], features: Tensor | None, context: Context) -> None:
        self._cache = KVCache(self.config, context.capacity, self._target.dtype, self._target.device)
        self._committed = 0
        self._pending: list[int] = list(prompt[1:])
        self._states = features  # [pending, taps * hidden]
        if len(self._pending) > 1:  # all but the root's pair belongs to the prefill
            self._feed(self._pending[:-1], self._layer.fuse(features[:-1]))
            self._committed = self._cache.length
            self._pending, self._states = self._pending[-1:], features[-1:]

    def root(self) -> Tensor:
        out = self._feed(self._pending, self._layer.fuse(self._states))
        self._committed = self._cache.length
        self._pending = []
        self._parents: list[int] = []
        self._outputs = out[-1:]  # row 0: the root's; row i + 1: of the round's row i
        return self._layer.logits(out[-1:])

    def step(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        hidden = self._outputs[[parent + 1 for parent in parents]]
        self._parents += parents
        out = self._feed(tokens, hidden, **placement(self._parents, len(tokens), self._committed - 1))
        self._outputs = torch.cat([self._outputs, out])
        return self._layer.logits(out)

    def rollback(self) -> None:
        self._cache.truncate(self._committed)

    def commit(self, tokens: Sequence[int], features: Tensor, scored: Output) -> None:
        pending = self._pending
        self._states = features if not pending else torch.cat([self._states, features])
        self._pending = [*pending, *tokens]

    @torch.inference_mode()
    def _feed(self, tokens: Sequence[int], hidden: Tensor, positions=None, mask: Tensor | None = None) -> Tensor:
        """Append pairs to the cache; the head's states [rows, h]."""
        length, rows = self._cache.length, len(tokens)
        wanted = [length + i for i in range(rows)] if positions is None else list(positions)
        if max(wanted) >= len(self._turns):
            self._turns = rotary.table(self.config, 2 * max(wanted), self._target.dtype, self._target.device)
        turns = self._turns[torch.tensor(wanted, device=self._target.device)]
        attention = CachedAttention(self._cache, rows, turns, self._target.dtype, mask)
        out = self._layer.step(self._embed(tokens), hidden, lambda q, k, v: attention(0, q, k, v), turns)
        self._cache.length = attention.start + rows
        return out

    def _embed(self, tokens: Sequence[int]) -> Tensor:
        """[rows, h]: the target's embedding, or the head's own where its file holds one."""
        if self._embedding is None:
            return self._target.embed(tokens)
        ids = torch.as_tensor(tokens, device=self._target.device)
        return F.embedding(ids, self._embedding).to(self._target.accumulator)


def _known(
    config: EagleConfig, weights: dict[str, Tensor], used: Tensor | None, target: Transformer
) -> tuple[dict[str, Tensor], Tensor | None, Tensor | None]:
    """Weights, draft vocabulary (None: every id) and its ids, all without ids that the target's tokenizer lacks."""
    if config.version == 1:
        return weights, None, None
    ids = torch.arange(config.draft_vocabulary) if used is None else used
    kept = ids < target.vocabulary
    if not kept.all():
        weights = weights | ({"head": weights["head"][kept]} if config.own_head else {})
        ids = ids[kept]
    whole = torch.equal(ids, torch.arange(target.vocabulary))
    ids = ids.to(target.device)
    return weights, None if whole else ids, ids
