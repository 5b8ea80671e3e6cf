"""A draft model that answers from a list, and one proposal of a grower outside the loop."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor

from specdec.drafters.base import Budget, Context
from specdec.sampling import GREEDY, RandomStream, Sampling
from specdec.tree import Draft


class ScriptedModel:
    """Row i of `rows` is the law of the i-th step, whatever was drawn; counts steps and rollbacks."""

    taps: tuple[int, ...] = ()

    def __init__(self, rows: Sequence[Tensor], vocabulary: Tensor | None = None, room: int = 10**6):
        self.rows, self.vocabulary, self.room = list(rows), vocabulary, room
        self.steps = self.rollbacks = 0

    def start(self, prompt, features, context) -> None:
        pass

    def root(self) -> Tensor:
        return self.step([], [])

    def step(self, tokens, parents) -> Tensor:
        self.steps += 1
        return self.rows[self.steps - 1][None]

    def rollback(self) -> None:
        self.rollbacks += 1

    def commit(self, tokens, features, scored) -> None:
        pass


def draft(
    grower,
    *,
    depth: int,
    sampling: Sampling = GREEDY,
    eos: frozenset[int] = frozenset(),
    target_vocabulary: int | None = None,
    fresh: bool = True,
) -> Draft:
    """What `grower` proposes for a budget of `depth`, at the start of a prompt when `fresh`."""
    if fresh:
        columns = len(grower.model.rows[0]) if target_vocabulary is None else target_vocabulary
        target = SimpleNamespace(vocabulary=columns, device=torch.device("cpu"))
        grower.start([0], None, Context(sampling, RandomStream(0, "p", "draft"), target, None, eos, 64))
    return grower.propose(Budget(depth, depth))
