"""A small language model distilled from the target: how its law comes close to the target's.

Sources: DistillSpec (arXiv 2310.08461) for the divergences, arXiv 2602.23881 for the loss that follows acceptance.

A drafted token is accepted with probability alpha = sum min(p, q).  `total_variation` is 1 - alpha itself, whose
gradient is weak where the two laws hardly meet; `forward_kl` and `reverse_kl` have the same optimum and differ for a
draft too small to reach it; `acceptance` goes from the one to the other as alpha grows; `one_hot` sees the target's
token alone.

Over a frequent-token vocabulary the losses compare laws on it alone (p's mass outside counts as lost in alpha), on
positions whose token it holds: a head product over a sixth of the vocabulary costs a sixth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.errors import UserError, unknown
from specdec.training.corpus import Answers
from specdec.training.objective import Recipe, Teacher, Term, first_choices, in_parts
from specdec.training.small import SmallModel

ETA = 3.0
"""How fast `acceptance` leaves the divergence for alpha: its weight is exp(-ETA alpha)."""


@dataclass
class Laws:
    """At some positions, over the vocabulary of the loss: log q [n, V_d], the text's token [n], and what the target
    says behind its `states` [n, h], computed where a loss asks for it.  `looked`: the tokens of the vocabulary that are
    looked at, where not all are."""

    log_q: Tensor
    label: Tensor
    teacher: Teacher
    states: Tensor
    looked: Tensor | None = None

    @cached_property
    def log_p(self) -> Tensor:
        """[n, V_d]"""
        return self.teacher.log_law(self.states, self.looked)

    @cached_property
    def mass(self) -> Tensor:
        """[n]: p's on that vocabulary."""
        return self.teacher.mass(self.states)

    @property
    def lost(self) -> Tensor:
        """[n]: 1 - alpha."""
        return 1 - torch.minimum(self.log_p.exp() * self.mass[:, None], self.log_q.exp()).sum(-1)


def forward_kl(laws: Laws) -> Tensor:
    return _divergence(laws.log_p, laws.log_q)


def reverse_kl(laws: Laws) -> Tensor:
    return _divergence(laws.log_q, laws.log_p)


def total_variation(laws: Laws) -> Tensor:
    return laws.lost


def one_hot(laws: Laws) -> Tensor:
    return -laws.log_q.gather(-1, laws.label[:, None])[:, 0]


def acceptance(laws: Laws) -> Tensor:
    lost = laws.lost
    weight = torch.exp(-ETA * (1 - lost.detach()))
    return weight * forward_kl(laws) + (1 - weight) * lost


def _divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    return (log_p.exp() * (log_p - log_q)).sum(-1)


LOSSES: dict[str, Callable[[Laws], Tensor]] = {
    rule.__name__: rule for rule in (forward_kl, reverse_kl, total_variation, one_hot, acceptance)
}

WHOLE = ("total_variation", "acceptance")
"""Losses that count p's mass outside the vocabulary as lost."""

TARGET = "target"
"""Whose weights a draft begins with where it goes on from no other."""


@dataclass(frozen=True)
class DistillRecipe(Recipe):
    """`layers`: which of the target's the draft is cut from; `start`: whether with their weights or those of a draft in
    a folder; `loss`: one of `LOSSES`; `sampled`: how many tokens of the loss's vocabulary an update looks at, 0 for
    all."""

    layers: tuple[int, ...] = ()
    start: str = TARGET
    loss: str = "forward_kl"
    sampled: int = 0

    def __post_init__(self):
        super().__post_init__()
        if self.start != TARGET and not Path(self.start, "config.json").is_file():
            raise unknown("start", self.start, (TARGET, "a folder that holds a draft"))
        if self.loss not in LOSSES:
            raise unknown("loss", self.loss, LOSSES)
        if self.sampled and self.loss in WHOLE:
            raise UserError(f"sampled = {self.sampled}: must be 0, since the loss {self.loss} needs the whole law")


@dataclass(frozen=True)
class Batch:
    """tokens [B, T + 1] padded on the right; loss [B, T]: is tokens[:, t + 1] to be predicted; last [n, h]: the
    target's states there, row by row."""

    tokens: Tensor
    loss: Tensor
    last: Tensor

    def to(self, device: torch.device) -> Batch:
        return Batch(*(getattr(self, field.name).to(device) for field in fields(self)))

    def silent(self) -> Batch:
        return replace(self, loss=torch.zeros_like(self.loss), last=self.last[:0])


def collate_answers(items: Sequence[Answers]) -> Batch:
    """Texts side by side."""
    longest = max(item.length for item in items)
    tokens = torch.zeros(len(items), longest + 1, dtype=torch.long)
    loss = torch.zeros(len(items), longest, dtype=torch.bool)
    for i, item in enumerate(items):
        tokens[i, : item.length + 1] = item.ids
        loss[i, : item.length] = item.loss
    return Batch(tokens, loss, torch.cat([item.last for item in items]))


class Distillation:
    """The draft's head is the target's, which the teacher holds."""

    def __init__(self, recipe: DistillRecipe, teacher: Teacher):
        self.recipe, self.teacher, self._rule = recipe, teacher, LOSSES[recipe.loss]

    def collate(self, items: Sequence[Answers], depth: int | None = None) -> Batch:
        return collate_answers(items)

    def terms(self, module: SmallModel, batch: Batch, seeds: Sequence[int]) -> list[Term]:
        label = self.teacher.inverse[batch.tokens[:, 1:][batch.loss]]
        inside = label >= 0
        hidden = module(batch.tokens[:, :-1])[batch.loss][inside]
        last, label, rows = batch.last[inside], label[inside], self.teacher.rows
        looked = self.teacher.looked_at(last, label, self.recipe.sampled, seeds[0])
        if looked is not None:
            rows, label = rows[looked], torch.searchsorted(looked, label)

        def rule(states: Tensor, where: slice) -> Tensor:
            log_q = F.linear(states.to(rows.dtype), rows).float().log_softmax(-1)
            return self._rule(Laws(log_q, label[where], self.teacher, last[where], looked)).sum()

        return [Term(in_parts(hidden, rule), len(hidden))]

    @torch.no_grad()
    def guesses(self, module: SmallModel, batch: Batch, depth: int) -> list[tuple[Tensor, Tensor]]:
        """By the whole vocabulary.  While all before it was accepted, a guess k tokens deep is what the model says
        behind the text itself: one pass holds every depth."""
        states, label = module(batch.tokens[:, :-1])[batch.loss], batch.tokens[:, 1:][batch.loss]
        hits = torch.zeros_like(batch.loss)
        hits[batch.loss] = first_choices(states, self.teacher.head) == label
        return [(later(hits, k), later(batch.loss, k)) for k in range(depth)]

    def identity(self, module: SmallModel) -> dict:
        return {"model": str(module.config), "vocabulary": self.teacher.digest}


def later(marks: Tensor, k: int) -> Tensor:
    """[B, T] moved left by k, false where the text ends."""
    return F.pad(marks[:, k:], (0, k)) if k else marks
