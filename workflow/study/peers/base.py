"""What an arm of the comparison is, and how it is timed.

The one idea: every arm is a function from prompt ids and a number of tokens to the ids it wrote and two times,
however the tool behind it works.  Speed is that of decoding alone: tokens after the first ones to arrive, over the
time since then, so that reading the prompt, which every tool does in its own way, is left out of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

AR, SPECULATIVE, PROMPT_LOOKUP, EARLY_EXIT = "ar", "speculative", "prompt_lookup", "early_exit"
MODES = {"language_model": SPECULATIVE, "eagle": SPECULATIVE, "ngram": PROMPT_LOOKUP, "layer_skip": EARLY_EXIT}
"""What a draft of each kind is called as a mode."""

OWN = "specdec"


@dataclass(frozen=True)
class Timed:
    """One generation: all ids, how many of them came after the first arrival, and the seconds those took; bytes that
    were read for them, where the arm knows."""

    ids: list[int]
    tokens: int
    seconds: float
    bytes_read: float | None = None


@dataclass(frozen=True)
class Arm:
    """A way to decode.  `run` None: it is not there, and `note` says why.

    `token_bytes`: what an AR arm reads for a token behind a context of the given length.
    """

    arm: str
    mode: str
    draft: str | None
    precision: str
    run: Callable[[Sequence[int], int], Timed] | None
    note: str | None = None
    token_bytes: Callable[[float], float] | None = field(default=None, compare=False)

    @property
    def is_baseline(self) -> bool:
        return self.arm == OWN and self.mode == AR


def arrivals(times: Sequence[tuple[float, int]], ids: Sequence[int]) -> Timed:
    """From when how many ids arrived: what came with the first arrival is not timed."""
    first, last = times[0], times[-1]
    return Timed(list(ids), sum(count for _, count in times[1:]), last[0] - first[0])
