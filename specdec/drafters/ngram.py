"""Prompt lookup (Saxena 2023): the continuation of an earlier occurrence of the text's last tokens; needs no model.

"Prompt lookup" names several algorithms that differ in which earlier match they take:

`first`       every n from `max_ngram` down to 1; the leftmost match, even if fewer tokens follow it than were asked for
              (Transformers).
`first_full`  the same, but a match counts only if as many tokens follow it as were asked for (the original code); when
              none has them the round drafts nothing.
`longest`     the longest match with n within [`min_ngram`, `max_ngram`], at its earliest position (vLLM).

The proposal is chosen deterministically: a point law.
"""

from __future__ import annotations

from collections.abc import Sequence

from specdec.drafters.base import Budget, Context
from specdec.errors import UserError, unknown
from specdec.tree import POINT, Draft

RULES = ("first", "first_full", "longest")


class NGram:
    """Looks the text's last n tokens up in the text itself."""

    taps: tuple[int, ...] = ()

    def __init__(self, rule: str = "longest", max_ngram: int = 3, min_ngram: int = 1):
        if rule not in RULES:
            raise unknown("ngram rule", rule, RULES)
        if not 1 <= min_ngram <= max_ngram:
            raise UserError(
                f"ngram: min_ngram = {min_ngram}, max_ngram = {max_ngram}: needs 1 <= min_ngram <= max_ngram"
            )
        self.rule, self.max_ngram = rule, max_ngram
        self.min_ngram = min_ngram if rule == "longest" else 1

    def start(self, prompt: Sequence[int], features, context: Context) -> None:
        self._text: list[int] = []
        self._starts: dict[tuple[int, ...], list[int]] = {}
        self._extend(prompt)

    def propose(self, budget: Budget) -> Draft:
        text = self._text
        for n in range(min(self.max_ngram, len(text) - 1), self.min_ngram - 1, -1):
            for start in self._starts.get(tuple(text[-n:]), ()):
                found = text[start + n : start + n + budget.depth]
                if len(found) == budget.depth or (found and self.rule != "first_full"):
                    return Draft.chain(found, POINT, None, "depth" if len(found) == budget.depth else "end_of_match")
        return Draft(stopped="no_match")

    def commit(self, tokens: Sequence[int], features, scored) -> None:
        self._extend(tokens)

    def _extend(self, tokens: Sequence[int]) -> None:
        """Index every n-gram by where it starts, so that a lookup costs the same however long the text is.

        The n-gram that ends the text indexes itself too; nothing follows it, so it is never proposed.
        """
        for token in tokens:
            self._text.append(token)
            for n in range(1, min(self.max_ngram, len(self._text)) + 1):
                self._starts.setdefault(tuple(self._text[-n:]), []).append(len(self._text) - n)
