"""Token-wise rejection sampling of a chain.

Sources: Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318.

A drafted token x is accepted with probability min(1, p(x) / q(x)); at the first rejection the correction is drawn from
the residual norm([p - q]+); after full acceptance the bonus is drawn from p.  What is emitted follows p exactly,
whatever q is, as long as q is the very law x was drawn from.  A token chosen deterministically has q = 1 on itself:
it is accepted with probability p(x), and the residual is p without x.
"""

from __future__ import annotations

from torch import Tensor

from specdec.sampling import Stream
from specdec.tree import POINT, Draft
from specdec.verifiers.base import TargetRows, Verdict, Verifier


class Rejection(Verifier):
    name = "rejection"
    shapes = frozenset({"chain"})

    def verify(self, draft: Draft, rows: TargetRows, stream: Stream) -> Verdict:
        for i, token in enumerate(draft.tokens):
            p = rows.law(i)
            if draft.law == POINT:
                ratio, rest = float(p[token]), p.clone()
                rest[token] = 0.0
            else:
                q = draft.q[i].to(p.dtype)
                ratio, rest = float(p[token] / q[token]), (p - q).clamp_(min=0.0)
            if not stream.accept(min(1.0, ratio)):
                return Verdict(tuple(range(i)), stream.draw(_normalised(rest, p)), "correction")
        return Verdict(tuple(range(len(draft))), stream.draw(rows.law(len(draft))), "bonus")


def _normalised(rest: Tensor, p: Tensor) -> Tensor:
    """The residual law; p itself when rounding left no mass (p = q, where rejection has probability 0)."""
    mass = rest.sum()
    return rest / mass if mass > 0 else p
