"""Profiling a generation: which operator ran in which phase, and what memory it held.

The one idea: the loop marks the edges of its phases on an injected clock, so a clock that opens a profiler's range at
every mark labels everything that runs, and no line of the loop knows of it.  A profiler slows down what it looks at:
its shares are for proportions, its times for nothing else.  It sees no further than a call into C, so the engine keeps
time itself, and the clock reads that at the same edges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, cycle

from torch.profiler import ProfilerActivity, profile, record_function

from specdec.decode import Generation
from specdec.measure.clock import HostClock
from specdec.models.native.forward import PARTS, Engine, timer

PREFILL, DRAFT, TARGET, OTHER = "prefill", "draft", "target", "other"
PHASES = (PREFILL, DRAFT, TARGET, OTHER)
_MARKS = (PREFILL, PREFILL, OTHER), (DRAFT, TARGET, OTHER)
"""What begins at each mark: of the prefill (target, draft, then the edge of round 1), and of every round."""

PYTHON = "python"
"""The operator that stands for time inside a phase and outside every operator."""

CALL = "native::call"
"""A call of the engine, before it is cut into its parts."""


class PhaseClock(HostClock):
    """A host clock whose marks end one labelled range and begin the next."""

    def __init__(self):
        prefill, rounds = _MARKS
        self._next = chain(prefill, cycle(rounds))
        self._range = self._phase = None
        self._read = (0.0,) * len(PARTS)
        self.parts: dict[tuple[str, str], float] = defaultdict(float)
        """Seconds in the engine by phase and part, while `labelled` lasts."""

    def mark(self) -> float:
        self.end()
        self._phase = next(self._next)
        self._range = record_function(self._phase)
        self._range.__enter__()
        return super().mark()

    def end(self) -> None:
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None
            now = tuple(Engine.seconds or self._read)
            for part, before, after in zip(PARTS, self._read, now, strict=False):
                self.parts[self._phase, part] += after - before
            self._read = now


@dataclass(frozen=True)
class Operator:
    """Time spent in an operator itself, not in those it calls, within one phase."""

    phase: str
    name: str
    calls: int
    seconds: float


@dataclass(frozen=True)
class Profiled:
    operators: list[Operator]
    peak_bytes: int
    """The most memory that PyTorch held at once for what was allocated during the generation."""


def profiled(make: Callable[[PhaseClock], Generation]) -> Profiled:
    """Run the generation that `make` gives for a clock under the profiler."""
    clock = PhaseClock()
    generation = make(clock)
    with labelled(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        generation.run()
        clock.end()
    return Profiled(with_parts(operators(trace.events()), clock.parts), peak(trace))


def operators(events) -> list[Operator]:
    """Self times by phase and operator, largest first; what lies outside every phase is left out."""
    calls: dict[tuple[str, str], int] = defaultdict(int)
    spent: dict[tuple[str, str], float] = defaultdict(float)
    for event in events:
        phase, name = _phase_of(event), event.name
        if phase is None or name == "[memory]":
            continue
        key = (phase, PYTHON if name in PHASES else name)
        calls[key] += 1
        spent[key] += event.self_cpu_time_total / 1e6
    found = [Operator(*key, calls[key], seconds) for key, seconds in spent.items()]
    return sorted(found, key=lambda operator: -operator.seconds)


def with_parts(found: list[Operator], parts: Mapping[tuple[str, str], float]) -> list[Operator]:
    """The engine's calls cut into its parts, `native::part`; what is left of a call is the waking of its threads."""
    shown = []
    for operator in found:
        if operator.name == CALL:
            own = {part: parts.get((operator.phase, part), 0.0) for part in PARTS}
            own["threads"] = max(0.0, operator.seconds - sum(own.values()))
            shown += [replace(operator, name=f"native::{part}", seconds=spent) for part, spent in own.items()]
        else:
            shown.append(operator)
    return sorted(shown, key=lambda operator: -operator.seconds)


def _phase_of(event) -> str | None:
    """The outermost label that an event lies in."""
    found = None
    while event is not None:
        if event.name in PHASES:
            found = event.name
        event = event.cpu_parent
    return found


def peak(trace) -> int:
    """The highest level of what was allocated and not yet freed."""
    changes = [(event.time_range.start, event.cpu_memory_usage) for event in trace.events() if event.name == "[memory]"]
    if not changes:  # some versions give allocations to the operators instead
        changes = [(event.time_range.end, event.self_cpu_memory_usage) for event in trace.events()]
    level = highest = 0
    for _, change in sorted(changes, key=lambda item: item[0]):
        level += change
        highest = max(highest, level)
    return highest


class labelled:
    """While it lasts, every call of the engine is an operator, and the engine keeps time of its parts."""

    def __enter__(self) -> None:
        self._plain = plain = Engine.call

        def call(*arguments, **options) -> None:
            with record_function(CALL):
                plain(*arguments, **options)

        Engine.call, Engine.seconds = call, timer()

    def __exit__(self, *exception) -> None:
        Engine.call, Engine.seconds = self._plain, None
