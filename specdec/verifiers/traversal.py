"""Traversal verification: a tree is judged from its leaves to its root.

Source: Weng et al. 2025, arXiv 2505.12398.

A node v is reached with a value P: it has to emit P times the target's law behind v.  A leaf accepts its whole path
with probability P and draws the bonus from p.  Any other node first lets its children try, in the order they were
drawn: child c is visited with the value min(1, P * p(c) / q(c)).  If nothing below c accepts, what v still owes is
[P * p - q]+, of mass S: p becomes its law, P becomes S / (S + 1 - P).  When all children failed, v is a leaf with that
p and P.  The root has P = 1, and keeps it: it always accepts.

Why it is exact, from the leaves backwards: suppose a visit to c with value P_c emits P_c times the target's law behind
c.  Then c, drawn from q, pays q(c) * P_c = min(q(c), P * p(c)), and the visit fails with probability 1 - P + S; what is
owed then does not depend on which token c was, so the next child may start from it with its own q.  The sum runs over
the whole vocabulary, not over the siblings.  q must be the law in force when c was drawn, given its earlier siblings,
as for recursive rejection; drafts store that row.

On a chain this is block verification.  On trees it gains on recursive rejection by the same effect: a token that was
drafted too often may still be kept for the sake of what follows it.  With points P is never clipped, and there is
nothing to gain on sample-and-match.
"""

from __future__ import annotations

from specdec.sampling import Stream
from specdec.tree import ROOT, Draft
from specdec.verifiers.base import TargetRows, Verdict, Verifier
from specdec.verifiers.residual import odds, remaining, residual


class Traversal(Verifier):
    name = "traversal"

    def verify(self, draft: Draft, rows: TargetRows, stream: Stream) -> Verdict:
        return _visit(ROOT, 1.0, (), draft, rows, stream)


def _visit(
    node: int, value: float, path: tuple[int, ...], draft: Draft, rows: TargetRows, stream: Stream
) -> Verdict | None:
    """The verdict when `path`, which ends in `node`, or a longer one is accepted; None when all below it failed."""
    children = draft.children(node)
    if not children:
        accepted = node == ROOT or stream.accept(value)
        return Verdict(path, stream.draw(rows.law(node + 1)), "bonus") if accepted else None
    p = rows.law(node + 1)
    for child in children:
        chance = odds(draft, child, p, value)
        if chance > 0:  # else nothing below it could be accepted
            verdict = _visit(child, chance, (*path, child), draft, rows, stream)
            if verdict is not None:
                return verdict
        p, mass = residual(draft, child, p, value)
        value = remaining(mass, value)
    if node == ROOT or stream.accept(value):
        return Verdict(path, stream.draw(p), "correction")
    return None
