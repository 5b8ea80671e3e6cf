"""Any second checkpoint as the draft: the small model of the same family (Leviathan et al. 2023; Chen et al. 2023).

Its cache keeps what it fed in a round, so that accepted tokens need not be fed again; what is missing is fed together
with the next root.

Its head may be cut to the most frequent tokens (FR-Spec, arXiv 2502.14856): they alone are proposed, q is 0 elsewhere,
and the rules of verification stay exact.  Where the vocabulary dominates the cost of a step, this is most of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.drafters.base import Context
from specdec.drafters.stepping import placement
from specdec.models.transformer import Output, Transformer
from specdec.tree import ROOT


class LanguageModel:
    """A `Transformer` with a cache of its own."""

    taps: tuple[int, ...] = ()

    def __init__(self, model: Transformer, vocabulary: int | None = None):
        """`vocabulary`: the target's number of ids, where it may differ from the model's; the smaller number is shared.

        An id that is not shared is never proposed; one that the target emits is fed to the model as id 0.
        """
        self.model = model
        self.shared = min(model.vocabulary, vocabulary or model.vocabulary)
        fewer = vocabulary is not None and self.shared < vocabulary
        self.vocabulary = torch.arange(self.shared, device=model.device) if fewer else None
        self.columns = self.shared
        """Of the model's logits: those that stand for an id of the target's."""
        if model.head_ids is not None:
            self.vocabulary = model.head_ids[model.head_ids < self.shared]
            self.columns = len(self.vocabulary)

    @property
    def room(self) -> int:
        return self.model.config.max_positions - self._committed - len(self._pending)

    def start(self, prompt: Sequence[int], features: Tensor | None, context: Context) -> None:
        # A tree's rows share positions: its tentative ones may outnumber what the context has left.
        self._cache = self.model.new_cache(min(context.capacity, self.model.config.max_positions + context.rows))
        self._committed = 0
        self._fed: list[tuple[int, int]] = []  # the round's tentative rows: token, parent
        self._pending = list(prompt)
        if len(prompt) > 1 and self.room > 0:
            self._catch_up(prompt[:-1], logits=False)
            self._pending = [prompt[-1]]

    def root(self) -> Tensor:
        logits = self._catch_up(self._pending).logits[-1:, : self.columns]
        self._pending = []
        self._fed = []
        return logits

    def step(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        self._fed += zip(tokens, parents, strict=True)
        where = placement([parent for _, parent in self._fed], len(tokens), self._committed - 1)
        return self.model.forward(tokens, self._cache, **where).logits[:, : self.columns]

    def rollback(self) -> None:
        self._cache.truncate(self._committed)

    def commit(self, tokens: Sequence[int], features: Tensor | None, scored: Output) -> None:
        path: list[int] = []
        for token in tokens[:-1]:
            at = path[-1] if path else ROOT
            found = next((row for row, fed in enumerate(self._fed) if fed == (token, at)), None)
            if found is None:
                break
            path.append(found)
        self._cache.keep(self._committed, path)
        self._committed += len(path)
        self._pending += tokens[len(path) :]
        self._fed = []

    def known(self, tokens: Sequence[int]) -> list[int]:
        """These ids as the model may be fed them."""
        return [token if token < self.shared else 0 for token in tokens]

    def _catch_up(self, tokens: Sequence[int], logits: bool = True) -> Output:
        output = self.model.forward(self.known(tokens), self._cache, logits=logits)
        self._committed += len(tokens)
        return output
