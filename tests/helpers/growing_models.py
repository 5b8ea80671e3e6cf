"""A draft model whose law depends on the whole path, for trees: every node has logits of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.drafters.base import Budget, Context
from specdec.sampling import GREEDY, RandomStream, Sampling
from specdec.tree import ROOT, Draft


class PathModel:
    """Logits after a path are drawn from a generator seeded by it; `paths` lists what was fed, the root first."""

    taps: tuple[int, ...] = ()

    def __init__(self, columns: int = 5, seed: int = 0, vocabulary: Sequence[int] | None = None, room: int = 10**6):
        self.columns, self.seed, self.room = columns, seed, room
        self.vocabulary = None if vocabulary is None else torch.tensor(vocabulary)
        self.rollbacks = 0

    def after(self, path: Sequence[int]) -> Tensor:
        generator = torch.Generator().manual_seed(hash((self.seed, *path)) % 2**40)
        return 1.5 * torch.randn(self.columns, generator=generator, dtype=torch.float64)

    def start(self, prompt, features, context) -> None:
        pass

    def root(self) -> Tensor:
        self.paths: list[tuple[int, ...]] = [()]
        self.widths = [1]
        return self.after(())[None]

    def step(self, tokens, parents) -> Tensor:
        assert len(tokens) == len(parents) > 0
        for token, parent in zip(tokens, parents, strict=True):
            assert ROOT <= parent < len(self.paths) - 1
            self.paths.append((*self.paths[parent + 1], token))
        self.widths.append(len(tokens))
        return torch.stack([self.after(path) for path in self.paths[-len(tokens) :]])

    def rollback(self) -> None:
        self.rollbacks += 1

    def commit(self, tokens, features, scored) -> None:
        pass


class Target:
    """As much of a target as a grower asks for."""

    device = torch.device("cpu")

    def __init__(self, vocabulary: int):
        self.vocabulary = vocabulary


def draft_tree(
    grower,
    depth: int,
    nodes: int,
    sampling: Sampling = GREEDY,
    eos: frozenset[int] = frozenset(),
    stream=None,
    vocabulary: int | None = None,
) -> Draft:
    """What `grower` proposes at the start of a prompt; its nodes and rows are checked against the budget."""
    stream = stream or RandomStream(0, "p", "draft")
    target = Target(vocabulary or grower.model.columns)
    grower.start([0], None, Context(sampling, stream, target, None, eos, 64, grower.rows(depth, nodes)))
    proposal = grower.propose(Budget(depth, nodes))
    assert len(proposal) <= nodes and proposal.depth <= depth
    assert len(grower.model.paths) - 1 <= grower.rows(depth, nodes)
    assert len(set(grower.model.paths)) == len(grower.model.paths), "a text was fed twice"
    assert grower.model.rollbacks
    return proposal


def paths_of(draft: Draft) -> list[tuple[int, ...]]:
    """The text of every node, from the root on."""
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        paths.append((*(paths[parent] if parent != ROOT else ()), token))
    return paths


def log_confidence(model: PathModel, path: Sequence[int]) -> float:
    """The slow reference: the sum of log-probabilities along the path, at temperature 1; ids are columns."""
    return sum(float(model.after(path[:i]).log_softmax(0)[token]) for i, token in enumerate(path))
