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
from specdec.training.eagle import Batch, EagleModule, Teacher, collate, eagle3_steps

DEPTH = 4
"""K of the simulated tokens per round."""


@dataclass(frozen=True)
class Recipe:
    """How a head is trained.  `token_passes` counts answer tokens, repeats included."""

    token_passes: int
    steps: int = 4
    decay: float = 0.8
    batch: int = 8
    peak_rate: float = 1e-3
    warmup: int = 50
    clip: float = 0.5
    acceptance: float = 0.0
    seed: int = 0
    evaluate_every: int = 100_000
    save_seconds: float = 120.0


@dataclass
class Progress:
    """Where a training stands."""

    passes: int = 0
    updates: int = 0
    epoch: int = 0
    in_epoch: int = 0
    seconds: float = 0.0
    best: float = 0.0
    history: list[dict] = field(default_factory=list)


class Trainer:
    """Trains `module` on `corpus`; everything it needs to go on lies in `folder`."""

    def __init__(
        self, module: EagleModule, teacher: Teacher, corpus: Corpus, held_out: Corpus, recipe: Recipe, folder: Path
    ):
        self.module, self.teacher, self.corpus, self.held_out = module, teacher, corpus, held_out
        self.recipe, self.folder, self.progress = recipe, folder, Progress()
        self.optimiser = torch.optim.AdamW(
            module.parameters(), lr=recipe.peak_rate, betas=(0.9, 0.95), weight_decay=0.0
        )
        self._saved = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        self._resume()

    def run(self, report: Callable[[dict], None] = lambda row: None) -> Progress:
        """Train to the end of the recipe."""
        p, recipe = self.progress, self.recipe
        begin, before = time.monotonic(), p.seconds
        next_evaluation = p.passes - p.passes % recipe.evaluate_every + recipe.evaluate_every
        running: list[float] = []
        while p.passes < recipe.token_passes:
            batches = list(self.corpus.batches(recipe.batch, recipe.seed, p.epoch))
            for indices in batches[p.in_epoch :]:
                batch = collate([self.corpus.states(i) for i in indices], recipe.steps)
                running.append(self._update(batch, indices))
                p.in_epoch += 1
                p.passes += int(batch.loss.sum())
                p.seconds = before + time.monotonic() - begin
                if p.passes >= next_evaluation or p.passes >= recipe.token_passes:
                    self._evaluate(sum(running) / len(running), report)
                    running, next_evaluation = [], next_evaluation + recipe.evaluate_every
                if time.monotonic() - self._saved > recipe.save_seconds:
                    self.save()
                if p.passes >= recipe.token_passes:
                    break
            else:
                p.epoch, p.in_epoch = p.epoch + 1, 0
        self.save()
        return p

    def _rate(self) -> float:
        p, recipe = self.progress, self.recipe
        warm = min(1.0, (p.updates + 1) / recipe.warmup)
        return recipe.peak_rate * warm * max(0.02, 0.5 * (1 + math.cos(math.pi * p.passes / recipe.token_passes)))

    def _update(self, batch: Batch, indices: list[int]) -> float:
        recipe = self.recipe
        if not batch.loss.any():
            raise UserError(f"conversation {self.corpus.samples[indices[0]].index}: no answer token in its batch")
        for group in self.optimiser.param_groups:
            group["lr"] = self._rate()
        self.optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            losses = [r.loss for r in eagle3_steps(self.module, batch, self.teacher, recipe.steps, recipe.acceptance)]
        total = sum(recipe.decay**k * loss for k, loss in enumerate(losses))
        if not torch.isfinite(total.detach()):
            names = [self.corpus.samples[i].index for i in indices]
            raise UserError(f"the loss is {float(total)} at update {self.progress.updates}, conversations {names}")
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), recipe.clip)
        self.optimiser.step()
        self.progress.updates += 1
        return float(losses[0].detach())

    def _evaluate(self, loss: float, report: Callable[[dict], None]) -> None:
        p = self.progress
        found = simulate(self.module, self.teacher, self.held_out)
        row = {"passes": p.passes, "updates": p.updates, "seconds": round(p.seconds, 1), "loss": loss, **found}
        p.history.append(row)
        if found["tokens_per_round"] > p.best:
            p.best = found["tokens_per_round"]
            _save(self.folder / "best.pt", self.module.state_dict())
        self.save()
        report(row)

    def save(self) -> None:
        state = {
            "module": self.module.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "progress": asdict(self.progress),
        }
        _save(self.folder / "state.pt", state)
        (self.folder / "recipe.json").write_text(json.dumps(asdict(self.recipe), indent=2) + "\n", "utf-8")
        self._saved = time.monotonic()

    def _resume(self) -> None:
        path = self.folder / "state.pt"
        if not path.is_file():
            return
        state = torch.load(path, weights_only=True)
        self.module.load_state_dict(state["module"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.progress = Progress(**state["progress"])


@torch.no_grad()
def simulate(module: EagleModule, teacher: Teacher, corpus: Corpus, depth: int = DEPTH, batch: int = 16) -> dict:
    """Tokens per round with `depth` drafts, and conditional acceptance by position, on `corpus`."""
    accepted = torch.zeros(depth)
    reached = torch.zeros(depth)
    starts = 0
    for begin in range(0, len(corpus), batch):
        data = collate([corpus.states(i) for i in range(begin, min(len(corpus), begin + batch))], depth)
        with torch.autocast("cpu", torch.bfloat16):
            results = list(eagle3_steps(module, data, teacher, depth))
        alive = torch.stack([r.wanted for r in results]).all(0)  # positions from which `depth` answer tokens follow
        starts += int(alive.sum())
        for k, result in enumerate(results):
            reached[k] += alive.sum()
            alive = alive & result.hits
            accepted[k] += alive.sum()
    conditional = (accepted / reached.clamp(min=1)).tolist()
    return {
        "tokens_per_round": 1 + float(accepted.sum()) / max(1, starts),
        **{f"acceptance_at_{k + 1}": value for k, value in enumerate(conditional)},
    }


def _save(path: Path, value: dict | Tensor) -> None:
    temporary = path.with_suffix(".part")
    torch.save(value, temporary)
    os.replace(temporary, path)
