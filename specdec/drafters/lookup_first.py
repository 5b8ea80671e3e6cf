"""Prompt lookup where the text's last tokens stood before, a model's guesses where they did not.

A small draft seldom copies: names and rare words out of a prompt surprise it each time, while a lookup has them for
nothing and guesses nothing else.  Taking turns by what was found is the idea of SAM decoding (arXiv 2411.10666), whose
suffix automaton finds the longest match of all; here it is an n-gram's of a length to choose.

Losslessness.  Who drafts is decided by the text alone, and each round's draft is that of a drafter on its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specdec.drafters.base import Budget, Context, DraftModel
from specdec.drafters.ngram import NGram
from specdec.growth.grower import Grower
from specdec.models.transformer import Output
from specdec.tree import Draft


class LookupFirst:
    """`grower` drafts the rounds for which `lookup` finds nothing; both hear the whole text."""

    def __init__(self, lookup: NGram, grower: Grower):
        self.lookup, self.grower, self.taps = lookup, grower, grower.taps

    @property
    def model(self) -> DraftModel:
        """Whose guesses they are, where nothing is found."""
        return self.grower.model

    def rows(self, depth: int, nodes: int) -> int:
        return self.grower.rows(depth, nodes)

    def start(self, prompt: Sequence[int], features: Tensor | None, context: Context) -> None:
        self._copied = False
        self.lookup.start(prompt, features, context)
        self.grower.start(prompt, features, context)

    def propose(self, budget: Budget) -> Draft:
        found = self.lookup.propose(budget)
        self._copied = len(found) > 0
        return found if self._copied else self.grower.propose(budget)

    def commit(self, tokens: Sequence[int], features: Tensor | None, scored: Output) -> None:
        self.lookup.commit(tokens, features, scored)
        hear = self.grower.overhear if self._copied else self.grower.commit
        hear(tokens, features, scored)
        self._copied = False
