"""The training loop: deterministic, resumable at any moment, with what it learned measured on held-out text.

The quality that counts is tokens per round.  It is simulated on held-out conversations: from every position the head
drafts K tokens against the text that the target wrote; a token is accepted while all before it were.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from specdec.errors import UserError
from specdec.training.corpus import Corpus
from specdec.training.eagle import Batch, EagleModule, collate
from specdec.training.objectives import Eagle1Loss, Eagle3Loss, Recipe, Teacher, guesses

DEPTH = 4
"""K of the simulated tokens per round."""
FREE = ("evaluate_every", "save_seconds")
"""What may change when a training goes on."""


@dataclass
class Progress:
    """Where a training stands."""

    passes: int = 0
    updates: int = 0
    epoch: int = 0
    in_epoch: int = 0
    seconds: float = 0.0
    best: float = 0.0
    loss: float = 0.0
    """Summed since the last evaluation, over `losses` updates."""
    losses: int = 0
    history: list[dict] = field(default_factory=list)


class Trainer:
    """Trains `module` on `corpus`; everything it needs to go on lies in `folder`."""

    def __init__(
        self,
        module: EagleModule,
        objective: Eagle3Loss | Eagle1Loss,
        corpus: Corpus,
        held_out: Corpus,
        folder: Path,
    ):
        self.module, self.objective, self.corpus, self.held_out = module, objective, corpus, held_out
        self.recipe: Recipe = objective.recipe
        self.folder, self.progress = folder, Progress()
        self.optimiser = torch.optim.AdamW(
            module.parameters(), lr=self.recipe.peak_rate, betas=(0.9, 0.95), weight_decay=0.0
        )
        self._saved = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        self._resume()

    def run(self, report: Callable[[Progress], None] = lambda progress: None) -> Progress:
        """Train to the end of the recipe; `report` is called after every update."""
        p, recipe = self.progress, self.recipe
        begin, before = time.monotonic(), p.seconds
        while p.passes < recipe.token_passes:
            batches = list(self.corpus.batches(recipe.batch, recipe.seed, p.epoch))
            for indices in batches[p.in_epoch :]:
                due = p.passes - p.passes % recipe.evaluate_every + recipe.evaluate_every
                batch = collate([self.corpus.states(i) for i in indices], self.objective.steps)
                p.loss += self._update(batch, indices)
                p.losses += 1
                p.in_epoch += 1
                p.passes += int(batch.loss.sum())
                p.seconds = before + time.monotonic() - begin
                finished = p.passes >= recipe.token_passes
                if p.passes >= due or finished:
                    self._evaluate()
                elif time.monotonic() - self._saved > recipe.save_seconds:
                    self.save()
                report(p)
                if finished:
                    break
            else:
                p.epoch, p.in_epoch = p.epoch + 1, 0
        self.save()
        return p

    def finish(self) -> dict:
        """Take the best weights, rounded as they are stored, and measure them once more."""
        self.module.load_state_dict(torch.load(self.folder / "best.pt", weights_only=True))
        self.module.round_off()
        return simulate(self.module, self.objective.teacher, self.held_out, self.recipe)

    def _rate(self) -> float:
        p, recipe = self.progress, self.recipe
        warm = min(1.0, (p.updates + 1) / max(1, recipe.warmup))
        return recipe.peak_rate * warm * max(0.02, 0.5 * (1 + math.cos(math.pi * p.passes / recipe.token_passes)))

    def _update(self, batch: Batch, indices: list[int]) -> float:
        recipe, names = self.recipe, [self.corpus.samples[i].index for i in indices]
        for name, kept in zip(names, batch.loss.any(-1).tolist(), strict=True):
            if not kept:
                raise UserError(f"conversation {name} has no answer token (its loss mask is all zero)")
        for group in self.optimiser.param_groups:
            group["lr"] = self._rate()
        self.optimiser.zero_grad(set_to_none=True)
        random = torch.Generator().manual_seed((recipe.seed << 32) + self.progress.updates)
        with recipe.autocast():
            loss = self.objective(self.module, batch, random)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise UserError(f"the loss is {value} at update {self.progress.updates}, conversations {names}")
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), recipe.clip)
        if not torch.isfinite(norm):
            raise UserError(f"a gradient is {float(norm)} at update {self.progress.updates}, conversations {names}")
        self.optimiser.step()
        self.progress.updates += 1
        return value

    def _evaluate(self) -> None:
        p = self.progress
        found = simulate(self.module, self.objective.teacher, self.held_out, self.recipe)
        mean = p.loss / max(1, p.losses)
        if mean == 0:
            raise UserError(f"the loss was 0 in each of the last {p.losses} updates: nothing is being learned")
        p.history.append(
            {"passes": p.passes, "updates": p.updates, "seconds": round(p.seconds, 1), "loss": mean, **found}
        )
        p.loss, p.losses = 0.0, 0
        if found["tokens_per_round"] > p.best:
            p.best = found["tokens_per_round"]
            _save(self.folder / "best.pt", self.module.state_dict())
        self.save()

    def identity(self) -> dict:
        """What must be the same when a training goes on: recipe, shape of the head, draft vocabulary, text."""
        recipe = {key: value for key, value in asdict(self.recipe).items() if key not in FREE}
        return recipe | {
            "head": self.module.config.as_dict(),
            "draft_vocabulary": self.objective.teacher.digest,
            "text": self.corpus.digest,
            "held_out": self.held_out.digest,
        }

    def save(self) -> None:
        state = {
            "module": self.module.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "progress": asdict(self.progress),
            "identity": json.dumps(self.identity()),
        }
        _save(self.folder / "state.pt", state)
        self._saved = time.monotonic()

    def _resume(self) -> None:
        path = self.folder / "state.pt"
        if not path.is_file():
            return
        state = torch.load(path, weights_only=True)
        ours, theirs = json.loads(json.dumps(self.identity())), json.loads(state["identity"])
        for key in ours:
            if ours[key] != theirs.get(key):
                raise UserError(
                    f"{path}: that training has {key} = {theirs.get(key)}, not {ours[key]}; take another folder"
                )
        self.module.load_state_dict(state["module"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.progress = Progress(**state["progress"])


@torch.no_grad()
def simulate(
    module: EagleModule, teacher: Teacher, corpus: Corpus, recipe: Recipe, depth: int = DEPTH, batch: int = 16
) -> dict:
    """Tokens per round with `depth` drafts, and acceptance by position given that all before was accepted.

    Every position of `corpus` from which `depth` answer tokens follow is the root of one round.
    """
    accepted = torch.zeros(depth)
    reached = torch.zeros(depth)
    starts = 0
    for begin in range(0, len(corpus), batch):
        data = collate([corpus.states(i) for i in range(begin, min(len(corpus), begin + batch))], depth)
        with recipe.autocast():
            results = list(guesses(module, data, teacher, depth))
        alive = torch.stack([wanted for _, wanted in results]).all(0)
        starts += int(alive.sum())
        for k, (hits, _) in enumerate(results):
            reached[k] += alive.sum()
            alive = alive & hits
            accepted[k] += alive.sum()
    if not starts:
        raise UserError(f"no held-out answer is longer than {depth} tokens: nothing can be measured")
    conditional = (accepted / reached.clamp(min=1)).tolist()
    return {
        "tokens_per_round": 1 + float(accepted.sum()) / starts,
        **{f"acceptance_at_{k + 1}": value for k, value in enumerate(conditional)},
    }


def _save(path: Path, value: dict | Tensor) -> None:
    temporary = path.with_suffix(".part")
    torch.save(value, temporary)
    os.replace(temporary, path)
