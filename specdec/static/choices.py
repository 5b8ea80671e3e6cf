"""Drafting and verifying without the host: the greedy walk and rejection sampling of a chain, in fixed shapes.

The same rules as `verifiers/greedy.py` and `verifiers/rejection.py`, with every branch computed and one of them taken.
Random numbers come from outside: number i of the verification stream tests position i, and the one behind the last test
draws the token that follows, as in those files, so that one stream gives one text in either way of decoding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdec.sampling import Sampling, descending, invert, largest, warp


class Choice:
    """Base: what is counted as accepted.  `depth` [1] bounds how many drafted tokens count in this round."""

    laws: Tensor | None = None
    """[K, V], what the round's tokens were drawn from; None where they were not."""

    def __init__(self, k: int, vocabulary: int, sampling: Sampling, ids: Tensor | None, device: torch.device):
        """`ids` [V_d]: the target id of each of the draft's columns; None where they are the target's."""
        self._sampling, self._ids, self._vocabulary = sampling, ids, vocabulary
        self._levels = torch.arange(k, device=device)

    def _accepted(self, kept: Tensor, depth: Tensor) -> Tensor:
        """[1], the leading ones of kept [K] within the depth."""
        return (kept & (self._levels < depth)).long().cumprod(0).sum(0, keepdim=True)

    def draft(self, level: int, logits: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
        """The token [1] drafted at a level from logits [V_d], and its probability [1]."""
        raise NotImplementedError

    def verdict(self, logits: Tensor, drafted: Tensor, depth: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        """How many of drafted [K] stay [1], and the token behind them [1], from the target's logits [K + 1, V]."""
        raise NotImplementedError


class GreedyChoice(Choice):
    """Temperature 0."""

    def draft(self, level: int, logits: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
        z = logits if logits.dtype == torch.float64 else logits.float()
        column = largest(z)[None]
        chance = z.softmax(-1).amax()[None]
        return (column if self._ids is None else self._ids.index_select(0, column)), chance

    def verdict(self, logits: Tensor, drafted: Tensor, depth: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        best = largest(logits)
        accepted = self._accepted(best[: len(drafted)] == drafted, depth)
        return accepted, best.index_select(0, accepted)


class SampledChoice(Choice):
    """Above temperature 0.  The laws that tokens were drawn from stay in a buffer until their verdict."""

    def __init__(self, k: int, vocabulary: int, sampling: Sampling, ids: Tensor | None, like: Tensor):
        """`like`: any tensor of the logits' type, on their device."""
        super().__init__(k, vocabulary, sampling, ids, like.device)
        self.laws = like.new_zeros(max(k, 1), vocabulary)

    def draft(self, level: int, logits: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
        law = self.laws[level]
        q = warp(logits, self._sampling.for_draft, descending)
        if self._ids is None:
            law.copy_(q)
        else:
            law.zero_().index_copy_(0, self._ids, q)
        token = law.argmax(0, keepdim=True) if self._sampling.for_draft.greedy else invert(law, point)
        return token, law.index_select(0, token)

    def verdict(self, logits: Tensor, drafted: Tensor, depth: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        p, k = warp(logits, self._sampling, descending), len(drafted)
        owed = p[:k].gather(1, drafted[:, None])[:, 0].double()
        q = self.laws[:k].gather(1, drafted[:, None])[:, 0].double()
        odds = torch.where(owed < q, owed / q, (owed > 0).double())
        accepted = self._accepted(points[:k] < odds, depth)
        law = p.index_select(0, accepted)[0]
        rest = (law - self.laws.index_select(0, accepted.clamp(max=max(k - 1, 0)))[0]).clamp_(min=0.0)
        mass = rest.sum(0, keepdim=True)
        rejected = accepted < depth
        law = torch.where(rejected & (mass > 0), rest / mass, law)
        return accepted, invert(law, points.index_select(0, accepted + rejected))
