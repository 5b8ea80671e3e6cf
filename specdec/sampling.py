"""From logits to a law, and the random choices made with it.

One `Sampling` warps both models: p and q are laws *after* temperature, top-k and top-p, in that order.  Temperature 0
is the one-hot law of the largest logit.

All randomness of decoding is two operations, `accept` and `draw`, so that tests can replace the stream by one that
walks every branch with its probability.  Each (seed, prompt, purpose) has a stream of its own: adding a drafter never
shifts the target's draws.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from specdec.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """Warping settings; `draft_temperature` None means the target's."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    draft_temperature: float | None = None

    def __post_init__(self):
        for name in ("temperature", "draft_temperature"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise UserError(f"{name} = {value}: must be a number of 0 or more")
        if self.top_k is not None and (
            isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 1
        ):
            raise UserError(f"top_k = {self.top_k}: must be an integer of 1 or more")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p = {self.top_p}: must lie above 0 and at most at 1")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def for_draft(self) -> Sampling:
        """The draft's settings: the same filters, its own temperature where one is given.

        A greedy target makes greedy proposals: sampled ones could only be accepted less often.
        """
        if self.draft_temperature is None or self.greedy:
            return replace(self, draft_temperature=None)
        return replace(self, temperature=self.draft_temperature, draft_temperature=None)


GREEDY = Sampling()


def largest(logits: Tensor) -> Tensor:
    """Index of the largest logit [...], the lowest among equal ones; widened first, since argmax in bf16 is slow."""
    return (logits if logits.dtype == torch.float64 else logits.float()).argmax(-1)


def descending(p: Tensor, mass: float) -> Tensor:
    """Probabilities in descending order, all of them, so that the host need not look."""
    return p.sort(dim=-1, descending=True).values


def leading(p: Tensor, mass: float, few: int = 1024) -> Tensor:
    """The largest probabilities in descending order, enough of them to hold `mass`: sorting a whole vocabulary takes
    longer than the target's pass."""
    if few < p.shape[-1]:
        top = p.topk(few, dim=-1).values
        if bool((top.sum(-1) > mass + 1e-3).all()):
            return top
    return descending(p, mass)


def warp(logits: Tensor, sampling: Sampling, order: Callable[[Tensor, float], Tensor] = leading) -> Tensor:
    """Logits [..., V] to probabilities [..., V], float64 for float64 logits, else float32; the input is not changed.

    `order` sorts probabilities for top-p, as far as the mass asked for.
    """
    z = logits if logits.dtype == torch.float64 else logits.float()
    if sampling.greedy:
        return torch.zeros_like(z).scatter_(-1, z.argmax(-1, keepdim=True), 1.0)
    # A temperature too small for the dtype would divide 0 by 0; the smallest normal number is cold enough.
    z = (z - z.amax(-1, keepdim=True)) / max(sampling.temperature, torch.finfo(z.dtype).tiny)
    if sampling.top_k is not None and sampling.top_k < z.shape[-1]:
        edge = z.topk(sampling.top_k, dim=-1).values
        z = z.masked_fill(~_largest_few(z, edge[..., -1:], sampling.top_k), -torch.inf)
    p = z.softmax(-1)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered = order(p, sampling.top_p)
        # A token stays while the mass before it is below top_p, so that at least one does.
        count = (ordered.cumsum(-1) - ordered < sampling.top_p).sum(-1, keepdim=True)
        p = p.masked_fill(~_largest_few(p, ordered.gather(-1, count - 1), count), 0.0)
        p = p / p.sum(-1, keepdim=True)
    return p


def _largest_few(values: Tensor, edge: Tensor, count: int | Tensor) -> Tensor:
    """Which of `values` [..., V] are the `count` largest, the least of them `edge`; of equal ones the lowest ids."""
    above, level = values > edge, values == edge
    return above | (level & (level.cumsum(-1) <= count - above.sum(-1, keepdim=True)))


def invert(law: Tensor, point: Tensor | float) -> Tensor:
    """The token [1] at `point`, from 0 to below 1, of the cumulative sum of law [V], which is taken in double
    precision."""
    cumulative = law.double().cumsum(0)
    total = cumulative[-1:]
    index = torch.searchsorted(cumulative, point * total, right=True)
    # where the product rounded up to the total: the last token that has any mass
    return torch.minimum(index, torch.searchsorted(cumulative, total))


class Stream(Protocol):
    """The two random operations of decoding."""

    def accept(self, probability: float) -> bool: ...

    def draw(self, law: Tensor) -> int: ...


class RandomStream:
    """A counter-based generator (Philox) keyed by seed, prompt and purpose."""

    def __init__(self, seed: int, prompt_id: str, purpose: str):
        digest = hashlib.sha256(f"{seed}\0{prompt_id}\0{purpose}".encode()).digest()
        self._generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))

    def uniform(self) -> float:
        """The next number, from 0 to below 1: what either operation takes."""
        return self._generator.random()

    def accept(self, probability: float) -> bool:
        return self.uniform() < probability

    def draw(self, law: Tensor) -> int:
        """A token from law [V] by inverting its cumulative sum."""
        return int(invert(law, self.uniform()))
