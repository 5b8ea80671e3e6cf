"""Training text as the target sees it: conversations, what the target's layers held, and what it would say next.

The target runs once over each conversation; what a draft needs of it is held in bf16 within a memory budget, and
computed anew beyond it.  A head needs tapped states and last states, on the positions kept: its prompt is cut to the
last tokens, since the states already carry what came before.  A small language model reads the whole text, and needs
the last states where an answer's token is predicted.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor

from specdec.errors import UserError
from specdec.models.transformer import Transformer
from specdec.training.parts import parts_of


@dataclass(frozen=True)
class Sample:
    """One conversation: token ids, which of them are answers, its index in the text, and how it was answered.

    `text` is the folder of its text, where several lie in one.
    """

    index: int
    ids: tuple[int, ...]
    mask: tuple[bool, ...]
    sampled: bool = False
    text: str = "."

    @property
    def name(self) -> str:
        """Different for every conversation."""
        return str(self.index) if self.text == "." else f"{self.text}_{self.index}"


@dataclass(frozen=True)
class States:
    """For a head: what the target held over the positions kept; position t pairs features[t] with ids[t + 1].

    ids [T + 2], features [T, taps * hidden], last [T + 1, hidden] (the final norm's output), mask [T + 2] by token.
    """

    ids: Tensor
    features: Tensor
    last: Tensor
    mask: Tensor

    @property
    def length(self) -> int:
        return len(self.features)

    @property
    def bytes(self) -> int:
        return self.features.nbytes + self.last.nbytes


@dataclass(frozen=True)
class Answers:
    """For a language model: ids [T + 1], loss [T] (is ids[t + 1] an answer's?), last [answers, hidden] where it is."""

    ids: Tensor
    loss: Tensor
    last: Tensor

    @property
    def length(self) -> int:
        return len(self.loss)

    @property
    def bytes(self) -> int:
        return self.last.nbytes


def read_text(folder: Path) -> list[Sample]:
    """Every kept conversation of a folder of parts, in index order; folders in it hold texts of their own."""
    parts = parts_of(folder)
    if not parts:
        raise UserError(f"{folder}: no training text there (no .parquet file)")
    samples = []
    for part in parts:
        for row in pq.read_table(part, columns=["index", "ids", "loss_mask", "sampled"]).to_pylist():
            if row["ids"]:
                if not any(row["loss_mask"][2:]):  # nothing is predicted before the third token
                    raise UserError(
                        f"{part}: conversation {row['index']} has no answer token (its loss mask is all zero)"
                    )
                text = part.parent.relative_to(folder).as_posix()
                samples.append(Sample(row["index"], tuple(row["ids"]), tuple(row["loss_mask"]), row["sampled"], text))
    return sorted(samples, key=lambda sample: sample.index)


def hold_out(samples: Sequence[Sample], share: float = 0.03) -> tuple[list[Sample], list[Sample]]:
    """(training, held out): of every n conversations one is held out; of those, the greedily answered are measured on.

    Raises `UserError` when either side is empty.
    """
    every = max(2, round(1 / share))
    train = [s for s in samples if s.index % every]
    held = [s for s in samples if s.index % every == 0 and not s.sampled]
    if not train or not held:
        raise UserError(f"{len(samples)} conversations are too few: one in {every} is held out, answered greedily")
    return train, held


def with_requests(samples: Sequence[Sample]) -> list[Sample]:
    """The same conversations, all of them to be learned, behind the opening that they have in common."""
    opening = len(os.path.commonprefix([sample.ids for sample in samples]))
    return [replace(s, mask=tuple(marked or i >= opening for i, marked in enumerate(s.mask))) for s in samples]


def answer_counts(samples: Sequence[Sample]) -> Counter[int]:
    """How often each token stands in an answer."""
    counts: Counter[int] = Counter()
    for sample in samples:
        counts.update(token for token, kept in zip(sample.ids, sample.mask, strict=True) if kept)
    return counts


def frequent_tokens(samples: Sequence[Sample], size: int, vocabulary: int) -> Tensor:
    """The `size` most frequent answer tokens of `vocabulary` ids, ascending; ties go to the lower id."""
    if not 1 <= size <= vocabulary:
        raise UserError(f"draft vocabulary {size}: must be between 1 and the target's {vocabulary}")
    counts = answer_counts(samples)
    ranked = sorted(counts, key=lambda token: (-counts[token], token))[:size]
    if len(ranked) < size:  # a small text: the lowest ids that are left fill up
        ranked += [token for token in range(vocabulary) if token not in counts][: size - len(ranked)]
    return torch.tensor(sorted(ranked))


def _first(sample: Sample, prompt: int) -> int:
    """Where a sample begins when at most `prompt` tokens stand before its first answer."""
    return max(0, sample.mask.index(True) - 1 - prompt)


class Corpus(ABC):
    """Samples with the target's states in `dtype`, kept in memory up to `budget` bytes."""

    def __init__(
        self, target: Transformer, samples: Sequence[Sample], budget: int, dtype: torch.dtype = torch.bfloat16
    ):
        self._target, self.samples = target, list(samples)
        self.budget, self._dtype, self._held, self._used = budget, dtype, {}, 0

    @property
    @abstractmethod
    def needed(self) -> int:
        """Bytes that the states of all samples take."""

    @abstractmethod
    def _compute(self, sample: Sample) -> States | Answers: ...

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def learned_tokens(self) -> int:
        return sum(sum(sample.mask) for sample in self.samples)

    @property
    def by_length(self) -> list[int]:
        """Indices, the shortest sample first: side by side they take little padding."""
        return sorted(range(len(self)), key=lambda i: len(self.samples[i].ids))

    def states(self, i: int) -> States | Answers:
        if i in self._held:
            return self._held[i]
        states = self._compute(self.samples[i])
        if self._used + states.bytes <= self.budget:
            self._held[i] = states
            self._used += states.bytes
        return states

    def batches(self, size: int, seed: int, epoch: int) -> Iterator[list[int]]:
        """Indices in batches of like length, in an order that depends on seed and epoch alone."""
        random = np.random.default_rng([seed, epoch])
        order = random.permutation(len(self.samples))
        chunks = []
        for begin in range(0, len(order), size * 16):
            window = sorted(order[begin : begin + size * 16], key=lambda i: len(self.samples[i].ids))
            chunks += [window[j : j + size] for j in range(0, len(window), size)]
        for j in random.permutation(len(chunks)):
            yield [int(i) for i in chunks[j]]

    @property
    def digest(self) -> str:
        """A hash of the text."""
        content = repr([(s.index, s.ids, s.mask) for s in self.samples])
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def _run(self, sample: Sample, taps: Sequence[int] = ()) -> Tensor:
        """[T + 1, (taps + 1) * hidden]: tapped and last states, made in inference mode; autograd may keep copies
        alone."""
        ids, target = sample.ids, self._target
        out = target.forward(ids[:-1], target.new_cache(len(ids)), taps=(*taps, target.config.layers), logits=False)
        kept = out.features.to("cpu", self._dtype)
        if not torch.isfinite(kept).all():
            raise UserError(f"conversation {sample.index}: the target's states are not finite")
        return kept


class HeadCorpus(Corpus):
    """What an EAGLE head learns from; `prompt`: how many tokens before the first answer are kept."""

    def __init__(
        self,
        target: Transformer,
        samples: Sequence[Sample],
        taps: Sequence[int],
        prompt: int,
        budget: int,
        dtype: torch.dtype = torch.bfloat16,
    ):
        if prompt < 1:
            raise UserError(f"prompt = {prompt}: at least one token before an answer must be kept")
        super().__init__(target, samples, budget, dtype)
        self._taps, self._prompt = tuple(taps), prompt

    @property
    def needed(self) -> int:
        width = (len(self._taps) + 1) * self._target.config.hidden_size * self._dtype.itemsize
        return width * sum(len(s.ids) - 1 - _first(s, self._prompt) for s in self.samples)

    def _compute(self, sample: Sample) -> States:
        first, width = _first(sample, self._prompt), len(self._taps) * self._target.config.hidden_size
        kept = self._run(sample, self._taps)[first:]
        return States(
            ids=torch.tensor(sample.ids[first:]),
            features=kept[:-1, :width].clone(),
            last=kept[:, width:].clone(),
            mask=torch.tensor(sample.mask[first:]),
        )


class AnswerCorpus(Corpus):
    """What a small language model learns from: whole texts."""

    @property
    def needed(self) -> int:
        return self._target.config.hidden_size * self._dtype.itemsize * sum(sum(s.mask[1:]) for s in self.samples)

    def _compute(self, sample: Sample) -> Answers:
        loss = torch.tensor(sample.mask[1:])
        return Answers(torch.tensor(sample.ids), loss, self._run(sample)[loss].clone())
