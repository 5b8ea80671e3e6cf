"""Drafters for tests: one that knows the target's own text and lies where it is told to, and hostile ones."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from specdec.tree import Draft


class Scripted:
    """Base: follows the text, proposes what `guess(budget)` says, remembers the budgets it was given."""

    taps: tuple[int, ...] = ()

    def start(self, prompt, features, context) -> None:
        self.context, self.prompt, self.emitted = context, list(prompt), []
        self.budgets = []

    def propose(self, budget) -> Draft:
        self.budgets.append(budget)
        return self.guess(budget)

    def guess(self, budget) -> Draft:
        raise NotImplementedError

    def commit(self, tokens, features, scored) -> None:
        self.emitted += tokens


class Oracle(Scripted):
    """Replays `answer`, the target's own tokens; at the indices in `lies` it says another token."""

    def __init__(self, answer: Sequence[int], lies: Collection[int] = (), vocabulary: int = 97):
        self.answer, self.lies, self.vocabulary = list(answer), set(lies), vocabulary

    def says(self, index: int) -> int:
        told = self.answer[index]
        return (told + 1) % self.vocabulary if index in self.lies else told

    def guess(self, budget) -> Draft:
        at = len(self.emitted)
        end = min(len(self.answer), at + budget.depth)
        return Draft.chain([self.says(i) for i in range(at, end)], stopped="depth")


class RandomTokens(Scripted):
    """Any tokens at all."""

    def __init__(self, vocabulary: int = 97, seed: int = 0):
        self.vocabulary, self.random = vocabulary, random.Random(seed)

    def guess(self, budget) -> Draft:
        return Draft.chain([self.random.randrange(self.vocabulary) for _ in range(budget.depth)])


class AlwaysEos(Scripted):
    """Proposes the end of the text, as often as it may."""

    def __init__(self, eos: int = 2):
        self.eos = eos

    def guess(self, budget) -> Draft:
        return Draft.chain([self.eos] * budget.depth)


class Empty(Scripted):
    """Proposes nothing, though it may."""

    def guess(self, budget) -> Draft:
        return Draft(stopped="no_match")


class Decoys(Oracle):
    """A tree: the true text goes down one branch, decoys and their children stand before and after it.

    Node order puts the true path at indices that are not contiguous, within the budget's nodes.
    """

    def guess(self, budget) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []

        def add(token: int, parent: int) -> int:
            tokens.append(token % self.vocabulary)
            parents.append(parent)
            return len(tokens) - 1

        parent, at = -1, len(self.emitted)
        for depth in range(budget.depth):
            if at + depth >= len(self.answer) or len(tokens) >= budget.nodes:
                break
            truth = self.says(at + depth)
            if len(tokens) + 2 <= budget.nodes:
                decoy = add(truth + 7, parent)
                if depth + 2 <= budget.depth and len(tokens) + 2 <= budget.nodes:
                    add(truth + 11, decoy)
            parent = add(truth, parent)
        return Draft(tuple(tokens), tuple(parents), stopped="depth")


class TooDeep(Scripted):
    """Drafts one level more than it was allowed."""

    def guess(self, budget) -> Draft:
        return Draft.chain([5] * (budget.depth + 1))
