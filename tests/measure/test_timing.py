"""Calls alternate, medians carry intervals, a draft can be brought back to the start of a round, limits are limits."""

from __future__ import annotations

import pytest
import torch

from specdec.drafters import Eagle, NGram, build_drafter
from specdec.measure import bandwidth
from specdec.measure.alternate import alternate, median
from specdec.measure.forward_times import StartedDraft, draft_call, filled_cache, fitting, target_call, whole_call
from specdec.models.loading import LoadedModel
from tests.helpers import heads, tiny


class Ticks:
    """A clock that moves one second with every look, and counts who waits for the device."""

    def __init__(self):
        self.time, self.waits = 0.0, 0

    def now(self) -> float:
        self.time += 1.0
        return self.time

    def mark(self):
        return self.now()

    def between(self, first, second):
        return second - first

    def synchronize(self):
        self.waits += 1


def test_every_repetition_goes_through_all_calls_once_and_the_warm_up_does_not_count():
    order = []

    def call(name, times):
        def run():
            order.append(name)
            return next(times)

        return run

    calls = {name: call(name, iter([100.0, 1.0 + i, 2.0 + i, 3.0 + i])) for i, name in enumerate("abc")}
    samples = alternate(calls, repeats=3)
    assert samples == {"a": [1, 2, 3], "b": [2, 3, 4], "c": [3, 4, 5]}
    rounds = [order[i : i + 3] for i in range(0, 12, 3)]
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds)
    assert len({tuple(names) for names in rounds}) > 1, "nobody always goes first"


def test_a_median_lies_in_its_interval_and_few_samples_have_none():
    found = median([3.0, 1.0, 2.0, 10.0, 2.5])
    assert found.value == 2.5 and 1.0 <= found.low <= found.value <= found.high <= 10.0
    assert median([3.0, 1.0, 2.0, 10.0, 2.5]) == found
    assert median([4.0] * 5) == median([4.0] * 7)
    assert (median([1.0, 2.0]).value, median([1.0, 2.0]).low) == (1.5, None)
    for bad in ([], [1.0, float("nan")]):
        with pytest.raises(ValueError):
            median(bad)


def test_a_target_pass_leaves_the_cache_as_it_was_found():
    model, clock = tiny.transformer("qwen3"), Ticks()
    cache = filled_cache(model, context=40, spare=8)
    assert cache.length == 40 and cache.keys[:, :, :40].abs().min() > 0 and not cache.keys[:, :, 40:].any()
    call = target_call(model, cache, 40, 8, clock)
    assert [call() for _ in range(3)] == [1.0] * 3 and clock.waits == 6
    assert cache.length == 48  # of the last call; the next one cuts it back
    wide = cache.keys[:, :, 40:48].clone()
    call()
    assert torch.equal(cache.keys[:, :, 40:48], wide)


def drafts_of(target):
    second = LoadedModel(tiny.transformer("llama", layers=1, seed=3), None, "", "")
    config = heads.config_of()
    head = Eagle(config, heads.weights_of(config), target)
    return {
        "language_model": build_drafter({"kind": "language_model"}, target, policy="fixed", k=4, draft=second),
        "layer_skip": build_drafter({"kind": "layer_skip", "layers": 2}, target, policy="fixed", k=4),
        "eagle": build_drafter({"kind": "eagle", "head": "h"}, target, policy="fixed", k=4, draft=head),
    }


@pytest.mark.parametrize("kind", ["language_model", "layer_skip", "eagle"])
def test_a_draft_step_can_be_timed_again_and_again(kind):
    target, clock = heads.target_of(), Ticks()
    started = StartedDraft(drafts_of(target)[kind].model, target, context=30, rounds=20, spare=8)
    seen, model = [], started.model
    root, step = model.root, model.step
    model.root = lambda: seen.append(("root", 1)) or root()
    model.step = lambda tokens, parents: seen.append(("step", len(tokens))) or step(tokens, parents)
    calls = [draft_call(started, width, clock) for width in (1, 4, 8)]
    for _ in range(6):
        assert [call() for call in calls] == [1.0] * 3
    assert seen[:5] == [("root", 1), ("root", 1), ("step", 4), ("root", 1), ("step", 8)]


@pytest.mark.parametrize("kind", ["language_model", "layer_skip", "eagle"])
def test_a_draft_is_timed_behind_texts_of_several_lengths_in_turns(kind):
    target, clock = heads.target_of(), Ticks()
    model = drafts_of(target)[kind].model
    lengths = (10, 30)
    texts = {length: StartedDraft(model, target, length, rounds=20, spare=8) for length in lengths}
    calls = {length: draft_call(started, 4, clock) for length, started in texts.items()}
    for turn in range(1, 4):
        for length in lengths:
            calls[length]()
            held = texts[length].model._cache.length
            assert length - 1 <= held <= length + turn + 1, f"behind {length} tokens the draft read {held}"


def test_a_look_up_is_timed_where_it_finds_something(monkeypatch):
    target, clock = tiny.transformer(), Ticks()
    drafter = build_drafter({"kind": "ngram"}, target, policy="fixed", k=4)
    found = []
    propose = NGram.propose
    monkeypatch.setattr(NGram, "propose", lambda self, budget: found.append(propose(self, budget)) or found[-1])
    calls = [whole_call(drafter, target, context, 4, clock) for context in (200, 2)]
    assert [call() for call in calls] == [1.0, 1.0]
    assert [len(draft) for draft in found] == [4, 0]


def test_contexts_beyond_the_models_positions_are_left_out():
    assert fitting(tiny.transformer(), [64, 224, 225, 4096], spare=32) == [64, 224]


@pytest.mark.parametrize("threads", [1, 2])
def test_bandwidth_is_bytes_over_the_fastest_pass(threads):
    class Slowing(Ticks):
        def now(self):
            self.time += 0.5 + 0.01 * self.waits
            return self.time

    clock = Slowing()
    found = bandwidth.read_bandwidth(threads, size=1 << 20, passes=3, clock=clock)
    # the second pass is the first that counts: the clock had waited for three times before its end
    assert found.bytes_per_s == pytest.approx((1 << 20) / (0.5 + 0.01 * 4))
    assert found.method in ("c", "torch")


def test_without_a_compiler_bandwidth_is_still_measured(monkeypatch):
    monkeypatch.setattr(bandwidth, "_reader", lambda: None)
    found = bandwidth.read_bandwidth(1, size=1 << 20, passes=3)
    assert found.method == "torch" and found.bytes_per_s > 0


def test_every_word_of_the_buffer_is_read():
    reader = bandwidth._reader()
    if reader is None:
        pytest.skip("no C compiler")
    words = torch.arange(1 << 12, dtype=torch.int64)
    assert reader(words.data_ptr(), len(words)) == int(words.sum())


def test_the_arithmetics_peak_counts_two_operations_a_multiplication():
    assert bandwidth.matmul_peak(torch.float32, size=16, passes=3, clock=Ticks()) == 2 * 16**3
