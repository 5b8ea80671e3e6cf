"""Block verification: a chain is judged from its end, not token by token.

Source: Sun et al. 2024, arXiv 2403.10444.

P_0 = 1, P_i = min(1, P_(i-1) * p(x_i) / q(x_i)) along the chain.  The longest prefix that passes is kept.  The whole
chain passes with probability P_n, its first i < n tokens with h_i = Z / (Z + 1 - P_i), Z = sum([P_i * p - q]+) of the
rows behind them; each is tested on its own, whatever became of the longer ones.  What follows comes from p behind the
whole chain, else from norm([P_i * p - q]+).

Why it is exact, from the end backwards: given the first i tokens, the rule emits P_i times the target's law of what
follows, and nothing else through this prefix.  At the end it does so by construction.  Before it, token x is drawn
with q(x) and pays q(x) * P_(i+1) = min(q(x), P_i * p(x)); what is still owed, [P_i * p - q]+, has mass Z and is paid
when all longer prefixes failed, which happens with probability 1 - P_i + Z: with h_i it is paid exactly.  At the root
P_0 = 1.  How long the chain is may depend on the tokens in it, as long as every token drawn is in it.

No rule that knows one path and these laws keeps more tokens: 1 + sum(E[P_i]) are emitted, at least as many as by
token-wise rejection.  P_i of points is the product of p(x_i): nothing is clipped, and nothing is gained.
"""

from __future__ import annotations

from specdec.sampling import Stream
from specdec.tree import Draft
from specdec.verifiers.base import TargetRows, Verdict, Verifier
from specdec.verifiers.residual import odds, remaining, residual


class Block(Verifier):
    name = "block"
    shapes = frozenset({"chain"})

    def verify(self, draft: Draft, rows: TargetRows, stream: Stream) -> Verdict:
        values, laws = [1.0], []
        for i in range(len(draft)):
            laws.append(rows.law(i))
            values.append(odds(draft, i, laws[i], values[i]))
            if values[-1] == 0:  # no prefix from here on can pass
                break
        else:
            if not draft or stream.accept(values[-1]):
                return Verdict(tuple(range(len(draft))), stream.draw(rows.law(len(draft))), "bonus")
        for i in reversed(range(len(laws))):
            rest, mass = residual(draft, i, laws[i], values[i])
            if i == 0 or stream.accept(remaining(mass, values[i])):
                break
        return Verdict(tuple(range(i)), stream.draw(rest), "correction")
