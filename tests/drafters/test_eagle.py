"""A head's guesses cost or save passes; they never change the text."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from specdec.decode import Request, autoregressive, speculative
from specdec.drafters import Chain, Eagle, build_drafter
from specdec.errors import UserError
from specdec.growth import build_rule
from specdec.models.eagle_files import write_head
from specdec.sampling import Sampling
from specdec.training.eagle import collate
from tests.helpers import heads, tiny


def head(target, version: int = 3, size: int | None = None, seed: int = 0, **changes) -> Eagle:
    config = heads.config_of(version, size, **changes)
    used = None if size is None else heads.vocabulary_of(size)
    return Eagle(config, heads.weights_of(config, seed), target, used)


class Oracle(Eagle):
    """A head whose first choice is the text's next token while `right(position)`: any pattern of acceptance."""

    def aim(self, text, right):
        self.text, self.right = text, right
        return self

    def start(self, prompt, features, context):
        self.known, self.depth = len(prompt), 0
        super().start(prompt, features, context)

    def root(self):
        self.depth = 0
        return self._point(super().root())

    def step(self, tokens, parents):
        self.depth += 1
        return self._point(super().step(tokens, parents))

    def commit(self, tokens, features, scored):
        self.known += len(tokens)
        super().commit(tokens, features, scored)

    def _point(self, logits):
        at = self.known + self.depth
        token = self.text[at] if at < len(self.text) else 0
        token = token if self.right(at) else (token + 1) % logits.shape[1]
        return torch.nn.functional.one_hot(torch.tensor([token]), logits.shape[1]).double()


@pytest.mark.parametrize(("version", "layers"), [(1, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize("k", range(1, 9))
def test_greedy_text_is_the_baselines_at_every_depth(version, layers, k):
    target = heads.target_of()
    for length in (1, 2, 7):
        request = Request(tiny.prompt_of(length), 24)
        draft = head(target, version, layers=layers)
        record = speculative(target, Chain(draft, build_rule("fixed", k)), request, k=k).run()
        assert record.output_ids == autoregressive(target, request).run().output_ids


@pytest.mark.parametrize("size", [1, 9, 60])
@pytest.mark.parametrize("variant", ["llama", "qwen3", "llama-tied"])
def test_greedy_text_is_the_baselines_with_any_draft_vocabulary(variant, size):
    """Tokens outside it come from the target, and are fed to the head like any other."""
    target = heads.target_of(variant)
    draft = head(target, 3, size, variant=variant)
    request = Request(tiny.prompt_of(5, seed=3), 40)
    record = speculative(target, Chain(draft, build_rule("fixed", 4)), request, k=4).run()
    assert record.output_ids == autoregressive(target, request).run().output_ids
    assert set(record.output_ids) - set(draft.vocabulary.tolist()), "this test wants a token outside the vocabulary"


@pytest.mark.parametrize("own_head", [True, False])
@pytest.mark.parametrize("size", [None, 30])
def test_a_cut_head_says_of_its_tokens_what_the_whole_one_says(tmp_path, size, own_head):
    target, config = heads.target_of(), heads.config_of(3, size, own_head=own_head)
    used = None if size is None else heads.vocabulary_of(size)
    weights = heads.weights_of(config)
    write_head(tmp_path, config, weights, used, tiny.VOCABULARY)
    kept = torch.tensor([70, 3, 41, 12, 5, 90, 8])
    whole, cut = Eagle.load(tmp_path, target), Eagle.load(tmp_path, target, kept)
    ids = torch.arange(target.vocabulary) if whole.vocabulary is None else whole.vocabulary
    places = torch.isin(ids, kept)
    assert torch.equal(cut.vocabulary, ids[places]) and 0 < len(cut.vocabulary) < len(ids)
    assert cut.weight_bytes < whole.weight_bytes
    request = Request(tiny.prompt_of(5, seed=3), 40)
    expected = autoregressive(target, request).run().output_ids
    for draft in (whole, cut):
        record = speculative(target, Chain(draft, build_rule("fixed", 4)), request, k=4).run()
        assert record.output_ids == expected
    logits = []
    for draft in (whole, cut):
        features = target.forward(tiny.prompt_of(6), target.new_cache(16), taps=config.taps).features
        draft.start(tiny.prompt_of(6) + [1], features, SimpleNamespace(capacity=16, target=target))
        logits.append(draft.root())
    torch.testing.assert_close(logits[1], logits[0][:, places], rtol=0, atol=1e-9)


def test_a_head_is_not_cut_to_nothing_nor_where_it_has_none_of_its_own(tmp_path):
    target = heads.target_of()
    for version, size, text in ((3, 30, "none of its draft tokens"), (1, None, "the target's whole head")):
        config = heads.config_of(version, size)
        used = None if size is None else heads.vocabulary_of(size)
        write_head(tmp_path / str(version), config, heads.weights_of(config), used, tiny.VOCABULARY)
        lacking = sorted(set(range(tiny.VOCABULARY)) - set([] if used is None else used.tolist()))
        with pytest.raises(UserError, match=text):
            Eagle.load(tmp_path / str(version), target, torch.tensor(lacking or [0]))


@pytest.mark.parametrize("size", [None, 20])
def test_sampled_text_has_its_length_and_only_the_targets_ids(size):
    target = heads.target_of()
    request = Request(tiny.prompt_of(5), 30, Sampling(temperature=1.0), seed=2)
    record = speculative(target, Chain(head(target, 3, size), build_rule("fixed", 3)), request, k=3).run()
    assert len(record.output_ids) == 30 and max(record.output_ids) < target.vocabulary


def test_a_long_prompt_and_a_context_that_ends_are_no_special_cases():
    target = heads.target_of()
    for length in (100, 200, tiny.CONTEXT - 5):
        request = Request(tiny.prompt_of(length), 40)
        record = speculative(target, Chain(head(target), build_rule("fixed", 4)), request, k=4).run()
        assert record.output_ids == autoregressive(target, request).run().output_ids
    short = head(target, max_positions=20)
    request = Request(tiny.prompt_of(10), 30)
    record = speculative(target, Chain(short, build_rule("fixed", 4)), request, k=4).run()
    assert record.output_ids == autoregressive(target, request).run().output_ids
    assert record.rounds[0].drafted and record.rounds[-2].stopped == "context"


@pytest.mark.parametrize("period", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(("length", "layers"), [(1, 1), (2, 1), (9, 1), (9, 2)])
def test_after_any_acceptance_the_head_holds_the_pairs_of_a_fresh_pass_over_the_text(period, length, layers):
    """Partly accepted drafts leave the target's states of what was accepted, and nothing of their own."""
    target, prompt = heads.target_of(), tiny.prompt_of(length)
    text = [*prompt, *autoregressive(target, Request(prompt, 30)).run().output_ids]
    config = heads.config_of(layers=layers)
    draft = Oracle(config, heads.weights_of(config), target).aim(text, lambda at: at % period != 0)
    known, seen = list(prompt), set()
    for record in speculative(target, Chain(draft, build_rule("fixed", 4)), Request(prompt, 24), k=4):
        known += record.tokens
        seen.add((record.drafted, record.accepted))
        assert known == text[: len(known)]
        features = target.forward(known[:-1], target.new_cache(64), taps=config.taps).features
        count = len(draft._pending)
        assert draft._pending == known[len(known) - count :]
        torch.testing.assert_close(draft._states, features[len(features) - count :], rtol=0, atol=1e-9)
        fresh = Eagle(config, heads.weights_of(config), target)
        fresh.start(known, features, _context(draft, target))
        held = draft._cache.length
        assert held == len(known) - 1 - count
        for name in ("keys", "values"):
            ours, theirs = (getattr(cache, name)[:, :, :held] for cache in (draft._cache, fresh._cache))
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
    assert length == 1 or len(seen) > 1 or period in (1, 100)


def _context(draft, target):
    return SimpleNamespace(capacity=draft._cache.capacity, target=target)


@pytest.mark.parametrize(("version", "layers"), [(1, 1), (3, 1), (3, 3)])
@pytest.mark.parametrize("size", [None, 30])
def test_training_and_decoding_see_the_same_tensors(version, layers, size):
    """The module unrolled over a text equals the draft model fed step by step from every one of its positions."""
    target = heads.target_of(dtype=torch.float32)
    config = heads.config_of(version, size if version == 3 else None, layers=layers)
    used = heads.vocabulary_of(size) if size and version == 3 else None
    sample, steps = heads.written(target, 3, 20), 4
    batch = collate([heads.corpus_of(config, [sample]).states(0)], steps)
    module = heads.module_of(config)
    layer = module.layer()
    with torch.no_grad():
        unrolled = [(hidden[0], layer.logits(hidden[0])) for hidden in module.unroll(batch, steps)]
    draft = Eagle(config, heads.weights_of(config), target, used)
    features = target.forward(sample.ids[:-1], target.new_cache(64), taps=config.taps).features
    assert batch.first == 4
    for t in range(batch.first, len(sample.ids) - 1 - steps):
        draft.start(sample.ids[: t + 2], features[: t + 1], SimpleNamespace(capacity=64, target=target))
        for k in range(steps):
            logits = draft.root() if k == 0 else draft.step([sample.ids[t + 1 + k]], [k - 2])
            for ours, theirs in zip(
                (draft._outputs[-1], logits[0]), (x[t - batch.first] for x in unrolled[k]), strict=True
            ):
                torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max().clamp(min=1)))


@pytest.mark.parametrize("variant", ["llama", "llama-tied"])
@pytest.mark.parametrize("size", [None, 30])
def test_a_head_without_rows_of_its_own_decides_by_the_targets(variant, size):
    target, prompt = heads.target_of(variant), tiny.prompt_of(8)
    used = heads.vocabulary_of(size) if size else None
    ids = torch.arange(tiny.VOCABULARY) if used is None else used
    state = tiny.reference(variant, 4).state_dict()
    rows = state["model.embed_tokens.weight" if target.config.tied else "lm_head.weight"][ids].double()
    config = heads.config_of(3, size, variant)
    weights = {name: value.double() for name, value in heads.weights_of(config).items()} | {"head": rows}
    less = {name: value for name, value in weights.items() if name != "head"}
    features = target.forward(prompt[:-1], target.new_cache(64), taps=config.taps).features
    found = []
    for shape, tensors in ((config, weights), (heads.config_of(3, size, variant, own_head=False), less)):
        draft = Eagle(shape, tensors, target, used)
        draft.start(prompt, features, SimpleNamespace(capacity=64))
        found.append((draft.root(), draft.weight_bytes, draft.vocabulary))
    assert torch.equal(found[0][0], found[1][0]) and found[0][1] == found[1][1]
    assert (found[0][2] is None) == (found[1][2] is None) == (size is None)


def test_branches_fed_together_equal_the_chains_they_are():
    target, prompt = heads.target_of(), tiny.prompt_of(8)
    config = heads.config_of()
    draft, context = Eagle(config, heads.weights_of(config), target), SimpleNamespace(capacity=64)
    features = target.forward(prompt[:-1], target.new_cache(64), taps=config.taps).features

    def chain(tokens):
        draft.start(prompt, features, context)
        rows = [draft.root()]
        return [*rows, *(draft.step([token], [i - 1]) for i, token in enumerate(tokens))]

    left, right = chain([7, 9, 11]), chain([8, 10])
    draft.start(prompt, features, context)
    draft.root()
    first = draft.step([7, 8], [-1, -1])
    second = draft.step([9, 10], [0, 1])
    third = draft.step([11], [2])
    torch.testing.assert_close(first, torch.cat([left[1], right[1]]), rtol=0, atol=1e-10)
    torch.testing.assert_close(second, torch.cat([left[2], right[2]]), rtol=0, atol=1e-10)
    torch.testing.assert_close(third, left[3], rtol=0, atol=1e-10)


@pytest.mark.parametrize("used", [None, list(range(50, 97))])
def test_ids_that_the_tokenizer_lacks_are_never_drafted(used):
    """A target whose embedding has padding rows: the head's map and head may name them, the draft must not."""
    target = tiny.convert(tiny.reference("llama", 4), torch.float64, vocabulary=60)
    config = heads.config_of(3, None if used is None else len(used))
    draft = Eagle(config, heads.weights_of(config), target, None if used is None else torch.tensor(used))
    for temperature in (0.0, 1.0):
        request = Request(tiny.prompt_of(5, vocabulary=60), 20, Sampling(temperature=temperature))
        record = speculative(target, Chain(draft, build_rule("fixed", 3)), request, k=3).run()
        assert len(record.output_ids) == 20
    assert (draft.vocabulary is None) if used is None else draft.vocabulary.tolist() == list(range(50, 60))


def test_a_heads_own_embedding_is_used():
    target, config = heads.target_of(), heads.config_of()
    weights = heads.weights_of(config)
    features = target.forward(tiny.prompt_of(5)[:-1], target.new_cache(64), taps=config.taps).features

    def first(extra):
        draft = Eagle(config, weights | extra, target)
        draft.start(tiny.prompt_of(5), features, SimpleNamespace(capacity=64, target=target))
        return draft.root()

    same = tiny.reference("llama", 4).state_dict()["model.embed_tokens.weight"]
    torch.testing.assert_close(first({"embedding": same}), first({}))
    assert not torch.allclose(first({"embedding": 2 * same.roll(1, 0)}), first({}))


def test_a_kind_is_built_from_its_entry_and_a_depth_beyond_its_training_is_said_once(tmp_path):
    target, config = heads.target_of(), replace(heads.config_of(3, 30), trained_depth=3)
    write_head(tmp_path, config, heads.weights_of(config), heads.vocabulary_of(30), tiny.VOCABULARY)
    spec = {"kind": "eagle", "head": str(tmp_path)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build_drafter(spec, target, policy="fixed", k=3)
        assert not caught
        drafter = build_drafter(spec, target, policy="max_prob", k=5, threshold=0.3)
        build_drafter(spec, target, policy="fixed", k=5, draft=drafter.model)
    assert [str(w.message) for w in caught] == [
        f"draft head {tmp_path}: k = 5, but it was trained for 3 self-fed steps; deeper guesses are worse"
    ]
    assert isinstance(drafter.model, Eagle) and drafter.model.model_id and drafter.rule.name == "max_prob"
    request = Request(tiny.prompt_of(5), 12)
    assert (
        speculative(target, drafter, request, k=5).run().output_ids == autoregressive(target, request).run().output_ids
    )
    with pytest.raises(UserError, match="no config.json"):
        build_drafter(spec | {"head": str(tmp_path / "none")}, target, policy="fixed", k=3)
