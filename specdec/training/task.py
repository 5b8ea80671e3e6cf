"""What a method of training builds, and what the methods have in common."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from specdec.models import LoadedModel
from specdec.training.corpus import Corpus, Sample, frequent_tokens
from specdec.training.objective import Objective


@dataclass(frozen=True)
class Task:
    """What a method builds: what learns, from what, what the record says of it, and how it is written."""

    module: nn.Module
    objective: Objective
    corpus: Callable[[Sequence[Sample]], Corpus]
    shape: dict
    write: Callable[[Path], None]
    beside: Callable[[Sequence[Sample]], dict] = lambda held: {}
    """What more is measured on held-out text in the end."""
    settle: Callable[[Callable[[], float]], dict] | None = None
    """What is set anew when the training has ended, given its measure on held-out text."""


def vocabulary(
    flags: argparse.Namespace, target: LoadedModel, samples: Sequence[Sample]
) -> tuple[int | None, Tensor | None]:
    """The size asked for and the most frequent answer tokens; None for all."""
    size = getattr(flags, "vocabulary", None)
    return size, None if size is None else frequent_tokens(samples, size, target.model.vocabulary)


def record_in(folder: Path) -> dict | None:
    record = folder / "training.json"
    return json.loads(record.read_text("utf-8")) if record.is_file() else None
