"""One token a level: the draft of the original papers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdec.growth.depth import DepthRule
from specdec.models.transformer import Output
from specdec.sampling import largest, warp
from specdec.tree import POINT, ROOT, WITHOUT_REPLACEMENT, Draft

if TYPE_CHECKING:  # the drafters' registry imports this room
    from specdec.drafters.base import Budget, Context, DraftModel


class Chain:
    """Draws from the model's law (or takes its argmax, a point law, when the draft is greedy) until the rule says stop.

    A drafted end of text ends the round as well: nothing behind it could be emitted, and it is kept.
    """

    def __init__(self, model: DraftModel, rule: DepthRule):
        self.model, self.rule = model, rule
        self.taps = model.taps
        self._last: tuple[int, ...] = ()

    def start(self, prompt: Sequence[int], features: Tensor | None, context: Context) -> None:
        self._sampling, self._stream = context.sampling.for_draft, context.stream
        self._eos, self._vocabulary = context.eos_ids, context.target.vocabulary
        self._last = ()
        self.rule.reset()
        self.model.start(prompt, features, context)

    def propose(self, budget: Budget) -> Draft:
        depth = min(budget.depth, self.model.room)
        if depth <= 0:
            return Draft(stopped="context")
        tokens: list[int] = []
        rows: list[Tensor] = []
        logits = self.model.root()[0]
        while True:
            if not self.rule.before(len(tokens), logits):
                stopped = self.rule.name
                break
            tokens.append(self._draw(logits, rows))
            if len(tokens) == depth:
                stopped = "depth" if depth == budget.depth else "context"
                break
            if tokens[-1] in self._eos:
                stopped = "end_of_text"
                break
            if not self.rule.after(len(tokens) - 1, logits, tokens[-1]):
                stopped = self.rule.name
                break
            logits = self.model.step([tokens[-1]], [len(tokens) - 2 if len(tokens) > 1 else ROOT])[0]
        self.model.rollback()
        self._last = tuple(tokens)
        if rows:
            return Draft.chain(tokens, WITHOUT_REPLACEMENT, torch.stack(rows), stopped)
        return Draft.chain(tokens, POINT, None, stopped)

    def commit(self, tokens: Sequence[int], features: Tensor | None, scored: Output) -> None:
        accepted = 0
        while accepted < min(len(self._last), len(tokens)) and self._last[accepted] == tokens[accepted]:
            accepted += 1
        self.rule.observe(len(self._last), accepted)
        self.model.commit(tokens, features, scored)

    def _draw(self, logits: Tensor, rows: list[Tensor]) -> int:
        """One token, as a target id; its law goes into `rows` unless the draft is greedy."""
        vocabulary = self.model.vocabulary
        if self._sampling.greedy:
            column = int(largest(logits))
            return column if vocabulary is None else int(vocabulary[column])
        q = warp(logits, self._sampling)
        if vocabulary is not None:
            q = q.new_zeros(self._vocabulary).index_copy_(0, vocabulary, q)
        rows.append(q)
        return self._stream.draw(q)
