"""What an EAGLE head is trained for, and how well it guesses.

EAGLE-3 (arXiv 2503.01840): in every self-fed step the cross-entropy to the target's law restricted to the draft
vocabulary, the step k weighted by decay^k; no regression on states.  EAGLE-1 (arXiv 2401.15077): regression on the
target's next state and, with a small weight, the cross-entropy of the target's head on both states.

Both are means over the positions whose predicted token is an answer's.  EAGLE-3 further leaves out those whose token is
not in the draft vocabulary: in greedy text that is the target's first choice, as published; in sampled text it is kept
with the probability that the target's law gives the draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.errors import UserError, unknown
from specdec.training.corpus import States
from specdec.training.eagle import Batch, EagleModule, collate
from specdec.training.objective import ROWS, Recipe, Teacher, Term, in_parts

STARTS = ("last_layer", "random")
HEADS = ("own", "target")


@dataclass(frozen=True)
class EagleRecipe(Recipe):
    """`prompt`: tokens kept before a conversation's first answer.

    `start`: the weights a head begins with, the target's last layer, random ones or those of a head in a folder.
    """

    prompt: int = 64
    start: str = "last_layer"

    def __post_init__(self):
        super().__post_init__()
        if self.start not in STARTS and not Path(self.start, "config.json").is_file():
            raise unknown("start", self.start, (*STARTS, "a folder that holds a head"))


@dataclass(frozen=True)
class Eagle3Recipe(EagleRecipe):
    """`steps` 1 is training without training-time test.

    `head`: whose rows decide over the draft vocabulary; `sampled`: how many tokens of it an update's loss looks at, 0
    for all; `acceptance` is the weight of 1 - sum min(p, q) in the loss, p over the whole vocabulary (arXiv
    2602.23881).
    """

    head: str = "own"
    steps: int = 4
    decay: float = 0.8
    sampled: int = 0
    acceptance: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        if self.steps < 1:
            raise UserError(f"steps = {self.steps}: must be 1 or more")
        if self.head not in HEADS:
            raise unknown("head", self.head, HEADS)
        if self.sampled and self.acceptance:
            raise UserError(f"sampled = {self.sampled}: the acceptance loss needs the whole law, so 0 is allowed alone")


@dataclass(frozen=True)
class Eagle1Recipe(EagleRecipe):
    """`noise`: the states fed are moved by as much as this, uniformly.

    It begins with random weights: its layer has no norm in front, so that weights of the target's last layer, which has
    one, would begin with states many times too long.
    """

    start: str = "random"
    feature_weight: float = 1.0
    token_weight: float = 0.1
    noise: float = 0.1


class EagleObjective:
    """What the two have in common."""

    steps: int

    def __init__(self, recipe: EagleRecipe, teacher: Teacher):
        self.recipe, self.teacher = recipe, teacher

    def collate(self, items: Sequence[States], depth: int | None = None) -> Batch:
        return collate(items, depth or self.steps)

    def identity(self, module: EagleModule) -> dict:
        return {"head": module.config.as_dict(), "draft_vocabulary": self.teacher.digest}

    @torch.no_grad()
    def guesses(self, module: EagleModule, batch: Batch, depth: int) -> list[tuple[Tensor, Tensor]]:
        """Each depth is one self-fed step."""
        layer, found = module.layer(), []
        for k, hidden in enumerate(module.unroll(batch, depth)):
            seen = slice(k + batch.first, k + batch.length)
            wanted, tokens = batch.loss[:, seen], batch.tokens[:, 1:][:, seen]
            label = self.teacher.inverse[tokens[wanted]]
            choice = [layer.logits(rows).argmax(-1) for rows in hidden[wanted].split(ROWS)]
            hits = torch.zeros_like(wanted)
            hits[wanted] = torch.cat(choice) == label
            found.append((hits, wanted))
        return found


class Eagle3Loss(EagleObjective):
    """The loss of training-time test."""

    def __init__(self, recipe: Eagle3Recipe, teacher: Teacher):
        super().__init__(recipe, teacher)
        self.steps = recipe.steps

    def terms(self, module: EagleModule, batch: Batch, seeds: Sequence[int]) -> list[Term]:
        """One a step."""
        share, layer = self.recipe.acceptance, module.layer()
        states = batch.last[batch.loss]
        own = self.teacher.inverse[batch.tokens[:, 1:][batch.loss]]
        looked = self.teacher.looked_at(states, own, self.recipe.sampled, seeds[0])
        law = self.teacher.log_law(states, looked)
        mass = self.teacher.mass(states) if share else None
        head = module.head if looked is None else module.head[looked]
        number = torch.full(batch.loss.shape, -1, dtype=torch.long, device=law.device)
        number[batch.loss] = torch.arange(len(law), device=law.device)
        terms = []
        for k, hidden in enumerate(module.unroll(batch, self.steps)):
            seen = slice(k + batch.first, k + batch.length)
            wanted, tokens = batch.loss[:, seen], batch.tokens[:, 1:][:, seen]
            inside = self.teacher.inverse[tokens[wanted]] >= 0
            rows = number[:, seen][wanted]
            log_q = F.linear(layer.ready(hidden[wanted]), head).float().log_softmax(-1)
            p = law[rows].exp()
            each = -(p * log_q).sum(-1)
            if share:
                overlap = torch.minimum(p * mass[rows, None], log_q.exp()).sum(-1)
                each = (1 - share) * each + share * (1 - overlap)
            terms.append(Term((each * inside).sum(), inside.sum(), self.recipe.decay**k))
        return terms


class Eagle1Loss(EagleObjective):
    """Smooth L1 to the target's next state, and cross-entropy under the target's own, frozen head."""

    steps = 1

    def terms(self, module: EagleModule, batch: Batch, seeds: Sequence[int]) -> list[Term]:
        recipe, layer = self.recipe, module.layer()
        hidden = next(module.unroll(self._moved(batch, seeds), 1))
        seen = slice(batch.first, batch.length)
        wanted = batch.loss[:, seen]
        guess, truth = hidden[wanted], batch.last[:, seen][wanted]

        def entropy(states: Tensor, where: slice) -> Tensor:
            law = self.teacher.log_law(truth[where]).exp()
            return -(law * layer.logits(states).float().log_softmax(-1)).sum()

        regression = F.smooth_l1_loss(guess, truth.float(), reduction="sum")
        return [
            Term(regression, guess.numel(), recipe.feature_weight),
            Term(in_parts(guess, entropy), len(guess), recipe.token_weight),
        ]

    def _moved(self, batch: Batch, seeds: Sequence[int]) -> Batch:
        """Each sample's states with noise of its own, whatever stands beside it."""
        if not self.recipe.noise:
            return batch
        shape, rows = batch.features.shape[1:], []
        for seed in seeds:
            generator = torch.Generator().manual_seed(seed)
            rows.append((2 * torch.rand(shape, generator=generator) - 1) * self.recipe.noise)
        return replace(batch, features=batch.features.float() + torch.stack(rows).to(batch.features.device))
