"""Draft models that run a transformer: their caches stay in step with the text."""

import pytest
import torch

from specdec.decode import Request, autoregressive, speculative
from specdec.drafters import (
    Chain,
    LanguageModel,
    LayerSkip,
    build_drafter,
    check_k,
)
from specdec.errors import UserError
from specdec.growth import build_rule
from specdec.sampling import Sampling
from tests.helpers import tiny


def step_by_step(model, text):
    cache = model.new_cache(len(text))
    return torch.cat([model.forward([token], cache).logits for token in text])


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_a_second_models_cache_equals_a_fresh_forward_of_the_text_after_every_round(k, temperature, length):
    target, small = tiny.transformer("qwen3"), tiny.cousin("qwen3")
    draft = LanguageModel(small)
    prompt = tiny.prompt_of(length)
    request = Request(prompt, 20, Sampling(temperature=temperature))
    text, kept, accepted = list(prompt), [], 0
    for record in speculative(target, Chain(draft, build_rule("fixed", k)), request, k=k):
        text += record.tokens
        cache, behind = draft._cache, len(draft._pending)
        kept.append(behind if record.requested else 1)
        assert cache.length == draft._committed == len(text) - behind
        assert draft._pending == text[len(text) - behind :] and behind >= 1
        fresh = small.new_cache(len(text))
        small.forward(text[: cache.length], fresh, logits=False)
        torch.testing.assert_close(
            cache.keys[:, :, : cache.length], fresh.keys[:, :, : cache.length], rtol=0, atol=1e-10
        )
        accepted += record.accepted
    assert accepted and all(behind <= 2 for behind in kept), "accepted tokens were fed a second time"


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_layer_skip_draft_guesses_like_the_model_cut_there(layers):
    target = tiny.transformer("llama", layers=3)
    prompt = tiny.prompt_of(6)
    drafts = []
    drafter = Chain(LayerSkip(target, layers), build_rule("fixed", 3))
    plain = drafter.propose
    drafter.propose = lambda budget: drafts.append(plain(budget)) or drafts[-1]
    text = list(prompt)
    for record in speculative(target, drafter, Request(prompt, 12), k=3):
        if record.drafted:
            cache, guess = target.new_cache(64), []
            rows = target.forward(text, cache, plan=target.full_plan[:layers]).logits
            for _ in range(record.drafted):
                guess.append(int(rows[-1].argmax()))
                rows = target.forward(guess[-1:], cache, plan=target.full_plan[:layers]).logits
            assert list(drafts[-1].tokens) == guess
        text += record.tokens


@pytest.mark.parametrize("layers", [0, 4, -1, 1.0, True, "2", None])
def test_an_exit_that_is_not_a_layer_is_refused_with_the_range(layers):
    with pytest.raises(UserError, match=f"layers = {layers}: must be an integer between 1 and 3"):
        LayerSkip(tiny.transformer("llama", layers=3), layers)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("sizes", [(97, 60), (60, 97)], ids=["smaller draft", "larger draft"])
def test_vocabularies_of_different_size_work_whatever_the_target_says(temperature, sizes):
    """Ids that only one of the two knows are never proposed, and may be emitted by a target that has them."""
    target = tiny.transformer("llama", vocab_size=sizes[0])
    small = tiny.transformer("llama", layers=1, seed=4, vocab_size=sizes[1])
    request = Request(tiny.prompt_of(5, vocabulary=60), 24, Sampling(temperature=temperature), seed=3)
    drafter = Chain(LanguageModel(small, target.vocabulary), build_rule("fixed", 3))
    record = speculative(target, drafter, request, k=3).run()
    assert len(record.output_ids) == 24
    assert sizes[0] < 97 or max(record.output_ids) >= 60, "this test wants an id that the draft does not know"
    if temperature == 0:
        assert record.output_ids == autoregressive(target, request).run().output_ids


def test_a_draft_whose_context_is_shorter_than_the_text_stops_drafting():
    target = tiny.transformer("llama")
    small = tiny.transformer("llama", layers=1, seed=4, max_position_embeddings=20)
    request = Request(tiny.prompt_of(10), 30)
    drafter = Chain(LanguageModel(small), build_rule("fixed", 4))
    record = speculative(target, drafter, request, k=4).run()
    assert record.output_ids == autoregressive(target, request).run().output_ids
    assert record.rounds[0].drafted > 0 and record.rounds[-2].stopped == "context"
    long = Request(tiny.prompt_of(40), 6)
    record = speculative(target, drafter, long, k=4).run()
    assert record.output_ids == autoregressive(target, long).run().output_ids
    assert all(r.drafted == 0 for r in record.rounds)


def test_a_draft_in_another_precision_works():
    target = tiny.transformer("llama", dtype=torch.float32)
    small = tiny.transformer("llama", layers=1, seed=4, dtype=torch.bfloat16)
    for temperature in (0.0, 1.0):
        request = Request(tiny.prompt_of(5), 12, Sampling(temperature=temperature))
        record = speculative(target, Chain(LanguageModel(small), build_rule("fixed", 3)), request, k=3).run()
        assert len(record.output_ids) == 12


# -- from a configuration ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, -1, 1.5, "4", True, 10**6, 33, None])
def test_an_impossible_k_is_refused_with_its_range(k):
    with pytest.raises(UserError) as caught:
        check_k(k)
    assert f"k = {k!r}: must be an integer between 1 and 32" in str(caught.value)
    with pytest.raises(UserError, match="must be an integer between"):
        build_drafter({"kind": "ngram"}, tiny.transformer("llama"), policy="fixed", k=k)


@pytest.mark.parametrize("k", [1, 4, 32])
def test_a_possible_k_is_itself(k):
    assert check_k(k) == k


def test_each_kind_is_built_from_its_entry():
    target = tiny.transformer("llama", layers=3)
    skip = build_drafter({"kind": "layer_skip", "layers": 2}, target, policy="max_prob", k=4, threshold=0.5)
    assert isinstance(skip.model, LayerSkip) and len(skip.model.plan) == 2
    assert (skip.rule.name, skip.rule.k, skip.rule.threshold) == ("max_prob", 4, 0.5)
    ngram = build_drafter({"kind": "ngram", "rule": "first", "max_ngram": 5}, target, policy="fixed", k=4)
    assert (ngram.rule, ngram.max_ngram) == ("first", 5)


def test_an_impossible_entry_is_refused_by_name():
    target = tiny.transformer("llama", layers=3)
    with pytest.raises(UserError, match=r'unknown draft kind "ngrams" \(did you mean "ngram"\?\)'):
        build_drafter({"kind": "ngrams"}, target, policy="fixed", k=4)
    with pytest.raises(UserError, match="policy entropy cannot stop it; allowed: fixed"):
        build_drafter({"kind": "ngram"}, target, policy="entropy", k=4, threshold=1.0)
    with pytest.raises(UserError, match="its model was not given"):
        build_drafter({"kind": "language_model"}, target, policy="fixed", k=4)
    with pytest.raises(UserError, match="threshold"):
        build_drafter({"kind": "layer_skip", "layers": 2}, target, policy="max_prob", k=4)


def test_step_by_step_is_what_these_tests_take_for_granted():
    model, prompt = tiny.transformer("qwen3"), tiny.prompt_of(12)
    whole = model.forward(prompt, model.new_cache(64)).logits
    torch.testing.assert_close(step_by_step(model, prompt), whole, rtol=0, atol=1e-10)
