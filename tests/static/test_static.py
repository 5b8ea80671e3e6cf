"""Static decoding says what the eager loop says, in the same rounds, and does the same work in every round."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specdec.decode import Request, autoregressive, speculative
from specdec.drafters import Chain, LanguageModel, LayerSkip, NGram, Nothing
from specdec.errors import UserError
from specdec.growth import build_rule
from specdec.sampling import Sampling
from specdec.static import StaticDecoder, check_static
from specdec.static.rounds import WINDOW
from tests.helpers import tiny
from tests.helpers.enumerate import Branch

FAMILIES, LENGTHS = ("llama", "qwen3"), (1, 2, 7, 30)
EOS = frozenset({tiny.EOS})
WARM = {
    "plain": Sampling(temperature=1.0),
    "top-k and top-p": Sampling(temperature=1.3, top_k=9, top_p=0.9),
    "cold draft": Sampling(temperature=1.0, draft_temperature=0.5),
    "greedy draft": Sampling(temperature=1.0, draft_temperature=0.0),
}


def models(family: str, dtype=torch.float32):
    """A target, and a draft that is often right and often wrong."""
    return tiny.transformer(family, layers=3, dtype=dtype), tiny.cousin(family, 3, dtype=dtype)


def chain(draft, k: int, vocabulary: int | None = None) -> Chain:
    return Chain(LanguageModel(draft, vocabulary), build_rule("fixed", k))


def summary(record) -> list[tuple]:
    return [
        (r.tokens, r.requested, r.drafted, r.accepted, r.source, r.stopped, r.stop_reason, r.path)
        for r in record.rounds
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_static_baseline_writes_the_eager_baselines_tokens(family, dtype):
    target, _ = models(family, dtype)
    decoder = StaticDecoder(target, Nothing(), k=0, capacity=70)
    for length in LENGTHS:
        request = Request(tiny.prompt_of(length), 40, eos_ids=EOS)
        expected = autoregressive(target, request).run()
        generation = decoder.generation(request)
        assert summary(generation.run()) == summary(expected), f"{length} tokens"
        assert generation.cache.length == length + len(expected.output_ids) - 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("family", FAMILIES)
def test_static_greedy_chains_go_through_the_eager_rounds(family, k, dtype):
    target, draft = models(family, dtype)
    decoder, accepted = StaticDecoder(target, chain(draft, k), k=k, capacity=70), 0
    for length in LENGTHS:
        request = Request(tiny.prompt_of(length), 40, eos_ids=EOS)
        plain = autoregressive(target, request).run()
        expected = speculative(target, chain(draft, k), request, k=k).run()
        found = decoder.generation(request).run()
        assert found.output_ids == plain.output_ids
        assert summary(found) == summary(expected), f"{length} tokens"
        for mine, theirs in zip(found.rounds, expected.rounds, strict=True):
            assert mine.confidence == pytest.approx(theirs.confidence, rel=1e-3)
        accepted += sum(r.accepted for r in found.rounds)
    assert accepted > 10, "this test wants acceptances"


@pytest.mark.parametrize("sampling", WARM.values(), ids=WARM)
@pytest.mark.parametrize("k", [0, 1, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_static_rejection_draws_what_the_eager_loop_draws(family, k, sampling):
    """One stream gives one text, whichever way it is decoded: so the law of the text is the same."""
    target, draft = models(family, torch.float64)
    drafter = chain(draft, k) if k else Nothing()
    decoder, sources = StaticDecoder(target, drafter, k=k, capacity=70, sampling=sampling), set()
    for length in LENGTHS:
        for seed in range(4):
            request = Request(tiny.prompt_of(length), 24, sampling, seed=seed, prompt_id="x", eos_ids=EOS)
            eager = speculative(target, chain(draft, k) if k else Nothing(), request, k=k)
            found = decoder.generation(request).run()
            assert summary(found) == summary(eager.run()), f"{length} tokens, seed {seed}"
            sources |= {r.source for r in found.rounds}
    assert sources >= ({"correction", "bonus"} if k else {"bonus"})


def test_float32_rejection_draws_the_same_as_well():
    target, draft = models("qwen3")
    decoder = StaticDecoder(target, chain(draft, 3), k=3, capacity=70, sampling=WARM["plain"])
    for seed in range(8):
        request = Request(tiny.prompt_of(9), 24, WARM["plain"], seed=seed, eos_ids=EOS)
        assert summary(decoder.generation(request).run()) == summary(
            speculative(target, chain(draft, 3), request, k=3).run()
        )


@pytest.mark.parametrize("sampling", [Sampling(), WARM["plain"]], ids=["greedy", "sampled"])
def test_drafts_that_know_other_ids_than_the_target(sampling):
    """A draft with fewer ids, one with a head cut to some, and one with more ids than the target."""
    target = tiny.convert(tiny.reference("llama", 3), torch.float64, vocabulary=90)
    fewer = tiny.convert(tiny.reference("llama", 3), torch.float64, vocabulary=60)
    cut = tiny.transformer("llama", layers=3, dtype=torch.float64)
    ids = torch.arange(0, tiny.VOCABULARY, 2)
    restricted = type(cut)(cut.config, dict(tiny.reference("llama", 3).state_dict()), dtype=torch.float64, head_ids=ids)
    more = tiny.transformer("llama", layers=1, dtype=torch.float64)
    for draft in (fewer, restricted, more):
        drafter = chain(draft, 3, target.vocabulary)
        decoder = StaticDecoder(target, drafter, k=3, capacity=60, sampling=sampling)
        for seed in range(3):
            request = Request([i % 90 for i in tiny.prompt_of(11)], 30, sampling, seed=seed)
            expected = speculative(target, chain(draft, 3, target.vocabulary), request, k=3).run()
            assert summary(decoder.generation(request).run()) == summary(expected)


def test_texts_that_outgrow_a_window_go_on_in_the_next():
    target, draft = (
        tiny.transformer("llama", layers=2, dtype=torch.float32, max_position_embeddings=1024),
        tiny.transformer("llama", layers=1, dtype=torch.float32, max_position_embeddings=1024),
    )
    request = Request(tiny.prompt_of(WINDOW - 20), 60)
    expected = speculative(target, chain(draft, 4), request, k=4).run()
    decoder = StaticDecoder(target, chain(draft, 4), k=4, capacity=WINDOW + 60)
    assert summary(decoder.generation(request).run()) == summary(expected)
    assert decoder.rounds._windows()[0] == WINDOW and len(decoder.rounds._windows()) == 2


def test_a_stop_string_and_a_full_context_end_the_text():
    target, draft = models("llama")
    room = target.config.max_positions
    for request in (
        Request(tiny.prompt_of(room - 9), 40),
        Request(tiny.prompt_of(5), 40, stop=lambda ids: 6 if len(ids) > 6 else None),
    ):
        decoder = StaticDecoder(target, chain(draft, 4), k=4, capacity=room)
        expected = speculative(target, chain(draft, 4), request, k=4).run()
        assert [r.tokens for r in decoder.generation(request).run().rounds] == [r.tokens for r in expected.rounds]
        assert decoder.generation(request).run().stop_reason == expected.stop_reason != "length"


def test_a_padded_baseline_writes_the_same_text():
    target, _ = models("qwen3")
    decoder = StaticDecoder(target, Nothing(), k=0, capacity=60, width=6)
    request = Request(tiny.prompt_of(7), 40)
    assert decoder.generation(request).run().output_ids == autoregressive(target, request).run().output_ids


class Watch(TorchDispatchMode):
    """What runs: operators with the shapes of their tensors, and the addresses of those that `kept` names."""

    def __init__(self):
        super().__init__()
        self.calls: list[tuple] = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        shapes = tuple(tuple(a.shape) if isinstance(a, torch.Tensor) else None for a in args)
        self.calls.append((str(operator), shapes))
        return operator(*args, **(kwargs or {}))


HOST_WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "aten.equal", "unique")
"""Operators whose result the host must have before it can go on."""


@pytest.mark.parametrize("sampling", [Sampling(), *WARM.values()], ids=["greedy", *WARM])
def test_every_round_is_the_same_work_on_the_same_buffers_and_waits_for_nothing(sampling):
    target, draft = models("qwen3")
    decoder = StaticDecoder(target, chain(draft, 3), k=3, capacity=70, sampling=sampling)
    rounds, seen, tokens = decoder.rounds, [], []
    generation = decoder.generation(Request(tiny.prompt_of(9), 30, sampling))
    propose, score = rounds.propose, rounds.score
    addresses = set()

    def watched(work):
        def run(root):
            with Watch() as watch:
                work(root)
            seen.append((work.__name__, watch.calls))
            buffers = (rounds._text, rounds._given, rounds._found, rounds._drafted, rounds.target.cache.keys)
            addresses.add(tuple(buffer.data_ptr() for buffer in buffers))

        return run

    rounds.propose, rounds.score = watched(propose), watched(score)
    for record in generation:
        tokens.append(len(record.tokens))
    assert len(set(tokens)) > 1, "this test wants rounds of several lengths"
    for name in ("propose", "score"):
        works = [calls for kind, calls in seen if kind == name]
        assert len(works) == len(tokens) and all(calls == works[0] for calls in works)
        assert not [call for call, _ in works[0] for wait in HOST_WAITS if wait in call]
    assert len(addresses) == 1


def test_the_watch_would_see_a_host_that_waits():
    with Watch() as watch:
        int(torch.ones(3).argmax())
    assert any("_local_scalar_dense" in call for call, _ in watch.calls)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("eagle", "fixed", "chain", None), "draft eagle"),
        (("language_model", "max_prob", "chain", None), "policy max_prob"),
        (("language_model", "fixed", "eagle2", None), "shape eagle2"),
        (("language_model", "fixed", "chain", "block"), "verifier block"),
    ],
)
def test_what_is_not_covered_is_refused_in_one_sentence(arguments, words):
    with pytest.raises(UserError, match=f"does not cover {words}; it covers the baseline, and chains"):
        check_static(*arguments, Sampling())
    check_static("language_model", "fixed", "chain", "greedy", Sampling())
    check_static(None, "fixed", "chain", None, WARM["plain"])


def test_drafters_streams_and_sizes_that_do_not_fit_are_refused():
    target, draft = models("llama")
    for drafter in (
        NGram(),
        Chain(LayerSkip(target, 1), build_rule("fixed", 2)),
        Chain(LanguageModel(draft), build_rule("max_prob", 2, 0.5)),
    ):
        with pytest.raises(UserError, match="does not cover this draft"):
            StaticDecoder(target, drafter, k=2, capacity=40)
    decoder = StaticDecoder(target, chain(draft, 2), k=2, capacity=40)
    with pytest.raises(UserError, match="ready for 40 tokens; this text may have 45"):
        decoder.generation(Request(tiny.prompt_of(5), 40))
    with pytest.raises(UserError, match="not for"):
        decoder.generation(Request(tiny.prompt_of(5), 4, WARM["plain"]))
    short = tiny.transformer("llama", layers=1, dtype=torch.float32, max_position_embeddings=32)
    with pytest.raises(UserError, match="the draft's context holds 32 tokens, the text may have 40"):
        StaticDecoder(target, chain(short, 2), k=2, capacity=40)
    sampled = StaticDecoder(target, chain(draft, 2), k=2, capacity=40, sampling=WARM["plain"])
    with pytest.raises(UserError, match="seeded streams"):
        sampled.generation(Request([5], 4, WARM["plain"], stream=lambda purpose: Branch([])))
