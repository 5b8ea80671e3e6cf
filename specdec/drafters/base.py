"""The two contracts of drafting.

A `Drafter` proposes a whole draft.  A `DraftModel` guesses step by step and is called by a grower, which makes it a
drafter.  Everything committed reaches them through `commit`; a cache of theirs may lag behind the text and catches up
when it is next used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from specdec.models.kvcache import KVCache
from specdec.models.transformer import Output, Transformer
from specdec.sampling import Sampling, Stream
from specdec.tree import Draft


@dataclass(frozen=True)
class Budget:
    """How much may be proposed in this round: levels and nodes."""

    depth: int
    nodes: int


@dataclass(frozen=True)
class Context:
    """What a drafter is given at the start of a prompt: settings, its random stream, and the target with its cache."""

    sampling: Sampling
    stream: Stream
    target: Transformer
    cache: KVCache
    eos_ids: frozenset[int] = frozenset()
    capacity: int = 0
    """Rows that a cache of the text needs, drafted and tentative ones included."""
    rows: int = 0
    """Of these, the tentative rows of one round at most."""


class Drafter(Protocol):
    """Who guesses.

    One that writes more than one tentative row a node into a cache (a tree of which only the best part is proposed)
    says how many in a method `rows(depth, nodes) -> int`, so that caches are made large enough.
    """

    taps: tuple[int, ...]
    """The target's hidden states it wants: indices of Transformers' `hidden_states`."""

    def start(self, prompt: Sequence[int], features: Tensor | None, context: Context) -> None:
        """A new prompt.  `features` [len(prompt) - 1, taps * hidden]: row i predicted prompt[i + 1]."""

    def propose(self, budget: Budget) -> Draft: ...

    def commit(self, tokens: Sequence[int], features: Tensor | None, scored: Output) -> None:
        """These tokens are now part of the text; row i of `features` predicted tokens[i].

        `scored` holds every row of the last target pass, rejected ones too.
        """


def tentative_rows(drafter: Drafter, depth: int, nodes: int) -> int:
    """Rows a round of `drafter` writes into a cache at most, behind the root: one a node unless it says otherwise."""
    rows = getattr(drafter, "rows", None)
    return nodes if rows is None else max(nodes, rows(depth, nodes))


class DraftModel(Protocol):
    """Who guesses one level at a time.

    One that runs the target's own first layers may have an attribute `early` (`specdec.tree.Early`): what they left of
    this round's rows, as far as these are a chain.
    """

    taps: tuple[int, ...]
    vocabulary: Tensor | None
    """[V_d] the target id of each logit column, None when they are the target's own."""

    @property
    def room(self) -> int:
        """How many tokens its context still allows it to draft."""

    def start(self, prompt: Sequence[int], features: Tensor | None, context: Context) -> None: ...

    def root(self) -> Tensor:
        """Catch up with what was committed; logits [1, V_d] after the root."""

    def step(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        """One level deeper: logits [w, V_d].

        Parents are rows in feeding order within the round, -1 the root.
        """

    def rollback(self) -> None:
        """Drop what was tentative."""

    def commit(self, tokens: Sequence[int], features: Tensor | None, scored: Output) -> None: ...


class Nothing:
    """Proposes nothing: with it the loop is autoregressive decoding."""

    taps: tuple[int, ...] = ()

    def start(self, prompt, features, context) -> None:
        pass

    def propose(self, budget: Budget) -> Draft:
        return Draft()

    def commit(self, tokens, features, scored) -> None:
        pass
