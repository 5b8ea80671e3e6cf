"""Clocks are injected, so that tests can count and fake them.

`now` is the host's monotonic clock.  `mark` records a point between phases and `between` gives the seconds from one
mark to another, read only after the round's verdict has synchronised with the device: on a GPU marks are events in
the stream, so timing phases adds no synchronisation of its own.  `synchronize` is called at the edges of a
generation.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    def now(self) -> float: ...

    def mark(self) -> Any: ...

    def between(self, first: Any, second: Any) -> float: ...

    def synchronize(self) -> None: ...


class HostClock:
    """For models on the CPU: everything has happened when a call returns."""

    def now(self) -> float:
        return time.perf_counter()

    mark = now

    def between(self, first: float, second: float) -> float:
        return second - first

    def synchronize(self) -> None:
        pass


class CudaClock(HostClock):
    """For models on a GPU: marks are events."""

    def __init__(self, device: torch.device):
        self._device = device

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def between(self, first: torch.cuda.Event, second: torch.cuda.Event) -> float:
        second.synchronize()
        return first.elapsed_time(second) / 1000.0

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)


def clock_for(device: torch.device) -> Clock:
    return CudaClock(device) if device.type == "cuda" else HostClock()
