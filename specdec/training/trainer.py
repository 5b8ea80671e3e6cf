"""The training loop: deterministic, resumable at any moment, with what it learned measured on held-out text.

The quality that counts is tokens per round.  It is simulated on held-out conversations: from every position the draft
guesses K tokens against the text that the target wrote; a token is accepted while all before it were.

While it runs, `log.parquet` in its folder holds a row a measurement: loss, acceptance by position, tokens per round.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from specdec.errors import UserError
from specdec.records import write_table
from specdec.training.corpus import Corpus
from specdec.training.objective import Objective, Recipe, mean
from specdec.training.optimisers import Optimisers
from specdec.training.parallel import Group

DEPTH = 4
"""K of the simulated tokens per round."""
FREE = ("evaluate_every", "save_seconds")
"""What may change when a training goes on."""
LOG = "log.parquet"


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
    """Trains `module` on `corpus`; everything it needs to go on lies in `folder`.

    In a `group` of processes every one of them makes the same updates; the first alone measures and writes.
    """

    def __init__(
        self,
        module: nn.Module,
        objective: Objective,
        corpus: Corpus,
        held_out: Corpus,
        folder: Path,
        group: Group | None = None,
    ):
        self.group = group or Group()
        self.module, self.objective, self.corpus, self.held_out = module, objective, corpus, held_out
        self.recipe: Recipe = objective.recipe
        self.folder, self.progress = folder, Progress()
        self.optimisers = Optimisers(module, self.recipe)
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
                loss, passes = self._update(indices)
                p.loss += loss
                p.losses += 1
                p.in_epoch += 1
                p.passes += passes
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

    def finish(self, settle: Callable[[Callable[[], float]], dict] | None = None) -> tuple[dict, dict]:
        """Take the best weights, rounded as they are stored, and measure them once more: (what is measured, what
        `settle` says, which may set weights anew by what the text held out says of them)."""

        def measure() -> dict:
            return simulate(self.module, self.objective, self.held_out)

        self.module.load_state_dict(self._read("best.pt"))
        settled = {} if settle is None else settle(lambda: measure()["tokens_per_round"])
        self.module.round_off()
        return measure(), settled

    def _share(self) -> float:
        """Of the peak rate: a warm-up, then half a cosine."""
        p, recipe = self.progress, self.recipe
        warm = min(1.0, (p.updates + 1) / max(1, recipe.warmup))
        return warm * max(0.02, 0.5 * (1 + math.cos(math.pi * p.passes / recipe.token_passes)))

    def _update(self, indices: list[int]) -> tuple[float, int]:
        """One step on a batch: its loss and its answer tokens, over all processes."""
        recipe, group, update = self.recipe, self.group, self.progress.updates
        names = [self.corpus.samples[i].index for i in indices]
        batch, own = self._part(indices)
        self.optimisers.begin(self._share())
        with recipe.autocast(group.device):
            terms = self.objective.terms(self.module, batch, [_seed(recipe.seed, update, name) for name in own])
        counts = torch.tensor([int(term.count) for term in terms] + [int(batch.loss.sum())], device=group.device)
        *counts, passes = group.sum(counts).tolist()
        loss = mean(terms, counts)
        value = float(group.sum(loss.detach().clone()))
        if not math.isfinite(value):
            raise UserError(f"the loss is {value} at update {update}, conversations {names}")
        loss.backward()
        group.sum_gradients(self.module.parameters())
        norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), recipe.clip)
        if not torch.isfinite(norm):
            raise UserError(f"a gradient is {float(norm)} at update {update}, conversations {names}")
        self.optimisers.step()
        self.progress.updates += 1
        return value, passes

    def _part(self, indices: list[int]) -> tuple:
        """This process's part of a batch, and its conversations; one without a part keeps step with a silent one."""
        own = self.group.part(indices) or indices[:1]
        names = [self.corpus.samples[i].index for i in own]
        batch = self.objective.collate([self.corpus.states(i) for i in own])
        for name, kept in zip(names, batch.loss.any(-1).tolist(), strict=True):
            if not kept:
                raise UserError(f"conversation {name} has no answer token (its loss mask is all zero)")
        if not self.group.part(indices):
            batch = batch.silent()
        return batch.to(self.group.device), names

    def _evaluate(self) -> None:
        p = self.progress
        loss = p.loss / max(1, p.losses)
        if loss == 0:
            raise UserError(f"the loss was 0 in each of the last {p.losses} updates: nothing is being learned")
        p.loss, p.losses = 0.0, 0
        if not self.group.first:
            return
        found = simulate(self.module, self.objective, self.held_out)
        row = {"passes": p.passes, "updates": p.updates, "seconds": round(p.seconds, 1), "loss": loss, **found}
        p.history.append(row)
        write_table(self.folder / LOG, pa.Table.from_pylist(p.history))
        if found["tokens_per_round"] > p.best:
            p.best = found["tokens_per_round"]
            _save(self.folder / "best.pt", self.module.state_dict())
        self.save()

    def identity(self) -> dict:
        """What must be the same when a training goes on: recipe, shape of the draft, its vocabulary, text."""
        recipe = {key: value for key, value in asdict(self.recipe).items() if key not in FREE}
        text = {"text": self.corpus.digest, "held_out": self.held_out.digest}
        return recipe | self.objective.identity(self.module) | text

    def save(self) -> None:
        if not self.group.first:
            return
        state = {
            "module": self.module.state_dict(),
            "optimisers": self.optimisers.state_dict(),
            "progress": asdict(self.progress),
            "identity": json.dumps(self.identity()),
        }
        _save(self.folder / "state.pt", state)
        self._saved = time.monotonic()

    def _read(self, name: str) -> dict:
        return torch.load(self.folder / name, map_location=self.group.device, weights_only=True)

    def _resume(self) -> None:
        path = self.folder / "state.pt"
        if not path.is_file():
            return
        state = self._read("state.pt")
        ours, theirs = json.loads(json.dumps(self.identity())), json.loads(state["identity"])
        for key in ours:
            if ours[key] != theirs.get(key):
                raise UserError(
                    f"{path}: that training has {key} = {theirs.get(key)}, not {ours[key]}; take another folder"
                )
        self.module.load_state_dict(state["module"])
        self.optimisers.load_state_dict(state["optimisers"])
        self.progress = Progress(**state["progress"])


@torch.no_grad()
def simulate(module: nn.Module, objective: Objective, corpus: Corpus, depth: int = DEPTH, batch: int = 16) -> dict:
    """Tokens per round with `depth` drafts, and acceptance by position given that all before was accepted.

    Every position of `corpus` from which `depth` answer tokens follow is the root of one round.
    """
    device, order = next(module.parameters()).device, corpus.by_length
    accepted, reached, starts = torch.zeros(depth), torch.zeros(depth), 0
    for begin in range(0, len(corpus), batch):
        samples = [corpus.states(i) for i in order[begin : begin + batch]]
        data = objective.collate(samples, depth).to(device)
        with objective.recipe.autocast(device):
            results = objective.guesses(module, data, depth)
        alive = torch.stack([wanted for _, wanted in results]).all(0)
        starts += int(alive.sum())
        for k, (hits, _) in enumerate(results):
            reached[k] += alive.sum().cpu()
            alive = alive & hits
            accepted[k] += alive.sum().cpu()
    if not starts:
        raise UserError(f"no held-out answer is longer than {depth} tokens: nothing can be measured")
    conditional = (accepted / reached.clamp(min=1)).tolist()
    return {
        "tokens_per_round": 1 + float(accepted.sum()) / starts,
        **{f"acceptance_at_{k + 1}": value for k, value in enumerate(conditional)},
    }


def _seed(*parts: int) -> int:
    """A seed of its own for a sample in an update."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _save(path: Path, value: dict | Tensor) -> None:
    temporary = path.with_suffix(".part")
    torch.save(value, temporary)
    os.replace(temporary, path)
