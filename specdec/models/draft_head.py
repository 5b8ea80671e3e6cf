"""An EAGLE head ready to guess: over a cache, by PyTorch.  `native/eagle.py` is the same in the engine.

`step` is all that a drafter needs of either; `eagle_head` gives the one that fits the target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.models import rotary
from specdec.models.attention import CachedAttention
from specdec.models.eagle import EagleConfig, EagleLayer
from specdec.models.kvcache import KVCache
from specdec.models.linear import Linear
from specdec.models.native.eagle import NativeHead
from specdec.models.quantised import Matrix
from specdec.models.transformer import Transformer


def eagle_head(config: EagleConfig, weights: Mapping[str, Matrix], target: Transformer) -> EagleHead | NativeHead:
    """`weights` holds products, norms, `fc.bias` and `embedding` by the names of `EagleConfig`, EAGLE-3's `head` among
    them also where its rows are the target's."""
    if target.native is not None:
        return NativeHead(config, weights, target.native)
    return EagleHead(config, weights, target)


class EagleHead:
    """The head's layer with packed products and a rotary table."""

    def __init__(self, config: EagleConfig, weights: Mapping[str, Tensor], target: Transformer):
        self.config, self._target = config, target
        dtype, wide = target.dtype, target.accumulator

        def place(name: str) -> Tensor | None:
            return weights[name].to(target.device, dtype) if name in weights else None

        names = [name for name in (*config.shapes(), "head") if name in weights]
        products = {name: Linear(place(name), place(f"{name}.bias")) for name in names}
        if config.version == 1:
            products["head"] = target.head
        norms = {name: weights[name].to(target.device, wide) for name in config.norms()}
        self._layer = EagleLayer(config, products, norms)
        self._turns = rotary.table(config, 512, dtype, target.device)
        self._embedding = place("embedding")

    @torch.inference_mode()
    def step(
        self,
        tokens: Sequence[int],
        cache: KVCache,
        *,
        features: Tensor | None = None,
        states: Tensor | None = None,
        positions: Sequence[int] | None = None,
        mask: Tensor | None = None,
        scored: int = 0,
    ) -> tuple[Tensor, Tensor | None]:
        """Append pairs to the cache: (next states [rows, h], logits [scored, V_d] of the last rows, None for no row).

        Given are the target's tapped states, `features` [rows, taps * hidden], or the head's own, `states` [rows, h].
        """
        hidden = self._layer.fuse(features) if states is None else states
        length, rows, device = cache.length, len(tokens), self._target.device
        wanted = [length + i for i in range(rows)] if positions is None else list(positions)
        if max(wanted) >= len(self._turns):
            self._turns = rotary.table(self.config, 2 * max(wanted), self._target.dtype, device)
        turns = self._turns[torch.tensor(wanted, device=device)]
        attention = CachedAttention(cache, rows, turns, self._target.dtype, mask)
        out = self._layer.step(self._embed(tokens), hidden, attention, turns)
        cache.length = attention.start + rows
        return out, self._layer.logits(out[rows - scored :]).to(self._target.accumulator) if scored else None

    def _embed(self, tokens: Sequence[int]) -> Tensor:
        """[rows, h]: the target's embedding, or the head's own where its file holds one."""
        if self._embedding is None:
            return self._target.embed(tokens)
        ids = torch.as_tensor(tokens, device=self._target.device)
        return F.embedding(ids, self._embedding).to(self._target.accumulator)
