"""A random stream that walks every branch of the code that ships, with its probability.

The code is run again from the start for each branch: choices already made are replayed from a script, the first new one
takes its first option, and the script then moves on to the next option, depth first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable

from torch import Tensor


class Branch:
    """One path through the choices; usable as every stream of a generation at once."""

    def __init__(self, script: list[int]):
        self._script = script
        self._made: list[int] = []
        self._options: list[int] = []
        self.probability = 1.0

    def accept(self, probability: float) -> bool:
        assert 0.0 <= probability <= 1.0, f"{probability} is no probability"
        return self._choose([(True, probability), (False, 1.0 - probability)])

    def draw(self, law: Tensor) -> int:
        weights = law.tolist()
        assert min(weights) >= 0.0 and abs(sum(weights) - 1.0) < 1e-9, f"{weights} is no law"
        return self._choose(list(enumerate(weights)))

    def _choose(self, options):
        options = [(value, weight) for value, weight in options if weight > 0.0]
        depth = len(self._made)
        choice = self._script[depth] if depth < len(self._script) else 0
        self._made.append(choice)
        self._options.append(len(options))
        value, weight = options[choice]
        self.probability *= weight
        return value

    def following(self) -> list[int] | None:
        """The script of the next path, or None behind the last."""
        made, options = self._made[:], self._options[:]
        while made and made[-1] + 1 == options[-1]:
            made.pop()
            options.pop()
        return [*made[:-1], made[-1] + 1] if made else None


def walk(run: Callable[[Branch], Hashable]) -> dict[Hashable, float]:
    """The law of `run`'s outcome: outcome -> probability."""
    law: dict[Hashable, float] = defaultdict(float)
    script: list[int] | None = []
    while script is not None:
        branch = Branch(script)
        outcome = run(branch)
        law[outcome] += branch.probability
        script = branch.following()
    assert abs(sum(law.values()) - 1.0) < 1e-9, "the branches do not sum to one"
    return dict(law)


def distance(law: dict, other: dict) -> float:
    """The largest difference of two laws."""
    return max(abs(law.get(key, 0.0) - other.get(key, 0.0)) for key in {*law, *other})
