"""Token-wise rejection sampling of a chain.

Sources: Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318.

A drafted token x is accepted with probability min(1, p(x) / q(x)); at the first rejection the correction is drawn from
the residual norm([p - q]+); after full acceptance the bonus is drawn from p.  What is emitted follows p exactly,
whatever q is, as long as q is the very law x was drawn from.  A token chosen deterministically has q = 1 on itself:
it is accepted with probability p(x), and the residual is p without x.
"""

from __future__ import annotations

from specdec.sampling import Stream
from specdec.tree import Draft
from specdec.verifiers.base import TargetRows, Verdict, Verifier
from specdec.verifiers.residual import odds, residual


class Rejection(Verifier):
    name = "rejection"
    shapes = frozenset({"chain"})

    def verify(self, draft: Draft, rows: TargetRows, stream: Stream) -> Verdict:
        for i in range(len(draft)):
            p = rows.law(i)
            if not stream.accept(odds(draft, i, p)):
                rest, _ = residual(draft, i, p)
                return Verdict(tuple(range(i)), stream.draw(rest), "correction")
        return Verdict(tuple(range(len(draft))), stream.draw(rows.law(len(draft))), "bonus")
