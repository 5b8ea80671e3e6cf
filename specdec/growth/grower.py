"""What all growers share: the life of a drafter around a `DraftModel`, and a tree that grows level by level.

A grower says in `grow` which nodes a round has.  `GrowingTree` keeps what every shape needs: the nodes so far, which of
them were fed to the model and under which row, and the choice of the best connected part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdec.models.transformer import Output
from specdec.sampling import largest, warp
from specdec.tree import POINT, ROOT, Draft

if TYPE_CHECKING:  # the drafters' registry imports this room
    from specdec.drafters.base import Budget, Context, DraftModel


class Grower:
    """Base of all growers: subclasses implement `grow`, and `learn` when past rounds matter to them."""

    def __init__(self, model: DraftModel):
        self.model, self.taps = model, model.taps

    def rows(self, depth: int, nodes: int) -> int:
        """Tentative rows that a round of this depth and this many nodes feeds to the model at most."""
        return nodes

    def start(self, prompt: Sequence[int], features: Tensor | None, context: Context) -> None:
        self.open(prompt, context)
        self.model.start(prompt, features, context)

    def open(self, prompt: Sequence[int], context: Context) -> None:
        """A new prompt, as far as the grower itself is concerned; its model is started by whoever owns it."""
        self._sampling, self._stream = context.sampling.for_draft, context.stream
        self._eos, self._vocabulary = context.eos_ids, context.target.vocabulary

    def propose(self, budget: Budget) -> Draft:
        depth = min(budget.depth, self.model.room)
        if min(depth, budget.nodes) <= 0:
            return Draft(stopped="context")
        self._edge = "depth" if depth == budget.depth else "context"
        draft = self.grow(depth, budget.nodes)
        self.model.rollback()
        return draft

    def grow(self, depth: int, nodes: int) -> Draft:
        """A draft of at most `depth` levels and `nodes` nodes, both 1 or more; `_edge` names the bound on depth."""
        raise NotImplementedError

    def commit(self, tokens: Sequence[int], features: Tensor | None, scored: Output) -> None:
        self.learn(tokens)
        self.model.commit(tokens, features, scored)

    def overhear(self, tokens: Sequence[int], features: Tensor | None, scored: Output) -> None:
        """As `commit`, of a round that another drafted."""
        self.skip(tokens)
        self.model.commit(tokens, features, scored)

    def learn(self, tokens: Sequence[int]) -> None:
        """What the round just drafted added to the text, before the model hears of it."""

    def skip(self, tokens: Sequence[int]) -> None:
        """What a round that another drafted added to the text."""

    def _law(self, logits: Tensor) -> Tensor:
        """q [V] over the target's ids from one row of the model's logits [V_d]."""
        q = warp(logits, self._sampling)
        if self.model.vocabulary is None:
            return q
        return q.new_zeros(self._vocabulary).index_copy_(0, self.model.vocabulary, q)

    def _largest(self, logits: Tensor) -> int:
        """The target id of a row's largest logit."""
        column = int(largest(logits))
        return column if self.model.vocabulary is None else int(self.model.vocabulary[column])


class GrowingTree:
    """A round's nodes while they grow.  `scores` are log-confidences of whole paths from the root (0 there)."""

    def __init__(self, model: DraftModel, eos: frozenset[int] = frozenset()):
        self._model, self._eos = model, eos
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.scores: list[float] = []
        self._row_of = {ROOT: ROOT}
        self._fed = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, token: int, parent: int, confidence: float = 0.0) -> int:
        """A new node under `parent`; `confidence` is the log-probability of its own step."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(1 if parent == ROOT else self.depths[parent] + 1)
        self.scores.append(confidence + self.score(parent))
        return len(self.tokens) - 1

    def score(self, node: int) -> float:
        """The log-probability of the path to a node; that to the root is certain."""
        return 0.0 if node == ROOT else self.scores[node]

    def is_open(self, node: int) -> bool:
        """May anything follow?  Nothing behind an end of text could be emitted."""
        return node == ROOT or self.tokens[node] not in self._eos

    def feed(self, nodes: Sequence[int]) -> Tensor:
        """Logits [len(nodes), V_d] after nodes of one level, or after the root, whose row is the model's own.

        Nodes with the same text (repeated draws) are one row of the model.
        """
        if list(nodes) == [ROOT]:
            return self._model.root()
        rows: dict[tuple[int, int], int] = {}
        for node in nodes:
            key = (self._row_of[self.parents[node]], self.tokens[node])
            self._row_of[node] = self._fed + rows.setdefault(key, len(rows))
        first, self._fed = self._fed, self._fed + len(rows)
        logits = self._model.step([token for _, token in rows], [parent for parent, _ in rows])
        if len(rows) == len(nodes):
            return logits
        return logits[[self._row_of[node] - first for node in nodes]]

    def likeliest(self, logits: Tensor, count: int) -> list[list[tuple[int, float]]]:
        """For each row the `count` likeliest tokens, as target ids with their log-probabilities, likeliest first.

        Probabilities are the raw softmax at temperature 1; tokens of probability 0 are left out.
        """
        z = logits if logits.dtype == torch.float64 else logits.float()
        columns = top_columns(z, count)
        confidence = z.log_softmax(-1).gather(-1, columns)
        ids = columns if self._model.vocabulary is None else self._model.vocabulary[columns]
        return [
            [(token, value) for token, value in zip(*row, strict=True) if value > -torch.inf]
            for row in zip(ids.tolist(), confidence.tolist(), strict=True)
        ]

    def order(self, nodes: Sequence[int]) -> list[int]:
        """Nodes from the most confident path on; among equal ones the shallower first, then the older."""
        return sorted(nodes, key=lambda node: (-self.scores[node], self.depths[node], node))

    def best(self, count: int, stopped: str) -> Draft:
        """The `count` most confident nodes as a draft of point law.

        They are connected: no node is more confident than its parent, and of equal ones the parent comes first.
        """
        return self.part(sorted(self.order(range(len(self)))[:count]), stopped)

    def part(self, nodes: Sequence[int], stopped: str, law: str = POINT, q: Tensor | None = None) -> Draft:
        """These nodes, ascending and closed under parents, as a draft."""
        number = {ROOT: ROOT} | {node: i for i, node in enumerate(nodes)}
        tokens, parents = (
            tuple(self.tokens[node] for node in nodes),
            tuple(number[self.parents[node]] for node in nodes),
        )
        confidence = tuple(math.exp(self.scores[node]) for node in nodes)
        return Draft(tokens, parents, law, q, stopped, confidence)


def top_columns(z: Tensor, count: int) -> Tensor:
    """Columns [rows, count] of the largest logits, largest first; of equal ones the lower column first.

    One is `largest` itself, so that a tree of width one is the greedy chain.
    """
    if count == 1:
        return largest(z)[:, None]
    columns = z.topk(min(count, z.shape[-1]), dim=-1).indices.sort(-1).values
    order = z.gather(-1, columns).argsort(dim=-1, descending=True, stable=True)
    return columns.gather(-1, order)
