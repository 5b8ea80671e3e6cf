"""One token a level: the draft of the original papers (Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdec.growth.depth import DepthRule, wide
from specdec.growth.grower import Grower
from specdec.tree import POINT, ROOT, WITHOUT_REPLACEMENT, Draft

if TYPE_CHECKING:  # the drafters' registry imports this room
    from specdec.drafters.base import Context, DraftModel


class Chain(Grower):
    """Draws from the model's law (or takes its argmax, a point law, when the draft is greedy) until the rule says stop.

    A drafted end of text ends the round as well: nothing behind it could be emitted, and it is kept.
    """

    def __init__(self, model: DraftModel, rule: DepthRule):
        super().__init__(model)
        self.rule = rule
        self._last: tuple[int, ...] = ()

    def rows(self, depth: int, nodes: int) -> int:
        return min(depth, nodes)

    def open(self, prompt: Sequence[int], context: Context) -> None:
        super().open(prompt, context)
        self._last = ()
        self.rule.begin(prompt, self.model.vocabulary)

    def grow(self, depth: int, nodes: int) -> Draft:
        tokens: list[int] = []
        rows: list[Tensor] = []
        chances: list[Tensor] = []
        logits = self.model.root()[0]
        while True:
            if not self.rule.before(len(tokens), logits):
                stopped = self.rule.name
                break
            tokens.append(self._draw(logits, rows, chances))
            if len(tokens) == min(depth, nodes):
                stopped = self._edge if depth <= nodes else "nodes"
                break
            if tokens[-1] in self._eos:
                stopped = "end_of_text"
                break
            if not self.rule.after(len(tokens) - 1, logits, tokens[-1]):
                stopped = self.rule.name
                break
            logits = self.model.step([tokens[-1]], [len(tokens) - 2 if len(tokens) > 1 else ROOT])[0]
        self._last = tuple(tokens)
        confidence = torch.stack(chances).cumprod(0).tolist() if chances else ()
        early = getattr(self.model, "early", None)
        if rows:
            return Draft.chain(tokens, WITHOUT_REPLACEMENT, torch.stack(rows), stopped, confidence, early)
        return Draft.chain(tokens, POINT, None, stopped, confidence, early)

    def learn(self, tokens: Sequence[int]) -> None:
        accepted = 0
        while accepted < min(len(self._last), len(tokens)) and self._last[accepted] == tokens[accepted]:
            accepted += 1
        self.rule.observe(len(self._last), accepted)
        self.rule.read(tokens)
        self._last = ()

    def skip(self, tokens: Sequence[int]) -> None:
        self.rule.read(tokens)

    def _draw(self, logits: Tensor, rows: list[Tensor], chances: list[Tensor]) -> int:
        """One token, as a target id; its law goes into `rows` unless the draft is greedy, its probability to `chances`.

        Of a greedy draft that is the raw softmax's at temperature 1; it stays a tensor, so that a GPU need not wait.
        """
        if self._sampling.greedy:
            chances.append(wide(logits).softmax(-1).amax())
            return self._largest(logits)
        rows.append(self._law(logits))
        token = self._stream.draw(rows[-1])
        chances.append(rows[-1][token])
        return token
