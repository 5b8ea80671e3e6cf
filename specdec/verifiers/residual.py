"""What a rejected candidate leaves of the target's law: the arithmetic that the exact rules share.

A rule owes its node `value` * p: the whole of the target's law at the root, less where part of it was paid already.  A
candidate c drawn from q is taken with probability min(1, value * p(c) / q(c)), so that c pays min(q(c), value * p(c)).
What is still owed, [value * p - q]+, is the residual; its mass over the chance of getting there is the new value.  A
token chosen deterministically has q = 1 on itself: the residual is then p without it.
"""

from __future__ import annotations

from torch import Tensor

from specdec.tree import POINT, Draft


def odds(draft: Draft, node: int, p: Tensor, value: float = 1.0) -> float:
    """min(1, value * p(c) / q(c)) of the token c of `node`; 0 where the target would never say c."""
    token = draft.tokens[node]
    owed = value * float(p[token])
    q = 1.0 if draft.law == POINT else float(draft.q[node, token])
    return owed / q if owed < q else float(owed > 0)


def residual(draft: Draft, node: int, p: Tensor, value: float = 1.0) -> tuple[Tensor, float]:
    """The law norm([value * p - q]+) after `node` was rejected, and its mass before it was normalised."""
    rest = p * value
    if draft.law == POINT:
        rest[draft.tokens[node]] = 0.0
    else:
        rest = rest.sub_(draft.q[node].to(p.dtype)).clamp_(min=0.0)
    return normalised(rest, p)


def normalised(rest: Tensor, p: Tensor) -> tuple[Tensor, float]:
    """`rest` as a law, and its mass; p where rounding left none (such a rejection has probability 0)."""
    mass = float(rest.sum())
    return (rest / mass, mass) if mass > 0 else (p, 0.0)


def remaining(mass: float, value: float) -> float:
    """The new value of a node after a rejection: the mass still owed over the chance 1 - value + mass of owing it."""
    chance = mass + (1.0 - value)
    return mass / chance if chance > 0 else 1.0
