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
from specdec.models import load_model
from specdec.models.loading import read_head_ids
from specdec.models.transformer import Transformer
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


@pytest.mark.parametrize("layers", [0, 4, -1, 1.0, True, "2"])
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


# -- a cut head -------------------------------------------------------------------------------------------------------


def cut(variant: str, ids, dtype=torch.float64, vocabulary=None):
    """`cousin` of the target with a cut head."""
    whole = tiny.cousin(variant)
    weights = {"model.embed_tokens.weight": whole._embedding} | dict(tiny.reference(variant).state_dict())
    return Transformer(whole.config, weights, dtype=dtype, vocabulary=vocabulary, head_ids=torch.tensor(ids))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variant", ["llama", "qwen3-tied"])
def test_a_cut_heads_columns_are_those_of_the_whole_head(variant, dtype):
    ids = [0, 3, 4, 50, 96]
    weights = dict(tiny.reference(variant).state_dict())
    whole, small = (Transformer(tiny.transformer(variant).config, weights, dtype=dtype, **kw)
                    for kw in ({}, {"head_ids": torch.tensor(ids)}))  # fmt: skip
    text = tiny.prompt_of(9)
    logits = [model.forward(text, model.new_cache(16)).logits for model in (whole, small)]
    torch.testing.assert_close(logits[1], logits[0][:, ids], rtol=0, atol=1e-2 if dtype == torch.bfloat16 else 1e-5)
    assert small.weight_bytes() == whole.weight_bytes() - (97 - len(ids)) * 32 * dtype.itemsize


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("size", [1, 9, 60])
@pytest.mark.parametrize("variant", ["llama", "qwen3-tied"])
def test_a_cut_head_proposes_its_ids_alone_and_never_changes_the_text(variant, size, temperature):
    target = tiny.transformer(variant)
    ids = sorted(tiny.prompt_of(200, seed=4))
    ids = sorted(set(ids))[:size]
    draft = LanguageModel(cut(variant, ids), target.vocabulary)
    assert draft.vocabulary.tolist() == ids
    drafter, proposed = Chain(draft, build_rule("fixed", 4)), set()
    plain = drafter.propose
    drafter.propose = lambda budget: (found := plain(budget), proposed.update(found.tokens))[0]
    request = Request(tiny.prompt_of(5, seed=3), 40, Sampling(temperature=temperature), seed=2)
    record = speculative(target, drafter, request, k=4).run()
    assert proposed and proposed <= set(ids)
    assert len(record.output_ids) == 40 and set(record.output_ids) - set(ids), "this test wants an id outside"
    if temperature == 0:
        assert record.output_ids == autoregressive(target, request).run().output_ids


def test_a_cut_head_of_a_model_that_knows_more_ids_than_the_target_proposes_the_targets():
    target = tiny.transformer("llama", vocab_size=60)
    draft = LanguageModel(cut("llama", [5, 7, 59, 60, 96]), target.vocabulary)
    assert draft.vocabulary.tolist() == [5, 7, 59]
    request = Request(tiny.prompt_of(5, vocabulary=60), 24)
    record = speculative(target, Chain(draft, build_rule("fixed", 3)), request, k=3).run()
    assert record.output_ids == autoregressive(target, request).run().output_ids


def test_a_list_of_frequent_ids_is_read_to_a_size_and_bad_ones_are_named(tmp_path):
    file = tmp_path / "tokens.txt"
    file.write_text("9\n2\n30\n4\n")
    assert read_head_ids(file, 3).tolist() == [2, 9, 30] and read_head_ids(file, 4).tolist() == [2, 4, 9, 30]
    for size in (0, 5):
        with pytest.raises(UserError, match=f"vocabulary = {size}: must be between 1 and the 4 ids listed there"):
            read_head_ids(file, size)
    for content, text in [("9\nx\n", "not a list of token ids"), ("9\n9\n", "listed twice"), ("9\n-1\n", "negative")]:
        file.write_text(content)
        with pytest.raises(UserError, match=text):
            read_head_ids(file, 2)
    with pytest.raises(UserError, match="no such file of token ids; .* vocabulary` writes one"):
        read_head_ids(tmp_path / "none.txt", 2)


def test_a_model_is_loaded_with_a_cut_head_and_its_entry_must_say_so(tmp_path):
    tiny.checkpoint(tmp_path)
    loaded = load_model(tmp_path, dtype="float32", head_ids=torch.tensor([5, 9]))
    target = tiny.transformer("llama", dtype=torch.float32)
    spec = {"kind": "language_model", "vocabulary": 2, "vocabulary_file": "tokens.txt"}
    drafter = build_drafter(spec, target, policy="fixed", k=2, draft=loaded)
    assert drafter.model.vocabulary.tolist() == [5, 9]
    with pytest.raises(UserError, match="vocabulary = None, but the model's head was cut to 2"):
        build_drafter({"kind": "language_model"}, target, policy="fixed", k=2, draft=loaded)
    with pytest.raises(UserError, match="vocabulary = 2, but the model's head was cut to None"):
        build_drafter(spec, target, policy="fixed", k=2, draft=load_model(tmp_path, dtype="float32"))
    with pytest.raises(UserError, match="its head cannot be cut to id 97; it has 97 ids"):
        load_model(tmp_path, dtype="float32", head_ids=torch.tensor([5, 97]))


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
