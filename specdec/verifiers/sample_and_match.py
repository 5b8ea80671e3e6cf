"""Sample from the target and look whether the sample was drafted.

Sources: the tree verification of OPT-Tree, Wang et al. 2024, arXiv 2406.17276; testing the children one by one with
q = 1, as EAGLE-2 does (Li et al. 2024, arXiv 2406.16858), has the same law.

At each visited node one token is drawn from p; a child that holds it is followed, else the walk ends.  Everything
emitted is such a draw, from the row of the very text before it, so the law is the target's for any proposal of any
shape, however it was chosen (search, pruning by value, retrieval, a stale cache), as long as it was fixed before these
draws; sampled proposals are, since they come from a stream of their own.  There is one draw a node, and it is the one
emitted: to draw again for every path and keep the longest is biased.

What it loses: q is not used.  A level accepts with the p-mass of its children, which is all there is to gain from
points; one token sampled from q is matched with probability sum(p * q), where rejection accepts sum(min(p, q)).
Equal siblings add nothing: the first is followed.
"""

from __future__ import annotations

from specdec.sampling import Stream
from specdec.tree import ROOT, Draft
from specdec.verifiers.base import TargetRows, Verdict, Verifier


class SampleAndMatch(Verifier):
    name = "sample_and_match"

    def verify(self, draft: Draft, rows: TargetRows, stream: Stream) -> Verdict:
        node, path = ROOT, []
        while True:
            token = stream.draw(rows.law(node + 1))
            children = draft.children(node)
            found = next((child for child in children if draft.tokens[child] == token), None)
            if found is None:
                return Verdict(tuple(path), token, "correction" if children else "bonus")
            path.append(found)
            node = found
