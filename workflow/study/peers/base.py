"""What an arm of the comparison is, and how it is timed.

The one idea: every arm is a function from prompt ids and a number of tokens to the ids it wrote and two times,
however the tool behind it works.  Speed is that of decoding alone: tokens after the first ones to arrive, over the
time since then, so that reading the prompt, which every tool does in its own way, is left out of all.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from specdec.errors import UserError
from workflow.study.config import StudyConfig

AR, SPECULATIVE, PROMPT_LOOKUP, EARLY_EXIT = "ar", "speculative", "prompt_lookup", "early_exit"
MODES = {"language_model": SPECULATIVE, "eagle": SPECULATIVE, "ngram": PROMPT_LOOKUP, "layer_skip": EARLY_EXIT}
"""What a draft of each kind is called as a mode."""

OWN = "specdec"
REQUIREMENTS = "env/requirements-peers.txt"


@dataclass(frozen=True)
class Setting:
    """What a tool is given: the study's configuration, K, the longest text, drafts included, and how many bytes the
    target's weights and a cached token of its have in the study's number format."""

    config: StudyConfig
    k: int
    context: int
    weight_bytes: int
    row_bytes: int


@dataclass(frozen=True)
class TokenBytes:
    """What is read for a token behind a context of some length."""

    weights: int
    row: int

    def __call__(self, context: float) -> float:
        return self.weights + self.row * context


@dataclass(frozen=True)
class Timed:
    """One generation: all ids, how many of them came after the first arrival, and the seconds those took; bytes that
    were read for them, where the arm knows, and what the machine could have read meanwhile, by its bandwidth right
    after."""

    ids: list[int]
    tokens: int
    seconds: float
    bytes_read: float | None = None
    readable: float | None = None


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


class ToolFailed(Exception):
    """A tool that failed in a process of its own; the message is the note of its row."""


def present(name: str, precision: str, make: Callable[[], Iterable[Arm]]) -> Iterator[Arm]:
    """The arms of a tool, or one row that says why there are none."""
    try:
        yield from make()
    except ImportError:
        yield Arm(name, AR, None, precision, None, f"missing: not installed; pip install -r {REQUIREMENTS}")
    except UserError as error:
        yield Arm(name, AR, None, precision, None, f"missing: {error}")
    except Exception as error:  # a tool of others may fail in any way; the row says how
        if not isinstance(error, ToolFailed):
            traceback.print_exc()
        yield Arm(name, AR, None, precision, None, failure(error))


def failure(error: Exception) -> str:
    """The note of an arm that failed."""
    if isinstance(error, ToolFailed):
        return str(error)
    said = str(error).strip().splitlines()
    return f"failed: {type(error).__name__}: {said[0] if said else 'no message'}"


def arrivals(times: Sequence[tuple[float, int]], ids: Sequence[int]) -> Timed:
    """From when how many ids arrived: what came with the first arrival is not timed."""
    first, last = times[0], times[-1]
    return Timed(list(ids), sum(count for _, count in times[1:]), last[0] - first[0])
