"""Training text as the target sees it: conversations, what the target's layers held, and what it would say next.

The target runs once over each conversation; what a head needs of it (tapped states, last state, on the positions
kept) is held in bf16 within a memory budget, and computed anew beyond it.  A conversation's prompt is cut to its last
tokens: the states already carry what came before.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor

from specdec.errors import UserError
from specdec.models.transformer import Transformer


@dataclass(frozen=True)
class Sample:
    """One conversation: token ids, which of them are answers, its index in the text, and how it was answered."""

    index: int
    ids: tuple[int, ...]
    mask: tuple[bool, ...]
    sampled: bool = False


@dataclass(frozen=True)
class States:
    """What the target held over a sample's kept positions: position t of the head pairs features[t] with ids[t + 1].

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


def read_text(folder: Path) -> list[Sample]:
    """Every kept conversation of a folder of parts, in index order."""
    parts = sorted(folder.glob("*.parquet"))
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
                samples.append(Sample(row["index"], tuple(row["ids"]), tuple(row["loss_mask"]), row["sampled"]))
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


def frequent_tokens(samples: Sequence[Sample], size: int, vocabulary: int) -> Tensor:
    """The `size` most frequent answer tokens of `vocabulary` ids, ascending; ties go to the lower id."""
    if not 1 <= size <= vocabulary:
        raise UserError(f"draft vocabulary {size}: must be between 1 and the target's {vocabulary}")
    counts: Counter[int] = Counter()
    for sample in samples:
        counts.update(token for token, kept in zip(sample.ids, sample.mask, strict=True) if kept)
    ranked = sorted(counts, key=lambda token: (-counts[token], token))[:size]
    if len(ranked) < size:  # a small text: the lowest ids that are left fill up
        ranked += [token for token in range(vocabulary) if token not in counts][: size - len(ranked)]
    return torch.tensor(sorted(ranked))


def state_bytes(samples: Sequence[Sample], prompt: int, width: int, size: int = 2) -> int:
    """What the states of `samples` take: `width` numbers of `size` bytes at every kept position."""
    return width * size * sum(len(s.ids) - 1 - _first(s, prompt) for s in samples)


def _first(sample: Sample, prompt: int) -> int:
    """Where a sample begins when at most `prompt` tokens stand before its first answer."""
    return max(0, sample.mask.index(True) - 1 - prompt)


class Corpus:
    """Samples with the target's states in `dtype`, kept in memory up to `budget` bytes.

    `prompt`: how many tokens before the first answer are kept.
    """

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
        self._target, self.samples, self._taps, self._prompt = target, list(samples), tuple(taps), prompt
        self._budget, self._dtype, self._held, self._used = budget, dtype, {}, 0

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def answer_tokens(self) -> int:
        return sum(sum(sample.mask) for sample in self.samples)

    def states(self, i: int) -> States:
        if i in self._held:
            return self._held[i]
        states = self._compute(self.samples[i])
        if self._used + states.bytes <= self._budget:
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

    def _compute(self, sample: Sample) -> States:
        """Copies, made outside inference mode: tensors that autograd may keep."""
        first, ids, target = _first(sample, self._prompt), sample.ids, self._target
        out = target.forward(
            ids[:-1], target.new_cache(len(ids)), taps=(*self._taps, target.config.layers), logits=False
        )
        width = len(self._taps) * target.config.hidden_size
        kept = out.features[first:].to(self._dtype)
        if not torch.isfinite(kept).all():
            raise UserError(f"conversation {sample.index}: the target's states are not finite")
        return States(
            ids=torch.tensor(ids[first:]),
            features=kept[:-1, :width].clone(),
            last=kept[:, width:].clone(),
            mask=torch.tensor(sample.mask[first:]),
        )
