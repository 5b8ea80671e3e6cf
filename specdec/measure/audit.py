"""What a greedy difference means.

Two runs of one model can differ where two logits nearly tie and a pass of another width rounds the other way.  The text
up to the first difference is fed once more, one token at a time, as the baseline does; the gap between the two tokens'
logits there says whether rounding explains the difference (`near_tie`) or not (`real_mismatch`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specdec.models.transformer import Transformer

NEAR_TIE, REAL_MISMATCH = "near_tie", "real_mismatch"
ABSOLUTE = 1e-4
"""In float32 and wider, a gap up to this is a near tie."""
STEPS = 2
"""In bf16 and float16, a gap up to this many rounding steps of the larger logit is."""


@dataclass(frozen=True)
class Divergence:
    """`index` of the first differing token, the logit `gap` there, and what it means."""

    index: int
    gap: float
    kind: str


def classify(chosen: float, other: float, dtype: torch.dtype) -> str:
    """Is the gap between two logits within rounding for this number format?"""
    gap = abs(chosen - other)
    if dtype in (torch.float32, torch.float64):
        return NEAR_TIE if gap <= ABSOLUTE else REAL_MISMATCH
    largest = max(abs(chosen), abs(other))
    step = torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(largest)) if largest > 0 else 0.0
    return NEAR_TIE if gap <= STEPS * step else REAL_MISMATCH


def first_difference(baseline: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token that differs, a missing one included; None when equal."""
    if list(baseline) == list(other):
        return None
    shared = min(len(baseline), len(other))
    return next((i for i in range(shared) if baseline[i] != other[i]), shared)


def audit(
    model: Transformer, prompt: Sequence[int], baseline: Sequence[int], other: Sequence[int]
) -> Divergence | None:
    """Explain the first difference between two greedy texts, or None when there is none."""
    index = first_difference(baseline, other)
    if index is None:
        return None
    if index >= min(len(baseline), len(other)):  # one text ends where the other goes on: no rounding does that
        return Divergence(index, math.inf, REAL_MISMATCH)
    text = [*prompt, *baseline[:index]]
    cache = model.new_cache(len(text))
    if len(prompt) > 1:
        model.forward(text[: len(prompt) - 1], cache, logits=False)
    for token in text[len(prompt) - 1 :]:
        logits = model.forward([token], cache).logits[0]
    a, b = float(logits[baseline[index]]), float(logits[other[index]])
    return Divergence(index, abs(a - b), classify(a, b, model.dtype))
