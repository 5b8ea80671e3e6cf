"""Typical acceptance: keep what the target finds likely enough.  NOT lossless.

Source: Medusa, Cai et al. 2024, arXiv 2401.10774.

A drafted token x is accepted if its parent was and p(x) > min(EPSILON, DELTA * exp(-H(p))), H the entropy of p in
nats.  The longest accepted path is kept, the likelier one of equally long ones.  What follows is drawn from p; Medusa
takes the argmax there in its fast mode.

Nothing corrects for what the draft prefers: an accepted token is the draft's choice among the likely ones, so above
temperature 0 what is emitted does not follow the target.  At temperature 0 only the argmax passes, and this is the
greedy walk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.sampling import Stream
from specdec.tree import POINT, ROOT, Draft
from specdec.verifiers.base import TargetRows, Verdict, Verifier

EPSILON, DELTA = 0.09, 0.3


class Typical(Verifier):
    name = "typical"
    lossless = False

    def verify(self, draft: Draft, rows: TargetRows, stream: Stream) -> Verdict:
        laws: dict[int, tuple[Tensor, float]] = {}
        accepted: dict[int, tuple[tuple[int, ...], float]] = {ROOT: ((), 0.0)}
        for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            if parent not in accepted:
                continue
            if parent not in laws:
                p = rows.law(parent + 1)
                laws[parent] = p, threshold(p)
            p, least = laws[parent]
            if float(p[token]) > least:
                path, likelihood = accepted[parent]
                accepted[node] = (*path, node), likelihood + math.log(float(p[token]))
        path, _ = max(accepted.values(), key=lambda found: (len(found[0]), found[1]))
        last = path[-1] if path else ROOT
        source = "correction" if draft.children(last) else "bonus"
        return Verdict(path, stream.draw(rows.law(last + 1)), source)


def distance(draft: Draft, rows: TargetRows, path: Sequence[int]) -> float:
    """How many of the tokens that a chain's round emits the target itself would have drawn otherwise.

    Where a token of law q was tested, the rule emits e = q on the typical tokens, and p with what is left.  The total
    variation of e and p is the chance that draws from the two differ, coupled as closely as they can be.
    Summed over the tokens tested in this round: those on `path` and the one it ends before.  What follows a draft that
    was accepted whole is drawn from p.
    """
    if not draft.is_chain:
        raise ValueError("the distance is that of a chain: siblings compete, which it does not account for")
    total = 0.0
    for i in range(min(len(path) + 1, len(draft))):
        p = rows.law(i)
        q = torch.zeros_like(p) if draft.law == POINT else draft.q[i].to(p.dtype, copy=True)
        if draft.law == POINT:
            q[draft.tokens[i]] = 1.0
        q[p <= threshold(p)] = 0.0
        total += float((q + (1 - q.sum()) * p - p).clamp(min=0).sum())
    return total


def threshold(p: Tensor) -> float:
    """The least probability, itself excluded, that makes a token typical of p [V]."""
    entropy = -float(torch.xlogy(p, p).sum())
    return min(EPSILON, DELTA * math.exp(-entropy))
