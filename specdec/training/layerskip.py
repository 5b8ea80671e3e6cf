"""LayerSkip's training: the target itself goes on learning, so that its early layers can speak.

Source: LayerSkip (arXiv 2404.16710).  Whole layers are dropped at random, the later the more often, so that early ones
depend less on late ones; and the cross-entropy to the text counts behind an early layer as well as behind the last,
each through the model's own norm and head.  An update looks at one early exit of each conversation, drawn, in place of
the paper's turns, and an exit's weight is the same at any depth, where the paper's grows with it: a short training
teaches few exits.

What comes out is another target that brings its own draft, its first layers.  Decoding with them is lossless relative
to that target alone; how far it has moved from the one it was, `moved` says.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.errors import UserError
from specdec.training.corpus import AnswerCorpus, Answers, Corpus
from specdec.training.distill import Batch, collate_answers, later
from specdec.training.objective import ROWS, Recipe, Teacher, Term, first_choices, in_parts
from specdec.training.small import SmallModel


@dataclass(frozen=True)
class LayerSkipRecipe(Recipe):
    """`exit`: how many layers the measured draft has; `taught`: the exits that learn, every one where none is named;
    `weight` of an early exit's loss beside that of the last layer; `dropout` of the last layer."""

    exit: int = 1
    taught: tuple[int, ...] = ()
    weight: float = 1.0
    dropout: float = 0.1
    optimiser: str = "adamw"
    peak_rate: float = 1e-4

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout = {self.dropout}: must be at least 0 and below 1")
        if not self.weight > 0:
            raise UserError(f"weight = {self.weight}: must be above 0")


def check_exits(recipe: LayerSkipRecipe, total: int) -> None:
    """Every exit leaves something out of the target's `total` layers."""
    for key, chosen in (("exit", [recipe.exit]), ("taught", recipe.taught)):
        if not all(1 <= layers < total for layers in chosen):
            raise UserError(f"{key} = {', '.join(map(str, chosen))}: must be between 1 and {total - 1} layers")


def dropout_rates(layers: int, last: float) -> Tensor:
    """[layers]: the chance that a layer is dropped, from 0 to that of the `last`, exponential in depth."""
    depth = torch.arange(layers) / max(1, layers - 1)
    return last * (2**depth - 1)


class ExitModel(SmallModel):
    """The whole target, which may speak behind any layer."""

    def states(
        self, tokens: Tensor, exits: Sequence[Collection[int]], kept: Tensor | None = None
    ) -> list[dict[int, Tensor]]:
        """tokens [B, T] -> for each of the B texts what the head is given, [T, h], after so many layers as its `exits`
        say.  `kept` [B, layers] says which layers a text goes through, all where it is not given."""
        hidden, turns = self.begin(tokens)
        found: list[dict[int, Tensor]] = [{} for _ in exits]
        for number, layer in enumerate(self.layers, 1):
            rows = None if kept is None else kept[:, number - 1].nonzero()[:, 0]
            if rows is None or len(rows) == len(hidden):
                hidden = layer(hidden, turns)
            elif len(rows):
                hidden = hidden.index_copy(0, rows, layer(hidden[rows], turns))
            for i, wanted in enumerate(exits):
                if number in wanted:
                    found[i][number] = self.end(hidden[i])
        return found


class LayerSkipLoss:
    """The head is the target's, frozen like its embedding, so that what learns are layers and the final norm."""

    def __init__(self, recipe: LayerSkipRecipe, teacher: Teacher):
        self.recipe, self.teacher = recipe, teacher

    def collate(self, items: Sequence[Answers], depth: int | None = None) -> Batch:
        return collate_answers(items)

    def terms(self, module: ExitModel, batch: Batch, seeds: Sequence[int]) -> list[Term]:
        total, rates = len(module.layers), dropout_rates(len(module.layers), self.recipe.dropout)
        taught, early, kept = self.recipe.taught or tuple(range(1, total)), [], []
        for seed in seeds:
            generator = torch.Generator().manual_seed(seed)
            early.append(taught[int(torch.randint(len(taught), (), generator=generator))])
            kept.append(torch.rand(total, generator=generator) >= rates)
        found = module.states(
            batch.tokens[:, :-1], [{exit, total} for exit in early], torch.stack(kept).to(batch.loss.device)
        )
        label, weight = batch.tokens[:, 1:][batch.loss], self.recipe.weight
        parts = ((early, weight / (1 + weight)), ([total] * len(seeds), 1 / (1 + weight)))
        terms = []
        for exits, share in parts:
            states = torch.cat([of[exit][loss] for of, exit, loss in zip(found, exits, batch.loss, strict=True)])
            terms.append(
                Term(in_parts(states, lambda part, where: self._surprise(part, label[where])), len(label), share)
            )
        return terms

    def _surprise(self, states: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(_logits(states, self.teacher.head), label, reduction="sum")

    @torch.no_grad()
    def guesses(self, module: ExitModel, batch: Batch, depth: int) -> list[tuple[Tensor, Tensor]]:
        """A guess hits where the exit's first choice is that of the whole model, which verifies it, both behind the
        text: exactly a decoding's round where that model would write the text itself, and close to one elsewhere."""
        total, head = len(module.layers), self.teacher.head
        found = module.states(batch.tokens[:, :-1], [{self.recipe.exit, total}] * len(batch.loss))
        draft, target = (
            torch.cat([of[number][loss] for of, loss in zip(found, batch.loss, strict=True)])
            for number in (self.recipe.exit, total)
        )
        hits = torch.zeros_like(batch.loss)
        hits[batch.loss] = first_choices(draft, head) == first_choices(target, head)
        return [(later(hits, k), later(batch.loss, k)) for k in range(depth)]

    def identity(self, module: ExitModel) -> dict:
        return {"model": str(module.config)}


def _logits(states: Tensor, head: Tensor) -> Tensor:
    return F.linear(states.to(head.dtype), head).float()


@torch.no_grad()
def moved(module: ExitModel, objective: LayerSkipLoss, corpus: AnswerCorpus, batch: int = 16) -> dict[str, float]:
    """How far the whole model is from the target that it was, where `corpus` has answers: `agreement` is the share of
    equal first choices, `divergence` the mean of KL(target || model) in nats."""
    total, head, count, same, divergence = len(module.layers), objective.teacher.head, 0, 0, 0.0
    for begin in range(0, len(corpus), batch):
        items = [corpus.states(i) for i in corpus.by_length[begin : begin + batch]]
        data = objective.collate(items).to(head.device)
        with objective.recipe.autocast(head.device):
            found = module.states(data.tokens[:, :-1], [{total}] * len(items))
        states = torch.cat([of[total][loss] for of, loss in zip(found, data.loss, strict=True)])
        for ours, theirs in zip(states.split(ROWS), data.last.split(ROWS), strict=True):
            log_q, log_p = _logits(ours, head).log_softmax(-1), objective.teacher.log_law(theirs)
            same += int((log_q.argmax(-1) == log_p.argmax(-1)).sum())
            divergence += float((log_p.exp() * (log_p - log_q)).sum())
            count += len(ours)
    return {"agreement": same / count, "divergence": divergence / count}


class TextCorpus(Corpus):
    """Whole texts and nothing of the target, which is what learns."""

    @property
    def needed(self) -> int:
        return sum(9 * (len(sample.ids) - 1) + 8 for sample in self.samples)

    def _compute(self, sample) -> Answers:
        ids = torch.tensor(sample.ids)
        return Answers(ids, torch.tensor(sample.mask[1:]), torch.empty(0, self._target.config.hidden_size))
