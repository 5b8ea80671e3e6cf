"""The target's own first layers as the draft (LayerSkip's inference, arXiv 2404.16710, without its training).

Layers 0..E-1, the final norm and the head guess.  Their keys and values for committed text are the target's own, so the
draft reads the target's cache and needs none of its own; its tentative rows go into free slots, which the verification
pass overwrites.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specdec.drafters.base import Context
from specdec.drafters.stepping import placement
from specdec.errors import UserError
from specdec.models.transformer import Output, Transformer


class LayerSkip:
    """Exit after `layers` of the target's layers."""

    taps: tuple[int, ...] = ()
    vocabulary: Tensor | None = None

    def __init__(self, target: Transformer, layers: int):
        total = target.config.layers
        if isinstance(layers, bool) or not isinstance(layers, int) or not 1 <= layers <= total:
            raise UserError(f"layer_skip: layers = {layers}: must be an integer between 1 and {total}")
        self.plan = target.full_plan[:layers]

    @property
    def room(self) -> int:
        return self._target.config.max_positions - self._cache.length - 1

    def start(self, prompt: Sequence[int], features: Tensor | None, context: Context) -> None:
        self._target = context.target
        self._cache = context.cache.view()
        self._root = prompt[-1]

    def root(self) -> Tensor:
        self._base = self._cache.length
        self._fed: list[int] = []  # parents of the round's rows behind the root
        return self._target.forward([self._root], self._cache, plan=self.plan).logits

    def step(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        self._fed += parents
        where = placement(self._fed, len(tokens), self._base)
        return self._target.forward(tokens, self._cache, plan=self.plan, **where).logits

    def rollback(self) -> None:
        self._cache.rollback()

    def commit(self, tokens: Sequence[int], features: Tensor | None, scored: Output) -> None:
        self._root = tokens[-1]
