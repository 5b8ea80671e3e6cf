"""K-SEQ: k candidates drawn independently from one law, all tested alike.

Source: SpecTr, Sun et al. 2023, arXiv 2310.15141.

For a division factor rho in [1, k], each candidate c is taken with probability min(1, p(c) / (rho * q(c))), in order.
One test accepts with beta = sum(min(q, p / rho)), so token x is accepted with probability min(q(x), p(x) / rho) * s,
s = 1 + (1 - beta) + ... + (1 - beta)^(k - 1), and some candidate with 1 - (1 - beta)^k = s * beta.  If none is, the
correction is drawn from the residual p - min(q, p / rho) * s, and the two together emit p.

This is exact if the residual has no negative part: where q > p / rho it is p * (1 - s / rho), elsewhere it is
p - q * s >= q * (rho - s), so s <= rho is enough.  As rho grows, s * beta = 1 - (1 - beta)^k falls and rho * beta
rises: s <= rho holds from one rho on, and that smallest one accepts the most.  Bisection returns its upper end, where
it holds, so that an inexact root costs acceptance, of the order of its error, and never exactness.

The candidates of a node must be independent draws of one law: `with_replacement`.  Deeper trees are verified level by
level.  One candidate a node, a chain of whatever law, has rho = 1: token-wise rejection.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdec.sampling import Stream
from specdec.tree import ROOT, WITH_REPLACEMENT, Draft
from specdec.verifiers.base import TargetRows, Verdict, Verifier
from specdec.verifiers.residual import normalised, odds, residual

TOLERANCE = 1e-7


class SpecTr(Verifier):
    name = "spectr"
    laws = frozenset({WITH_REPLACEMENT})

    def check_draft(self, draft: Draft) -> None:
        """A single candidate is independent of its siblings, since it has none: a chain may follow any law."""
        if not draft.is_chain:
            super().check_draft(draft)

    def verify(self, draft: Draft, rows: TargetRows, stream: Stream) -> Verdict:
        node, path = ROOT, []
        while True:
            p = rows.law(node + 1)
            children = draft.children(node)
            q = draft.q[children[0]].to(p.dtype) if len(children) > 1 else None
            rho = 1.0 if q is None else division_factor(p, q, len(children))
            for child in children:
                if stream.accept(odds(draft, child, p, 1.0 / rho)):
                    break
            else:
                if q is not None:
                    p = _residual(p, q, rho, len(children))
                elif children:
                    p, _ = residual(draft, children[0], p)
                return Verdict(tuple(path), stream.draw(p), "correction" if children else "bonus")
            path.append(child)
            node = child


def division_factor(p: Tensor, q: Tensor, k: int) -> float:
    """The smallest rho in [1, k] with s(rho) <= rho, to a relative `TOLERANCE` from above."""
    both = (p > 0) & (q > 0)
    p, q = p[both].double(), q[both].double()
    low, high = 1.0, float(k)
    if _tries(p, q, low, k) <= low:
        return low
    while high - low > TOLERANCE * high:
        middle = (low + high) / 2
        if _tries(p, q, middle, k) <= middle:
            high = middle
        else:
            low = middle
    return high


def _tries(p: Tensor, q: Tensor, rho: float, k: int) -> float:
    """s: the expected number of candidates looked at.  Summed, since (1 - (1 - beta)^k) / beta has no value at 0."""
    rejected = max(0.0, 1.0 - float(torch.minimum(q, p / rho).sum()))
    return sum(rejected**i for i in range(k))


def _residual(p: Tensor, q: Tensor, rho: float, k: int) -> Tensor:
    rest = p - torch.minimum(q, p / rho) * _tries(p, q, rho, k)
    return normalised(rest.clamp_(min=0.0), p)[0]
