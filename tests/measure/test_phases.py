"""A profile puts every operator into the phase it ran in, and leaves the model as it was."""

from __future__ import annotations

import pytest
import torch

from specdec.decode import Request, autoregressive, speculative
from specdec.drafters import build_drafter
from specdec.measure.phases import CALL, PYTHON, Operator, PhaseClock, operators, profiled, with_parts
from specdec.models.native import obstacle
from specdec.models.native.forward import PARTS, Engine
from tests.helpers import tiny


def generation(kind: str | None, dtype=torch.bfloat16, tokens: int = 6):
    target = tiny.transformer("qwen3", layers=3, dtype=dtype)
    request = Request(tiny.prompt_of(9), tokens)

    def make(clock):
        if kind is None:
            return autoregressive(target, request, clock=clock)
        spec = {"kind": "layer_skip", "layers": 1}
        return speculative(target, build_drafter(spec, target, policy="fixed", k=2), request, k=2, clock=clock)

    return make


def test_the_baseline_spends_its_time_in_prefill_and_target():
    make = generation(None, torch.float32)
    found = profiled(make)
    by_phase = {phase: sum(o.seconds for o in found.operators if o.phase == phase) for phase in PHASES}
    assert by_phase["target"] > by_phase["draft"] and by_phase["prefill"] > 0
    names = {o.name for o in found.operators if o.phase == "target"}
    assert PYTHON in names and any("linear" in name or "mm" in name for name in names)
    passes = [o for o in found.operators if o.phase == "target" and o.name == PYTHON]
    assert [o.calls for o in passes] == [6], "one target phase a round"
    assert found.operators == sorted(found.operators, key=lambda o: -o.seconds)
    assert 0 < found.peak_bytes < 100e6


PHASES = ("prefill", "draft", "target", "other")
PRODUCTS = ("native::products", "mkldnn::_linear_pointwise", "aten::linear")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_draft_that_runs_the_target_is_drafting(dtype):
    """Layer skipping calls the target's own forward; what it does there belongs to the draft's phase."""
    found = profiled(generation("layer_skip", dtype))
    products = {
        phase: sum(o.calls for o in found.operators if o.phase == phase and o.name in PRODUCTS) for phase in PHASES
    }
    assert products["draft"] > 0 and products["target"] > 0 and products["other"] == 0


@pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))
def test_the_engines_calls_are_cut_into_their_parts_and_it_is_as_before():
    before = Engine.call
    found = profiled(generation(None))
    assert Engine.call is before and Engine.seconds is None
    parts = [o for o in found.operators if o.phase == "target" and o.name.startswith("native::")]
    assert {o.name.removeprefix("native::") for o in parts} == {*PARTS, "threads"}
    assert {o.calls for o in parts} == {6}, "one call a round"
    assert all(o.seconds > 0 for o in parts if o.name != "native::threads")


def test_the_parts_of_a_call_add_up_to_it():
    found = [Operator("target", CALL, 3, 1.0), Operator("target", "aten::mm", 1, 0.5), Operator("draft", CALL, 1, 0.1)]
    parts = {("target", "products"): 0.6, ("target", "attention"): 0.25, ("draft", "rows"): 0.2}
    cut = with_parts(found, parts)
    assert [(o.phase, o.name, round(o.seconds, 6)) for o in cut if o.seconds] == [
        ("target", "native::products", 0.6),
        ("target", "aten::mm", 0.5),
        ("target", "native::attention", 0.25),
        ("draft", "native::rows", 0.2),
        ("target", "native::threads", 0.15),
    ]


def test_the_text_is_the_same_with_the_profiler_looking_on():
    make = generation("layer_skip")
    clock = PhaseClock()
    seen = make(clock)
    seen.run()
    clock.end()
    plain = autoregressive(
        tiny.transformer("qwen3", layers=3, dtype=torch.bfloat16), Request(tiny.prompt_of(9), 6)
    ).run()
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
