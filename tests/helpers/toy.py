"""Models whose next-token law is a lookup on the last token: small enough to enumerate everything they can emit.

They implement what the loop, `Chain` and `LanguageModel` ask of a model, in float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor

from specdec.models.transformer import Output
from specdec.sampling import Sampling, warp

TARGET = ((0.5, 0.3, 0.2), (0.1, 0.6, 0.3), (0.25, 0.25, 0.5))
DRAFT = ((0.2, 0.5, 0.3), (0.4, 0.35, 0.25), (0.6, 0.1, 0.3))


class ToyCache:
    """The tokens themselves stand for keys and values."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.slots: list[int] = []
        self.length = 0

    bytes = 0

    @property
    def tokens(self) -> list[int]:
        return self.slots[: self.length]

    def append(self, tokens: Sequence[int]) -> None:
        assert self.length + len(tokens) <= self.capacity, "the cache is full"
        self.slots[self.length : self.length + len(tokens)] = tokens
        self.length += len(tokens)

    def truncate(self, length: int) -> None:
        assert 0 <= length <= self.length
        self.length = length

    def keep(self, base: int, rows: Sequence[int]) -> None:
        self.slots[base : base + len(rows)] = [self.slots[base + row] for row in rows]
        self.length = base + len(rows)


class ToyModel:
    """`table[t]` is the law after token t, over `head_ids` where its head is cut."""

    def __init__(self, table=TARGET, max_positions: int = 64, head_ids: Sequence[int] | None = None):
        self.table = torch.tensor(table, dtype=torch.float64)
        self.logits = self.table.log()
        self.vocabulary = self.table.shape[1 if head_ids is None else 0]
        self.head_ids = None if head_ids is None else torch.tensor(head_ids)
        self.config = SimpleNamespace(max_positions=max_positions, layers=1)
        self.device = torch.device("cpu")
        self.passes = 0
        self.caches: list[ToyCache] = []

    def new_cache(self, capacity: int) -> ToyCache:
        self.caches.append(ToyCache(capacity))
        return self.caches[-1]

    def forward(self, tokens, cache, *, positions=None, mask=None, plan=None, taps=(), logits=True) -> Output:
        self.passes += 1
        cache.append(list(tokens))
        return Output(self.logits[torch.tensor(list(tokens))] if logits else None, None)

    def law(self, last: int, sampling: Sampling) -> Tensor:
        return warp(self.logits[last], sampling)


class ToyDraft:
    """A `DraftModel` over some of the target's ids: logit column i stands for id `vocabulary[i]`."""

    taps: tuple[int, ...] = ()
    room = 10**6

    def __init__(self, table, vocabulary: Sequence[int] | None = None):
        """`table[t]`: the law over the columns after target id t."""
        self.logits = torch.tensor(table, dtype=torch.float64).log()
        self.vocabulary = None if vocabulary is None else torch.tensor(vocabulary)
        self.steps = 0

    def start(self, prompt, features, context) -> None:
        self._root = prompt[-1]

    def root(self) -> Tensor:
        self.steps += 1
        return self.logits[[self._root]]

    def step(self, tokens, parents) -> Tensor:
        self.steps += 1
        return self.logits[list(tokens)]

    def rollback(self) -> None:
        pass

    def commit(self, tokens, features, scored) -> None:
        self._root = tokens[-1]


def law_of_texts(target: ToyModel, root: int, count: int, sampling: Sampling, eos: frozenset[int] = frozenset()):
    """What the target alone emits: the probability of every text of `count` tokens, cut behind an end of text."""
    law: dict[tuple[int, ...], float] = {}
    for text in itertools.product(range(target.vocabulary), repeat=count):
        probability, last, emitted = 1.0, root, []
        for token in text:
            probability *= float(target.law(last, sampling)[token])
            emitted.append(token)
            last = token
            if token in eos:
                break
        else:
            law[text] = law.get(text, 0.0) + probability
            continue
        key = tuple(emitted)
        if key not in law:
            law[key] = probability
    return {text: value for text, value in law.items() if value > 0}
