"""Coarse then fine: two growers take turns over one draft model.

For example a wide, shallow tree after which a long chain follows up.  Rounds, not nodes, are divided: `coarse_rounds`
rounds of the one, then `fine_rounds` of the other, from the start of each prompt.

Losslessness.  Who drafts is decided by counting rounds, and each round's draft is that of a grower on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specdec.errors import UserError
from specdec.growth.grower import Grower
from specdec.tree import Draft

if TYPE_CHECKING:
    from specdec.drafters.base import Budget, Context


class CoarseFine(Grower):
    """Two growers over the same model."""

    def __init__(self, coarse: Grower, fine: Grower, coarse_rounds: int = 1, fine_rounds: int = 1):
        if coarse.model is not fine.model:
            raise UserError("coarse_fine: the two growers must share one draft model")
        for name, value in (("coarse_rounds", coarse_rounds), ("fine_rounds", fine_rounds)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"coarse_fine: {name} = {value!r}: must be an integer of 1 or more")
        super().__init__(coarse.model)
        self.coarse, self.fine = coarse, fine
        self.coarse_rounds, self.fine_rounds = coarse_rounds, fine_rounds

    def rows(self, depth: int, nodes: int) -> int:
        return max(self.coarse.rows(depth, nodes), self.fine.rows(depth, nodes))

    def open(self, prompt: Sequence[int], context: Context) -> None:
        self._round, self._drafted = 0, None
        self.coarse.open(prompt, context)
        self.fine.open(prompt, context)

    def propose(self, budget: Budget) -> Draft:
        turn = self._round % (self.coarse_rounds + self.fine_rounds)
        self._drafted = self.coarse if turn < self.coarse_rounds else self.fine
        return self._drafted.propose(budget)

    def learn(self, tokens: Sequence[int]) -> None:
        """Both hear the text; what became of the draft concerns its own grower."""
        self._round += 1
        for grower in (self.coarse, self.fine):
            if grower is self._drafted:
                grower.learn(tokens)
            else:
                grower.skip(tokens)
        self._drafted = None
