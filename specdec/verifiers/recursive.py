"""Recursive rejection sampling: rejection with several candidates a node.

Sources: SpecInfer, Miao et al. 2023, arXiv 2305.09781; EAGLE, Li et al. 2024, arXiv 2401.15077, appendix A.2; without
replacement, Jeon et al. 2024, arXiv 2402.14160, and Sequoia, Chen et al. 2024, arXiv 2402.12374.

The children of a node are tested in the order they were drawn.  Child c is taken with probability min(1, p(c) / q(c));
if it is rejected, p becomes the residual norm([p - q]+) and the next child is tested against that.  When all are
rejected the correction is drawn from what p has become; at a leaf the bonus is drawn from p.

Why it is exact, from the last child backwards: whatever follows a rejection emits the law norm([p - q]+), and a token
c of law q is taken with min(1, p(c) / q(c)), so the two together emit p (token-wise rejection).  This asks one thing of
q: that it is the law in force when c was drawn, given its earlier siblings.  With replacement it is the same for all
of them; without replacement it has them removed and is renormalised.  Drafts store just that row, so one rule serves
both.  Points have q = 1 on themselves: accepted with p(c), else c is zeroed in p, which is renormalised.

A chain has one child a node: this is then token-wise rejection.  Children that were picked from q by their rank, or
pruned by it after they were drawn, are points; to score them with q is biased.
"""

from __future__ import annotations

from specdec.sampling import Stream
from specdec.tree import ROOT, Draft
from specdec.verifiers.base import TargetRows, Verdict, Verifier
from specdec.verifiers.residual import odds, residual


class Recursive(Verifier):
    name = "recursive"

    def verify(self, draft: Draft, rows: TargetRows, stream: Stream) -> Verdict:
        node, path = ROOT, []
        while True:
            p = rows.law(node + 1)
            children = draft.children(node)
            for child in children:
                if stream.accept(odds(draft, child, p)):
                    break
                p, _ = residual(draft, child, p)
            else:
                return Verdict(tuple(path), stream.draw(p), "correction" if children else "bonus")
            path.append(child)
            node = child
