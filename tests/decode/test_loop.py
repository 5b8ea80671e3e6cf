"""The loop's promises besides the law: counts, ends, refusals, time and seeds."""

import itertools
import random

import pytest
import torch

from specdec import decode
from specdec.decode import CONTEXT, END_OF_TEXT, LENGTH, Request, autoregressive, speculative
from specdec.drafters import Chain, LanguageModel, LayerSkip, NGram, Nothing
from specdec.errors import UserError
from specdec.growth import build_rule
from specdec.sampling import Sampling
from specdec.verifiers import build_verifier
from tests.helpers import oracle, tiny

HOT = Sampling(temperature=1.0)


def target(**changes):
    return tiny.transformer("qwen3", **changes)


def identity(k, model=None) -> Chain:
    """The draft is the target."""
    return Chain(Steps(model or target()), build_rule("fixed", k))


class Steps(LanguageModel):
    """Counts its passes behind the prefill."""

    steps = 0

    def root(self):
        self.steps += 1
        return super().root()

    def step(self, tokens, parents):
        self.steps += 1
        return super().step(tokens, parents)


def baseline(prompt, count, **options):
    return autoregressive(target(), Request(prompt, count, **options)).run().output_ids


# -- a draft equal to the target --------------------------------------------------------------------------------------


def test_four_drafted_and_a_bonus_are_five_tokens_in_one_round_of_four_draft_steps():
    drafter = identity(4)
    record = speculative(target(), drafter, Request(tiny.prompt_of(6), 5), k=4).run()
    assert len(record.rounds) == 1 and len(record.output_ids) == 5
    assert drafter.model.steps == 4
    assert record.rounds[0].source == "bonus" and record.rounds[0].accepted == 4


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-6, 1.0])
@pytest.mark.parametrize("k", range(1, 9))
def test_a_draft_equal_to_the_target_is_accepted_whole_in_every_round(k, temperature):
    sampling, count = Sampling(temperature=temperature, top_p=0.95), 40
    record = speculative(target(), identity(k), Request(tiny.prompt_of(6), count, sampling), k=k).run()
    left = count
    for r in record.rounds:
        assert r.requested == r.drafted == r.accepted == min(k, left - 1)
        assert len(r.tokens) == r.accepted + 1 and r.source == "bonus"
        left -= len(r.tokens)


def test_acceptance_does_not_decay_over_twenty_rounds():
    record = speculative(target(), identity(4), Request(tiny.prompt_of(6), 100, HOT), k=4).run()
    assert [r.accepted for r in record.rounds] == [4] * 20
    assert [len(r.tokens) for r in record.rounds] == [5] * 20


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("k", [1, 5])
def test_an_exit_behind_all_layers_is_accepted_whole(k, temperature):
    model = target(layers=3)
    drafter = Chain(LayerSkip(model, 3), build_rule("fixed", k))
    request = Request(tiny.prompt_of(6), 12 * (k + 1), Sampling(temperature=temperature))
    record = speculative(model, drafter, request, k=k).run()
    assert [r.accepted for r in record.rounds] == [k] * 12


def test_rounds_without_a_draft_in_between_leave_the_draft_in_step():
    """Depths 4, 0, 0, 4: what was not drafted is fed later, and acceptance stays whole."""

    class Pausing(Chain):
        rounds = 0

        def propose(self, budget):
            self.rounds += 1
            if self.rounds in (2, 3):
                return decode.Draft(stopped="pause")
            return super().propose(budget)

    drafter = Pausing(Steps(target()), build_rule("fixed", 4))
    record = speculative(target(), drafter, Request(tiny.prompt_of(6), 12), k=4).run()
    assert [r.accepted for r in record.rounds] == [4, 0, 0, 4]
    assert [r.source for r in record.rounds] == ["bonus"] * 4


# -- where a text ends ------------------------------------------------------------------------------------------------


def first_seen(answer):
    return [i for i, token in enumerate(answer) if token not in answer[:i]]


@pytest.mark.parametrize("make", [oracle.Oracle, lambda answer: identity(4)], ids=["oracle", "chain"])
def test_an_end_of_text_inside_an_accepted_block_ends_the_text_right_there(make):
    prompt, k = tiny.prompt_of(6, seed=1), 4
    answer = baseline(prompt, 24)
    for i in first_seen(answer)[:9]:
        generation = speculative(target(), make(answer), Request(prompt, 24, eos_ids=frozenset({answer[i]})), k=k)
        record = generation.run()
        assert record.output_ids == answer[: i + 1] and record.stop_reason == END_OF_TEXT
        assert generation.cache.length == len(prompt) + i
        last, at = record.rounds[-1], i % (k + 1)
        assert (last.source, last.accepted) == (("cut", at + 1) if at < k else ("bonus", k))
        assert sum(len(r.tokens) for r in record.rounds) == i + 1


def test_a_correction_that_ends_the_text_is_a_correction():
    prompt = tiny.prompt_of(6, seed=1)
    answer = baseline(prompt, 24)
    i = first_seen(answer)[2]
    drafter = oracle.Oracle(answer, lies={i})
    record = speculative(target(), drafter, Request(prompt, 24, eos_ids=frozenset({answer[i]})), k=8).run()
    assert record.output_ids == answer[: i + 1]
    assert (record.rounds[-1].source, record.rounds[-1].accepted) == ("correction", i % 9)


def test_either_of_two_ends_of_text_ends_it():
    prompt = tiny.prompt_of(6, seed=1)
    answer = baseline(prompt, 24)
    early, late = first_seen(answer)[1], first_seen(answer)[4]
    for pair in ((early, late), (late, early)):
        eos = frozenset(answer[i] for i in pair)
        record = speculative(target(), oracle.Oracle(answer), Request(prompt, 24, eos_ids=eos), k=4).run()
        assert record.output_ids == answer[: early + 1]


def test_a_drafted_end_of_text_that_is_rejected_ends_nothing():
    prompt = tiny.prompt_of(6, seed=1)
    unused = next(i for i in range(97) if i not in baseline(prompt, 24))
    request = Request(prompt, 24, eos_ids=frozenset({unused}))
    record = speculative(target(), oracle.AlwaysEos(unused), request, k=4).run()
    assert record.output_ids == baseline(prompt, 24) and record.stop_reason == LENGTH


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_exactly_as_many_tokens_as_asked_for(count, temperature):
    drafter = identity(5)
    request = Request(tiny.prompt_of(6), count, Sampling(temperature=temperature))
    record = speculative(target(), drafter, request, k=5).run()
    assert len(record.output_ids) == count and record.stop_reason == LENGTH
    assert drafter.model.steps == sum(r.drafted for r in record.rounds) <= count - 1


def test_with_one_token_left_nothing_is_asked_of_the_drafter():
    drafter = oracle.Oracle([5] * 9)
    record = speculative(target(), drafter, Request(tiny.prompt_of(6), 1), k=4).run()
    assert drafter.budgets == []
    assert [(r.requested, r.drafted, r.accepted, r.source) for r in record.rounds] == [(0, 0, 0, "bonus")]


def test_the_budget_shrinks_towards_the_end():
    drafter = oracle.Empty()
    speculative(target(), drafter, Request(tiny.prompt_of(6), 7), k=4).run()
    assert [(b.depth, b.nodes) for b in drafter.budgets] == [(4, 4), (4, 4), (4, 4), (3, 3), (2, 2), (1, 1)]


@pytest.mark.parametrize("make", [lambda m: oracle.Empty(), lambda m: identity(5, m), lambda m: NGram()])
@pytest.mark.parametrize("length", [1, 20, 39])
def test_a_full_context_ends_the_text(make, length):
    model = target(max_position_embeddings=40)
    request = Request(tiny.prompt_of(length), 1000)
    record = speculative(model, make(model), request, k=5).run()
    assert len(record.output_ids) == 40 - length and record.stop_reason == CONTEXT
    assert record.output_ids == autoregressive(model, request).run().output_ids
    exact = speculative(model, make(model), Request(tiny.prompt_of(length), 40 - length), k=5).run()
    assert exact.stop_reason == LENGTH and exact.output_ids == record.output_ids


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prompt, count, words",
    [
        ([[3, 4], [5, 6]], 5, "the prompt holds 2 texts: the batch size is 1"),
        ([], 5, "the prompt is empty"),
        ([3, 97], 5, "the prompt holds id 97; the model's ids go from 0 to 96"),
        ([3, -1], 5, "the prompt holds id -1"),
        (tiny.prompt_of(256), 5, "the prompt has 256 tokens; the model's context holds 256"),
        (tiny.prompt_of(300), 5, "the prompt has 300 tokens"),
        ([3], 0, "max_new_tokens = 0: must be"),
        ([3], -2, "max_new_tokens = -2: must be"),
    ],
)
def test_an_impossible_request_is_refused_before_anything_runs(prompt, count, words):
    with pytest.raises(UserError) as caught:
        speculative(target(), Nothing(), Request(prompt, count), k=4)
    assert words in str(caught.value)


def test_a_draft_beyond_its_budget_is_a_defect_and_named():
    with pytest.raises(ValueError, match=r"TooDeep drafted 5 nodes, 5 deep, beyond Budget\(depth=4, nodes=4\)"):
        speculative(target(), oracle.TooDeep(), Request(tiny.prompt_of(6), 20), k=4).run()


def test_a_tree_is_refused_by_a_verifier_that_is_not_exact_for_trees():
    drafter = oracle.Decoys([5] * 30)
    with pytest.raises(UserError, match="rejection: not exact for a tree"):
        speculative(target(), drafter, Request(tiny.prompt_of(6), 20, HOT), k=4).run()


def test_sampling_is_refused_by_a_greedy_verifier_before_anything_runs():
    with pytest.raises(UserError, match="greedy: exact at temperature 0 only"):
        speculative(target(), Nothing(), Request([3], 5, HOT), k=4, verifier=build_verifier("greedy"))


# -- counts -----------------------------------------------------------------------------------------------------------

DRAFTERS = {
    "near model": lambda k: Chain(LanguageModel(tiny.cousin("qwen3")), build_rule("max_prob", k, 0.3)),
    "history": lambda k: Chain(LanguageModel(tiny.cousin("qwen3")), build_rule("history", k)),
    "layer skip": lambda k: Chain(LayerSkip(target(), 1), build_rule("fixed", k)),
    "lookup": lambda k: NGram(),
    "random": lambda k: oracle.RandomTokens(),
    "empty": lambda k: oracle.Empty(),
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_counts_agree_with_each_other(kind, temperature):
    for k, eos in itertools.product((1, 4, 7), (frozenset(), frozenset({10, 20, 30, 40}))):
        count = 30
        request = Request(tiny.prompt_of(4, seed=5) * 3, count, Sampling(temperature=temperature), eos_ids=eos)
        record = speculative(target(), DRAFTERS[kind](k), request, k=k).run()
        left = count
        for r in record.rounds:
            assert 0 <= r.accepted <= r.drafted <= r.requested == min(k, left - 1)
            assert len(r.tokens) == r.accepted + (r.source != "cut")
            assert r.source == "cut" or (r.source == "bonus") == (r.accepted == r.drafted)
            assert (r.stop_reason is not None) == (r is record.rounds[-1])
            left -= len(r.tokens)
        assert record.columns()["tokens"] == len(record.output_ids) == sum(len(r.tokens) for r in record.rounds)
        assert record.prompt_tokens == len(request.prompt)


def test_early_exits_can_be_seen():
    k = 6
    record = speculative(target(), DRAFTERS["near model"](k), Request(tiny.prompt_of(12), 30), k=k).run()
    for r in record.rounds:
        assert (r.stopped == "max_prob") == (r.drafted < r.requested)
    assert any(r.stopped == "max_prob" for r in record.rounds) and any(r.stopped == "depth" for r in record.rounds)


def test_k_reaches_the_drafter():
    record = speculative(target(), identity(5), Request(tiny.prompt_of(6), 50), k=5).run()
    assert max(r.drafted for r in record.rounds) == 5
    record = speculative(target(), identity(8), Request(tiny.prompt_of(6), 50), k=3).run()
    assert {r.drafted for r in record.rounds[:-1]} == {3}


def test_rounds_can_be_watched_as_they_happen():
    generation = speculative(target(), identity(3), Request(tiny.prompt_of(6), 12), k=3)
    seen = []
    for record in generation:
        seen.append(record)
        assert generation.record.rounds == seen
    assert len(seen) == 3


def test_a_drafter_starts_afresh_with_every_prompt():
    drafter = DRAFTERS["history"](6)
    requests = [Request(tiny.prompt_of(9, seed=i), 20, HOT, prompt_id=str(i)) for i in range(3)]
    once = [speculative(target(), DRAFTERS["history"](6), r, k=6).run().rounds for r in requests]
    reused = [speculative(target(), drafter, r, k=6).run().rounds for r in [*requests, *requests]]

    def counts(rounds):
        return [(r.tokens, r.drafted, r.accepted, r.stopped) for r in rounds]

    assert [counts(r) for r in reused] == [counts(r) for r in once] * 2


# -- time -------------------------------------------------------------------------------------------------------------


class FakeClock:
    """Time passes only where a test says so."""

    def __init__(self):
        self.time, self.synchronized = 0.0, []

    def now(self):
        return self.time

    def mark(self):
        return self.time

    def between(self, first, second):
        return second - first

    def synchronize(self):
        self.synchronized.append(self.time)

    def taking(self, seconds, function):
        def slow(*args, **kwargs):
            self.time += seconds
            return function(*args, **kwargs)

        return slow


def timed(prompt, count, monkeypatch, k=3):
    """Target pass 1 s, drafting 1/4 s, its prefill 1/2 s, verification 1/8 s, commit 1/16 s."""
    clock, model, drafter, verifier = FakeClock(), target(), oracle.Oracle([7] * 99), build_verifier("greedy")
    with monkeypatch.context() as patch:
        for owner, name, seconds in (
            (model, "forward", 1.0),
            (drafter, "propose", 0.25),
            (drafter, "start", 0.5),
            (verifier, "verify", 0.125),
            (drafter, "commit", 0.0625),
        ):
            patch.setattr(owner, name, clock.taking(seconds, getattr(owner, name)), raising=False)
        record = speculative(model, drafter, Request(prompt, count), k=k, verifier=verifier, clock=clock).run()
    return clock, record


def test_a_generation_synchronizes_at_its_two_edges_and_nowhere_else(monkeypatch):
    clock, record = timed(tiny.prompt_of(6), 12, monkeypatch)
    assert len(record.rounds) > 3 and len(clock.synchronized) == 2
    assert clock.synchronized == [0.0, clock.time]


def test_time_is_attributed_to_who_took_it(monkeypatch):
    clock, record = timed(tiny.prompt_of(6), 6, monkeypatch)
    assert (record.prefill_target_s, record.prefill_draft_s) == (1.0, 0.5)
    for r in record.rounds:
        drafted = 0.25 if r.requested else 0.0
        assert (r.draft_s, r.target_s, r.other_s) == (drafted, 1.0, 0.1875)
        assert r.seconds == drafted + 1.1875
    assert record.total_s == clock.time == 1.5 + record.decode_s
    assert record.ttft_s == 1.5 + record.rounds[0].seconds >= max(record.prefill_target_s, record.prefill_draft_s)


def test_a_prompt_of_one_token_has_no_target_prefill(monkeypatch):
    _, record = timed([5], 3, monkeypatch)
    assert (record.prefill_target_s, record.prefill_draft_s) == (0.0, 0.5)


def test_baseline_and_speculation_are_timed_by_the_same_loop(monkeypatch):
    clock, model = FakeClock(), target()
    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", clock.taking(1.0, model.forward))
        record = autoregressive(model, Request(tiny.prompt_of(6), 4), clock=clock).run()
    assert [r.target_s for r in record.rounds] == [1.0] * 4 and record.total_s == 5.0
    assert len(clock.synchronized) == 2 and all(r.requested == 0 for r in record.rounds)


# -- seeds ------------------------------------------------------------------------------------------------------------


def sampled(prompt_id, seed=0, temperature=1.0, make=DRAFTERS["near model"], length=8, **options):
    request = Request(
        tiny.prompt_of(length), 20, Sampling(temperature=temperature, **options), seed=seed, prompt_id=prompt_id
    )
    return speculative(target(), make(4), request, k=4).run().output_ids


def test_the_same_seed_gives_the_same_text_and_another_seed_another():
    assert sampled("a") == sampled("a")
    assert len({tuple(sampled("a", seed)) for seed in range(6)}) == 6
    assert sampled("a") != sampled("b")


def test_the_order_of_prompts_does_not_matter():
    forward = {name: sampled(name) for name in ("a", "b", "c")}
    backward = {name: sampled(name) for name in ("c", "b", "a")}
    assert forward == backward


def test_randomness_used_in_between_changes_nothing():
    before = sampled("a")
    torch.rand(7)
    random.random()
    torch.manual_seed(1234)
    assert sampled("a") == before


def test_decoding_leaves_the_global_generators_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    sampled("a")
    assert torch.equal(torch.rand(3), expected)


def test_at_temperature_zero_the_seed_does_not_matter():
    assert len({tuple(sampled("a", seed, temperature=0.0)) for seed in range(10)}) == 1


def test_a_drafter_that_proposes_nothing_does_not_shift_the_targets_draws():
    request = Request(tiny.prompt_of(8), 20, HOT, prompt_id="a")
    assert sampled("a", make=lambda k: oracle.Empty()) == autoregressive(target(), request).run().output_ids


def test_streams_are_opened_once_for_each_purpose():
    opened = []

    def stream(purpose):
        opened.append(purpose)
        return Request([0], 1).open_stream(purpose)

    request = Request(tiny.prompt_of(8), 20, HOT, stream=stream)
    speculative(target(), DRAFTERS["near model"](4), request, k=4).run()
    assert sorted(opened) == ["draft", "verify"]
