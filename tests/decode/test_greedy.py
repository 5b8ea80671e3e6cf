"""At temperature 0 every drafter, depth rule, verifier and K gives the baseline's tokens, exactly in float64."""

from functools import cache

import pytest
import torch

from specdec.decode import Request, autoregressive, speculative
from specdec.drafters import Chain, LanguageModel, LayerSkip, NGram
from specdec.growth import build_rule
from specdec.verifiers import VERIFIERS, build_verifier
from tests.helpers import oracle, tiny

TOKENS, LAYERS = 14, 3
RULES = {"fixed": None, "max_prob": 0.3, "margin": 0.1, "entropy": 2.3, "history": None}
LENGTHS = (1, 2, 7, 30, 200)
EOS = frozenset({tiny.EOS})


@cache
def answer(family: str, length: int) -> tuple[int, ...]:
    """The baseline's tokens."""
    return tuple(autoregressive(model(family), request(length)).run().output_ids)


def model(family: str):
    return tiny.transformer(family, layers=LAYERS)


def request(length: int, tokens: int = TOKENS) -> Request:
    return Request(prompt(length), tokens, eos_ids=EOS)


def prompt(length: int) -> list[int]:
    """Its end repeats its start, so that a lookup finds something."""
    ids = tiny.prompt_of(length)
    return ids[: length // 2] + ids[: length - length // 2]


def check(family, length, drafter, verifier, k, tokens=TOKENS):
    """Decode and compare; the cache is checked behind every round."""
    generation = speculative(model(family), drafter, request(length, tokens), k=k, verifier=build_verifier(verifier))
    emitted = []
    for record in generation:
        emitted += record.tokens
        assert generation.cache.length == length + len(emitted) - 1
        assert record.accepted <= record.drafted and record.requested == min(
            k, tokens - len(emitted) + len(record.tokens) - 1
        )
    assert tuple(emitted) == answer(family, length)[:tokens], f"{family}, {length} tokens, {verifier}, K = {k}"
    assert generation.record.output_ids == emitted
    return generation.record


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("length", LENGTHS)
def test_the_baseline_is_the_naive_loop(family, length):
    naive = tiny.greedy_loop(tiny.reference(family, layers=LAYERS, dtype=torch.float64), prompt(length), TOKENS)
    cut = naive.index(tiny.EOS) + 1 if tiny.EOS in naive else TOKENS
    assert answer(family, length) == tuple(naive[:cut])


STEPWISE = {
    "language_model": lambda target, family: LanguageModel(tiny.transformer(family, layers=1, seed=7)),
    "near language_model": lambda target, family: LanguageModel(tiny.cousin(family, LAYERS)),
    "skipped attention": lambda target, family: LayerSkip(target, skip_attention=(1,)),
    "skipped mlp": lambda target, family: LayerSkip(target, skip_mlp=(0,)),
    **{f"layer_skip {n}": lambda target, family, n=n: LayerSkip(target, n) for n in range(1, LAYERS + 1)},
}
WHOLE = {
    **{f"ngram {rule}": lambda family, length, rule=rule: NGram(rule) for rule in ("first", "first_full", "longest")},
    "oracle": lambda family, length: oracle.Oracle(answer(family, length)),
    "lying oracle": lambda family, length: oracle.Oracle(answer(family, length), lies={1, 2, 5, 9}),
    "random tokens": lambda family, length: oracle.RandomTokens(),
    "always the end": lambda family, length: oracle.AlwaysEos(tiny.EOS),
    "empty": lambda family, length: oracle.Empty(),
}


def cases():
    """Verifiers and K in full; families and prompt lengths go around beside them."""
    number = 0
    for verifier in VERIFIERS:
        for k in range(1, 9):
            yield tiny.FAMILIES[number % len(tiny.FAMILIES)], LENGTHS[number % len(LENGTHS)], verifier, k
            number += 1


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", STEPWISE)
def test_drafts_made_step_by_step_give_the_baselines_tokens(kind, rule):
    for family, length, verifier, k in cases():
        draft = STEPWISE[kind](model(family), family)
        drafter = Chain(draft, build_rule(rule, k, RULES[rule]))
        record = check(family, length, drafter, verifier, k)
        if "language_model" in kind:
            assert draft._committed + len(draft._pending) == length + len(record.output_ids)


@pytest.mark.parametrize("kind", WHOLE)
def test_drafts_made_in_one_go_give_the_baselines_tokens(kind):
    for family, length, verifier, k in cases():
        check(family, length, WHOLE[kind](family, length), verifier, k)


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("length", LENGTHS)
def test_trees_with_decoys_give_the_baselines_tokens(family, length):
    for k in (1, 2, 4, 8):
        for lies in ((), (1, 4), (0, 2, 3)):
            drafter = oracle.Decoys(answer(family, length), lies)
            generation = speculative(model(family), drafter, request(length), k=k)
            emitted = []
            for record in generation:
                emitted += record.tokens
                assert generation.cache.length == length + len(emitted) - 1
            assert tuple(emitted) == answer(family, length)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_long_text_of_many_rejections_gives_the_baselines_tokens(family):
    target, k = model(family), 5
    text = Request(tiny.prompt_of(1), 64)
    expected = autoregressive(target, text).run().output_ids
    draft = LanguageModel(tiny.transformer(family, layers=1, seed=9))
    record = speculative(target, Chain(draft, build_rule("fixed", k)), text, k=k).run()
    assert record.output_ids == expected
    assert sum(r.source == "correction" for r in record.rounds) > 20, "this test wants rejections"


def test_one_output_whatever_k_and_shape():
    target, text = model("llama"), request(30)
    outputs = set()
    for k in (1, 2, 5, 8):
        for drafter in (
            Chain(LayerSkip(target, 2), build_rule("fixed", k)),
            NGram(),
            oracle.Decoys(answer("llama", 30), {2}),
            oracle.Decoys(answer("llama", 30), {0, 3}),
        ):
            outputs.add(tuple(speculative(target, drafter, text, k=k).run().output_ids))
    assert outputs == {answer("llama", 30)}


@pytest.mark.parametrize("prompt_of", [1, 7])
def test_a_tree_with_one_child_a_node_is_the_chain(prompt_of):
    target, text = model("qwen3"), request(prompt_of)
    chain = speculative(target, oracle.Oracle(answer("qwen3", prompt_of), {3}), text, k=1).run()
    tree = speculative(target, oracle.Decoys(answer("qwen3", prompt_of), {3}), text, k=1).run()
    summary = [(r.tokens, r.drafted, r.accepted, r.source) for r in chain.rounds]
    assert summary == [(r.tokens, r.drafted, r.accepted, r.source) for r in tree.rounds]
