"""A greedy difference is explained by rounding, or it is a defect."""

import math

import pytest
import torch

from specdec.decode import Request, autoregressive
from specdec.measure.audit import NEAR_TIE, REAL_MISMATCH, audit, classify, first_difference
from tests.helpers import tiny


@pytest.mark.parametrize(
    "chosen, other, dtype, kind",
    [
        (23.5, 23.625, torch.bfloat16, NEAR_TIE),  # one step of bf16 at this size
        (23.5, 23.75, torch.bfloat16, NEAR_TIE),  # two
        (23.5, 24.0, torch.bfloat16, REAL_MISMATCH),
        (23.0, 25.0, torch.bfloat16, REAL_MISMATCH),
        (1.00005, 1.0, torch.float32, NEAR_TIE),
        (1.001, 1.0, torch.float32, REAL_MISMATCH),
        (0.0, 0.0, torch.bfloat16, NEAR_TIE),
    ],
)
def test_a_gap_is_a_near_tie_up_to_rounding_of_the_number_format(chosen, other, dtype, kind):
    assert classify(chosen, other, dtype) == kind == classify(other, chosen, dtype)


def test_the_first_difference_counts_a_missing_token():
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 4, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


def test_equal_texts_need_no_audit_and_a_wrong_token_is_a_real_mismatch():
    model = tiny.transformer("llama", dtype=torch.float32)
    prompt = tiny.prompt_of(6)
    text = autoregressive(model, Request(prompt, 8)).run().output_ids
    assert audit(model, prompt, text, text) is None
    logits = tiny.logits_of(tiny.reference("llama"), [*prompt, *text[:3]])[-1]
    wrong = int(logits.argmin())
    found = audit(model, prompt, text, [*text[:3], wrong, *text[4:]])
    assert (found.index, found.kind) == (3, REAL_MISMATCH)
    assert found.gap == pytest.approx(float(logits.max() - logits.min()), abs=1e-4)


def test_a_text_that_stops_early_is_a_real_mismatch():
    model = tiny.transformer("llama", dtype=torch.float32)
    found = audit(model, [5, 6], [7, 8, 9], [7, 8])
    assert (found.index, found.gap, found.kind) == (2, math.inf, REAL_MISMATCH)
