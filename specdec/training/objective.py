"""What a training is: a recipe, a loss made of terms, and guesses that can be counted.

A loss is a weighted sum of means.  Its terms are kept as sums beside the counts they are to be divided by, so that
several processes, each with a part of a batch, divide by the counts of all parts and together follow the very curve
that one process follows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec.errors import unknown
from specdec.training.corpus import Answers, States

ROWS = 512
"""Positions whose logits over the target's whole vocabulary are held at once."""
CHOICES = 8
"""How many of the target's first choices are always looked at."""
PRECISIONS = ("bfloat16", "float32")
OPTIMISERS = ("muon", "adamw")
LEARNED = ("answers", "everything")


@dataclass(frozen=True)
class Recipe:
    """How a draft is trained.  `learn`: answers alone, or everything, requests as well; `token_passes` counts tokens
    learned from, repeats included; `precision` is the products'; `matrix_rate` is Muon's."""

    token_passes: int
    batch: int = 8
    optimiser: str = "muon"
    peak_rate: float = 2e-3
    matrix_rate: float = 2e-2
    warmup: int = 50
    clip: float = 0.5
    seed: int = 0
    evaluate_every: int = 100_000
    save_seconds: float = 120.0
    precision: str = "bfloat16"
    learn: str = "answers"

    def __post_init__(self):
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)
        if self.optimiser not in OPTIMISERS:
            raise unknown("optimiser", self.optimiser, OPTIMISERS)
        if self.learn not in LEARNED:
            raise unknown("learn", self.learn, LEARNED)

    def autocast(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bfloat16")


@dataclass(frozen=True)
class Term:
    """A part of a loss: `weight` times the mean that is `total` over `count`."""

    total: Tensor
    count: Tensor | int
    weight: float = 1.0


def mean(terms: Sequence[Term], counts: Sequence[Tensor | int] | None = None) -> Tensor:
    """The loss; `counts` are the terms' counts over all parts of a batch, their own where not given."""
    counts = [term.count for term in terms] if counts is None else counts
    return sum(t.weight * t.total / max(1, int(count)) for t, count in zip(terms, counts, strict=True))


class Batch(Protocol):
    """`loss` [B, positions] says where an answer's token is to be predicted."""

    loss: Tensor

    def to(self, device: torch.device) -> Self: ...

    def silent(self) -> Self:
        """The same batch with nothing to predict."""


class Objective(Protocol):
    """One way to train a module."""

    recipe: Recipe

    def collate(self, items: Sequence[States] | Sequence[Answers], depth: int | None = None) -> Batch:
        """Samples side by side; `depth`: how far ahead is to be guessed, None for what the loss needs."""

    def terms(self, module: nn.Module, batch: Batch, seeds: Sequence[int]) -> list[Term]:
        """`seeds`: one for each sample, for a loss that draws."""

    def guesses(self, module: nn.Module, batch: Batch, depth: int) -> list[tuple[Tensor, Tensor]]:
        """For each depth (hits, wanted), bool [B, T]: whether the first choice is the text's token, and where there is
        one to be guessed; position t at depth k guesses k tokens behind what t guesses at depth 0."""

    def identity(self, module: nn.Module) -> dict:
        """What must be the same when a training goes on, beside recipe and text."""


class Teacher:
    """What the target says at given positions, from its last states; `used` [V_d] is the draft vocabulary."""

    def __init__(
        self,
        head: Tensor,
        used: Tensor | None,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
    ):
        """`head` [V, h] is the target's."""
        self.head = head.to(device, dtype)
        self.rows = self.head if used is None else self.head[used.to(device)]
        self.inverse = torch.full((len(head),), -1, dtype=torch.long)
        self.inverse[slice(None) if used is None else used] = torch.arange(len(self.rows))
        self.inverse = self.inverse.to(device)

    @property
    def digest(self) -> str:
        """A hash of the draft vocabulary."""
        return hashlib.sha256(self.inverse.cpu().numpy().tobytes()).hexdigest()[:16]

    @torch.no_grad()
    def log_law(self, states: Tensor, looked: Tensor | None = None) -> Tensor:
        """[positions, V_d]: the log-law over the draft vocabulary alone, behind states [positions, h]; over the tokens
        `looked` of it where given."""
        rows = self.rows if looked is None else self.rows[looked]
        return F.linear(states, rows).float().log_softmax(-1)

    @torch.no_grad()
    def first_choices(self, states: Tensor, count: int) -> Tensor:
        """[positions, count] of the draft vocabulary."""
        parts = [F.linear(part, self.rows).topk(count, dim=-1).indices for part in states.split(ROWS)]
        return torch.cat(parts)

    @torch.no_grad()
    def looked_at(self, states: Tensor, own: Tensor, size: int, seed: int) -> Tensor | None:
        """Which of the draft vocabulary an update compares laws on, None for all: the batch's `own` tokens (-1 where
        one is outside), the target's first choices, and others at random up to `size`.  Of a large vocabulary most
        tokens say nothing at any one place.
        """
        if not 0 < size < len(self.rows):
            return None
        marks = torch.zeros(len(self.rows), dtype=torch.bool, device=states.device)
        marks[own[own >= 0]] = True
        marks[self.first_choices(states, CHOICES).flatten()] = True
        rest = (~marks).nonzero().flatten()
        order = torch.randperm(len(rest), generator=torch.Generator().manual_seed(seed)).to(rest.device)
        marks[rest[order[: max(0, size - int(marks.sum()))]]] = True
        return marks.nonzero().flatten()

    @torch.no_grad()
    def mass(self, states: Tensor) -> Tensor:
        """[positions]: the probability that the target's whole law gives the draft vocabulary."""
        if self.rows is self.head:
            return states.new_ones(len(states), dtype=torch.float32)
        parts = [
            F.linear(part, self.rows).float().logsumexp(-1) - F.linear(part, self.head).float().logsumexp(-1)
            for part in states.split(ROWS)
        ]
        return torch.cat(parts).exp().clamp(max=1.0)


def first_choices(states: Tensor, head: Tensor) -> Tensor:
    """[positions], of the whole vocabulary, from states [positions, h] and a head [V, h]."""
    return torch.cat([F.linear(part.to(head.dtype), head).argmax(-1) for part in states.split(ROWS)])


class _InParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, states: Tensor, rule: Callable[[Tensor, slice], Tensor], rows: int) -> Tensor:
        total, gradients = states.new_zeros((), dtype=torch.float32), [torch.zeros_like(states[:0])]
        for begin in range(0, len(states), rows):
            with torch.enable_grad():
                part = states[begin : begin + rows].detach().requires_grad_()
                value = rule(part, slice(begin, begin + rows))
            gradients += torch.autograd.grad(value, part)
            total += value.detach()
        ctx.save_for_backward(torch.cat(gradients))
        return total

    @staticmethod
    def backward(ctx, upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return upstream * gradient, None, None


def in_parts(states: Tensor, rule: Callable[[Tensor, slice], Tensor], rows: int = ROWS) -> Tensor:
    """The sum of `rule(part, where)` over parts of `states` [positions, h].

    The rule is differentiated to the states alone, part by part while it is computed: of logits over a large vocabulary
    only one part's are ever held.  It must hold no parameters that learn (a frozen head has none).
    """
    return _InParts.apply(states, rule, rows)
