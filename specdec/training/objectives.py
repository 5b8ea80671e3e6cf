"""What a head is trained for, and how well it guesses.

EAGLE-3 (arXiv 2503.01840): in every self-fed step the cross-entropy to the target's law restricted to the draft
vocabulary, the step k weighted by decay^k; no regression on states.  EAGLE-1 (arXiv 2401.15077): regression on the
target's next state and, with a small weight, the cross-entropy of the target's head on both states.

Both are means over the positions whose predicted token is an answer's.  EAGLE-3 further leaves out those whose token is
not in the draft vocabulary: in greedy text that is the target's first choice, as published; in sampled text it is kept
with the probability that the target's law gives the draft vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from specdec.training.eagle import Batch, EagleModule

ROWS = 512
"""Positions whose logits over the target's whole vocabulary are held at once."""


@dataclass(frozen=True)
class Recipe:
    """How a head is trained.  `token_passes` counts answer tokens, repeats included.

    `prompt`: tokens kept before a conversation's first answer.
    """

    token_passes: int
    prompt: int = 64
    batch: int = 8
    peak_rate: float = 1e-3
    warmup: int = 50
    clip: float = 0.5
    seed: int = 0
    evaluate_every: int = 100_000
    save_seconds: float = 120.0
    precision: str = "bfloat16"

    def autocast(self) -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bfloat16")


@dataclass(frozen=True)
class Eagle3Recipe(Recipe):
    """`acceptance` is the weight of 1 - sum min(p, q) in the loss, p over the whole vocabulary (arXiv 2602.23881)."""

    steps: int = 4
    decay: float = 0.8
    acceptance: float = 0.0


@dataclass(frozen=True)
class Eagle1Recipe(Recipe):
    """`noise`: the states fed are moved by as much as this, uniformly."""

    peak_rate: float = 3e-4
    feature_weight: float = 1.0
    token_weight: float = 0.1
    noise: float = 0.1


class Teacher:
    """What the target says at given positions, from its last states; `used` [V_d] is the draft vocabulary."""

    def __init__(self, head: Tensor, used: Tensor | None, dtype: torch.dtype = torch.bfloat16):
        """`head` [V, h] is the target's."""
        self._head = head.to(dtype)
        self._rows = self._head if used is None else self._head[used]
        self.inverse = torch.full((len(head),), -1, dtype=torch.long)
        self.inverse[slice(None) if used is None else used] = torch.arange(len(self._rows))

    @property
    def digest(self) -> str:
        """A hash of the draft vocabulary."""
        return hashlib.sha256(self.inverse.numpy().tobytes()).hexdigest()[:16]

    @torch.no_grad()
    def log_law(self, states: Tensor) -> Tensor:
        """[positions, V_d]: the log-law over the draft vocabulary alone, behind states [positions, h]."""
        return F.linear(states, self._rows).float().log_softmax(-1)

    @torch.no_grad()
    def mass(self, states: Tensor) -> Tensor:
        """[positions]: the probability that the target's whole law gives the draft vocabulary."""
        parts = [
            F.linear(part, self._rows).float().logsumexp(-1) - F.linear(part, self._head).float().logsumexp(-1)
            for part in states.split(ROWS)
        ]
        return torch.cat(parts).exp().clamp(max=1.0)


class Eagle3Loss:
    """The loss of training-time test."""

    def __init__(self, recipe: Eagle3Recipe, teacher: Teacher):
        self.recipe, self.teacher, self.steps = recipe, teacher, recipe.steps

    def __call__(self, module: EagleModule, batch: Batch, random: torch.Generator) -> Tensor:
        return sum(self.recipe.decay**k * loss for k, loss in enumerate(self.by_step(module, batch)))

    def by_step(self, module: EagleModule, batch: Batch) -> list[Tensor]:
        """Each step's mean over its positions."""
        share, layer, length = self.recipe.acceptance, module.layer(), batch.length
        states = batch.last[batch.loss]
        law, mass = self.teacher.log_law(states), self.teacher.mass(states) if share else None
        number = torch.full(batch.loss.shape, -1, dtype=torch.long)
        number[batch.loss] = torch.arange(len(law))
        losses = []
        for k, hidden in enumerate(module.unroll(batch, self.steps)):
            wanted = batch.loss[:, k : k + length]
            inside = self.teacher.inverse[batch.tokens[:, k + 1 : k + 1 + length][wanted]] >= 0
            rows = number[:, k : k + length][wanted]
            log_q = layer.logits(hidden[wanted]).float().log_softmax(-1)
            p = law[rows].exp()
            each = -(p * log_q).sum(-1)
            if share:
                overlap = torch.minimum(p * mass[rows, None], log_q.exp()).sum(-1)
                each = (1 - share) * each + share * (1 - overlap)
            losses.append((each * inside).sum() / inside.sum().clamp(min=1))
        return losses


class Eagle1Loss:
    """Smooth L1 to the target's next state, and cross-entropy under the target's own, frozen head."""

    steps = 1

    def __init__(self, recipe: Eagle1Recipe, teacher: Teacher):
        self.recipe, self.teacher = recipe, teacher

    def __call__(self, module: EagleModule, batch: Batch, random: torch.Generator) -> Tensor:
        features, recipe = batch.features.float(), self.recipe
        noise = (2 * torch.rand(features.shape, generator=random) - 1) * recipe.noise
        hidden = next(module.unroll(replace(batch, features=features + noise), 1))
        wanted = batch.loss[:, : batch.length]
        guess, truth = hidden[wanted], batch.last[:, : batch.length][wanted]
        layer = module.layer()

        def entropy(states: Tensor, true: Tensor) -> Tensor:
            return -(self.teacher.log_law(true).exp() * layer.logits(states).float().log_softmax(-1)).sum()

        parts = zip(guess.split(ROWS), truth.split(ROWS), strict=True)
        tokens = sum(checkpoint(entropy, states, true, use_reentrant=False) for states, true in parts) / len(guess)
        return recipe.feature_weight * F.smooth_l1_loss(guess, truth.float()) + recipe.token_weight * tokens


@torch.no_grad()
def guesses(module: EagleModule, batch: Batch, teacher: Teacher, depth: int) -> Iterator[tuple[Tensor, Tensor]]:
    """For each self-fed step (hits, wanted), bool [B, T]: whether the first choice is the text's token, and where there
    is one to be guessed."""
    layer, length = module.layer(), batch.length
    for k, hidden in enumerate(module.unroll(batch, depth)):
        wanted = batch.loss[:, k : k + length]
        label = teacher.inverse[batch.tokens[:, k + 1 : k + 1 + length][wanted]]
        choice = [layer.logits(rows).argmax(-1) for rows in hidden[wanted].split(ROWS)]
        hits = torch.zeros(wanted.shape, dtype=torch.bool)
        hits[wanted] = torch.cat(choice) == label
        yield hits, wanted
