"""The greedy walk: follow the child that is the target's largest logit.

Exact at temperature 0, where the target's law is one-hot, for any proposal of any shape: what is emitted at every
node is the argmax itself, drafted or not.
"""

from __future__ import annotations

from specdec.sampling import Stream
from specdec.tree import ROOT, Draft
from specdec.verifiers.base import TargetRows, Verdict, Verifier


class Greedy(Verifier):
    name = "greedy"
    greedy_only = True

    def verify(self, draft: Draft, rows: TargetRows, stream: Stream) -> Verdict:
        node, path = ROOT, []
        while True:
            best = rows.argmax(node + 1)
            children = draft.children(node)
            found = next((child for child in children if draft.tokens[child] == best), None)
            if found is None:
                return Verdict(tuple(path), best, "correction" if children else "bonus")
            path.append(found)
            node = found
