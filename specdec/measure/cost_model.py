"""What speculation should gain, from what its parts cost and how often guesses are right (Leviathan et al.,
2211.17192).

The one idea: a round yields E[tokens] and costs its price in *baseline steps* (the time of a target pass over one
token); the speedup is yield over price.  Leviathan's formula takes independent acceptances of one rate alpha and free
scoring; the general form takes acceptance by position and the measured price of a pass as wide as the draft.

Functions here are arithmetic alone, exact for `Fraction`s; `forward_times.py` measures what they are fed with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specdec.errors import UserError

Number = Any
"""An int, a float or a Fraction: whatever goes in comes out."""


def expected_tokens(alpha: Number, k: int) -> Number:
    """Tokens a round yields if each of K positions is accepted with probability alpha, independently:
    1 + alpha + ... + alpha^K, which is (1 - alpha^(K+1)) / (1 - alpha)."""
    return expected_by_position([alpha] * k)


def expected_by_position(conditional: Sequence[Number]) -> Number:
    """The same from the acceptance of each drafted position, given that everything before it was accepted."""
    total, reach = 1, 1
    for alpha in conditional:
        reach = reach * alpha
        total = total + reach
    return total


def expected_over_rounds(drafted: Iterable[int], conditional: Sequence[Number]) -> Number:
    """The mean over rounds that drafted so many positions each; positions beyond the known ones are never accepted."""
    depths = list(drafted)
    if not depths:
        raise ValueError("no rounds")
    by_depth = [expected_by_position(conditional[:depth]) for depth in range(len(conditional) + 1)]
    return sum(by_depth[min(depth, len(conditional))] for depth in depths) / len(depths)


def leviathan_speedup(alpha: Number, k: int, c: Number) -> Number:
    """(1 - alpha^(K+1)) / ((1 - alpha) (1 + c K)): `c` is a draft step's time over a target pass's, scoring is free."""
    return expected_tokens(alpha, k) / (1 + c * k)


@dataclass(frozen=True)
class Costs:
    """In baseline steps: one draft step, a target pass by width (1 at width 1), and everything else a round does."""

    draft_step: Number
    verify: Callable[[int], Number]
    other: Number = 0

    def price(self, drafted: int) -> Number:
        """Of a round that drafts a chain of so many tokens and scores them with the root."""
        return self.draft_step * drafted + self.verify(drafted + 1) + self.other

    def mean_price(self, drafted: Iterable[int]) -> Number:
        depths = list(drafted)
        return sum(map(self.price, depths)) / len(depths)


def break_even(price: float, k: int) -> float | None:
    """The independent acceptance at which K drafted tokens a round just pay their price; None where no rate does.

    `expected_tokens` rises with alpha from 1 to K + 1, so that bisection finds the only root; a price of 1 or less is
    paid by any acceptance.
    """
    if price > k + 1:
        return None
    low, high = 0.0, 1.0
    if price <= 1:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, k) < price else (low, middle)
    return high


def best_depth(conditional: Sequence[Number], costs: Costs, drafted: Sequence[int] | None = None) -> tuple[int, Number]:
    """(K, speedup) of the fixed depth from 0 (do not draft) to the last known position that the model expects most of;
    of equal ones the shallowest.

    `drafted`: how many tokens each round could draft (look-ups find fewer than asked for, texts end); as many as are
    known where it is not given.
    """
    limits = [len(conditional)] if drafted is None else drafted
    best = (0, 1)
    for k in range(1, len(conditional) + 1):
        depths = [min(k, limit) for limit in limits]
        gain = expected_over_rounds(depths, conditional) / costs.mean_price(depths)
        if gain > best[1]:
            best = (k, gain)
    return best


def lowest_break_even(costs: Costs, depths: Iterable[int]) -> tuple[int, float] | None:
    """(K, alpha): the depth that pays at the lowest acceptance; None where no depth can pay."""
    found = [(alpha, k) for k in depths if (alpha := break_even(float(costs.price(k)), k)) is not None]
    return (min(found)[1], min(found)[0]) if found else None


@dataclass(frozen=True)
class Surface:
    """Milliseconds of one call by (width, context): linear between measured points, constant beyond them."""

    points: Mapping[tuple[int, int], float]

    def __post_init__(self) -> None:
        widths, contexts = self.widths, self.contexts
        if len(self.points) != len(widths) * len(contexts) or not self.points:
            raise UserError("cost model: every width must be timed at every context length; make the table again")

    @property
    def widths(self) -> list[int]:
        return sorted({width for width, _ in self.points})

    @property
    def contexts(self) -> list[int]:
        return sorted({context for _, context in self.points})

    def at(self, width: float, context: float) -> float:
        """Milliseconds of a call `width` tokens wide behind `context` cached ones."""
        by_context = [
            between(width, self.widths, [self.points[known, length] for known in self.widths])
            for length in self.contexts
        ]
        return between(context, self.contexts, by_context)

    def relative(self, width: float, context: float, unit: float) -> float:
        """The same in units of `unit` milliseconds."""
        return self.at(width, context) / unit


def between(place: Number, places: Sequence[Number], values: Sequence[Number]) -> Number:
    """Linear interpolation over ascending `places`; the end values outside."""
    if place <= places[0]:
        return values[0]
    for i in range(1, len(places)):
        if place <= places[i]:
            share = (place - places[i - 1]) / (places[i] - places[i - 1])
            return values[i - 1] + share * (values[i] - values[i - 1])
    return values[-1]
