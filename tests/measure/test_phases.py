"""A profile puts every operator into the phase it ran in, and leaves the model as it was."""

from __future__ import annotations

import pytest
import torch

from specdec.decode import Request, autoregressive, speculative
from specdec.drafters import build_drafter
from specdec.measure.phases import PYTHON, PhaseClock, operators, profiled
from tests.helpers import tiny


def generation(kind: str | None, dtype=torch.bfloat16, tokens: int = 6):
    target = tiny.transformer("qwen3", layers=3, dtype=dtype)
    request = Request(tiny.prompt_of(9), tokens)

    def make(clock):
        if kind is None:
            return autoregressive(target, request, clock=clock)
        spec = {"kind": "layer_skip", "layers": 1}
        return speculative(target, build_drafter(spec, target, policy="fixed", k=2), request, k=2, clock=clock)

    return target, make


def test_the_baseline_spends_its_time_in_prefill_and_target():
    target, make = generation(None)
    found = profiled(make, target)
    by_phase = {phase: sum(o.seconds for o in found.operators if o.phase == phase) for phase in PHASES}
    assert by_phase["target"] > by_phase["draft"] and by_phase["prefill"] > 0
    names = {o.name for o in found.operators if o.phase == "target"}
    assert PYTHON in names and any("linear" in name or "mm" in name for name in names)
    passes = [o for o in found.operators if o.phase == "target" and o.name == PYTHON]
    assert [o.calls for o in passes] == [6], "one target phase a round"
    assert found.operators == sorted(found.operators, key=lambda o: -o.seconds)
    assert 0 < found.peak_bytes < 100e6


PHASES = ("prefill", "draft", "target", "other")
PRODUCTS = ("mkldnn::_linear_pointwise", "aten::linear")


def test_a_draft_that_runs_the_target_is_drafting():
    """Layer skipping calls the target's own forward; what it does there belongs to the draft's phase."""
    target, make = generation("layer_skip")
    found = profiled(make, target)
    products = {
        phase: sum(o.calls for o in found.operators if o.phase == phase and o.name in PRODUCTS) for phase in PHASES
    }
    assert products["draft"] > 0 and products["target"] > 0 and products["other"] == 0


@pytest.mark.skipif(tiny.transformer("qwen3", layers=3, dtype=torch.bfloat16).fused is None, reason="no C compiler")
def test_calls_into_c_are_named_and_the_model_is_as_before():
    target, make = generation(None)
    before = target.fused
    found = profiled(make, target)
    assert target.fused is before
    attention = [o for o in found.operators if o.name == "fused::attend" and o.phase == "target"]
    assert [o.calls for o in attention] == [6 * 3], "one a layer and a round"


def test_the_text_is_the_same_with_the_profiler_looking_on():
    target, make = generation("layer_skip")
    clock = PhaseClock()
    seen = make(clock)
    seen.run()
    clock.end()
    plain = autoregressive(target, Request(tiny.prompt_of(9), 6)).run()
    assert seen.record.output_ids == plain.output_ids


class Event:
    def __init__(self, name, microseconds, parent=None):
        self.name, self.self_cpu_time_total, self.cpu_parent = name, microseconds, parent


def test_an_operator_counts_where_its_outermost_label_lies():
    draft, target = Event("draft", 5), Event("target", 7)
    inner = Event("aten::mm", 100, Event("aten::linear", 10, draft))
    found = operators([draft, target, inner, inner.cpu_parent, Event("aten::mm", 50, target), Event("aten::mm", 1000)])
    assert [(o.phase, o.name, o.calls, round(1e6 * o.seconds)) for o in found] == [
        ("draft", "aten::mm", 1, 100),
        ("target", "aten::mm", 1, 50),
        ("draft", "aten::linear", 1, 10),
        ("target", PYTHON, 1, 7),
        ("draft", PYTHON, 1, 5),
    ]
