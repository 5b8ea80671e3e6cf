"""Trees through the loop: the baseline's tokens, caches, budgets and contexts, for every draft model and shape."""

from functools import cache

import pytest
import torch

from specdec.decode import CONTEXT, Request, autoregressive, speculative
from specdec.drafters import Chain, LanguageModel, LayerSkip
from specdec.errors import UserError
from specdec.growth import CoarseFine, Ddd, Eagle2, OptTree, SampledTree, StaticTree, build_rule
from specdec.verifiers import build_verifier
from tests.helpers import tiny

TOKENS, LAYERS = 16, 3
EOS = frozenset({tiny.EOS})

SHAPES = {
    "eagle1": lambda m, k: StaticTree(m),
    "medusa": lambda m, k: StaticTree(m, "medusa"),
    "uneven": lambda m, k: StaticTree(m, ((0,), (1,), (1, 0), (2,), (1, 0, 3), (0, 2))),
    "sampled": lambda m, k: SampledTree(m, (2, 2, 2)),
    "eagle2": lambda m, k: Eagle2(m, 4),
    "ddd": lambda m, k: Eagle2(m, 3, level_rule=Ddd((1, 2, 3), -1.0)),
    "opt_tree": lambda m, k: OptTree(m, delta=0.05),
    "coarse_fine": lambda m, k: CoarseFine(StaticTree(m, (3, 2)), Chain(m, build_rule("fixed", k))),
}
MODELS = {
    "far": lambda family: LanguageModel(tiny.transformer(family, layers=1, seed=7)),
    "near": lambda family: LanguageModel(tiny.cousin(family, LAYERS)),
    "layer_skip 1": lambda family: LayerSkip(model(family), 1),
    "layer_skip 3": lambda family: LayerSkip(model(family), 3),
}


def model(family: str):
    return tiny.transformer(family, layers=LAYERS)


@cache
def answer(family: str, length: int) -> tuple[int, ...]:
    return tuple(autoregressive(model(family), request(length)).run().output_ids)


def request(length: int, tokens: int = TOKENS) -> Request:
    return Request(tiny.prompt_of(length), tokens, eos_ids=EOS)


def run(family, length, drafter, k, nodes, tokens=TOKENS):
    """Decode; budget, draft and cache are checked behind every round."""
    generation = speculative(
        model(family), drafter, request(length, tokens), k=k, nodes=nodes, verifier=build_verifier("greedy")
    )
    emitted = []
    for record in generation:
        left = tokens - len(emitted)
        assert record.requested == min(k, nodes, left - 1)
        assert record.drafted == len(generation.draft) <= nodes if record.requested else record.drafted == 0
        assert generation.draft.depth <= record.requested or not record.requested
        emitted += record.tokens
        assert generation.cache.length == length + len(emitted) - 1
    assert tuple(emitted) == answer(family, length)[:tokens]
    return generation.record


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", MODELS)
def test_every_shape_over_every_model_gives_the_baselines_tokens(kind, shape):
    settings = ((1, 1), (1, 6), (3, 3), (4, 12), (6, 30), (5, 60))
    for number, (k, nodes) in enumerate(settings):
        family = tiny.FAMILIES[number % len(tiny.FAMILIES)]
        for length in (1, (2, 7, 30, 120)[number % 4]):
            run(family, length, SHAPES[shape](MODELS[kind](family), k), k, nodes)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tokens", [1, 2, 3, 5])
def test_near_the_end_nothing_is_drafted_that_could_not_stay(shape, tokens):
    record = run("qwen3", 7, SHAPES[shape](MODELS["near"]("qwen3"), 6), 6, 20, tokens)
    assert len(record.output_ids) == tokens
    assert record.rounds[-1].requested <= tokens - 1


def test_a_tree_of_one_level_may_have_many_nodes():
    generation = speculative(model("qwen3"), StaticTree(MODELS["near"]("qwen3"), (9, 2)), request(7, 2), k=5, nodes=20)
    assert generation.run().rounds[0].drafted == 9 and generation.draft.depth == 1


@pytest.mark.parametrize("nodes", [0, -3])
def test_a_tree_without_nodes_is_refused(nodes):
    with pytest.raises(UserError, match=f"nodes = {nodes}: must be"):
        speculative(model("qwen3"), StaticTree(MODELS["near"]("qwen3")), request(7), k=5, nodes=nodes)


# -- a tree with one child a node -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("k", [1, 3, 5])
def test_a_tree_with_one_child_a_node_is_the_chain(kind, k):
    def summary(make):
        record = speculative(model("llama"), make(MODELS[kind]("llama")), request(7, 24), k=k).run()
        return [(r.tokens, r.requested, r.drafted, r.accepted, r.source, r.stopped) for r in record.rounds]

    chain = summary(lambda m: Chain(m, build_rule("fixed", k)))
    for make in (
        lambda m: StaticTree(m, (1,) * k),
        lambda m: SampledTree(m, (1,) * k),
        lambda m: Eagle2(m, 1),
        lambda m: Eagle2(m, 1, level_rule=Ddd((), -0.1)),
    ):
        assert summary(make) == chain


# -- caches -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_the_drafts_cache_holds_the_accepted_path_and_nothing_else(shape):
    """After every round the cache of a second model equals a fresh forward of the text, and nothing was fed twice."""
    small, k, nodes = tiny.cousin("qwen3", 2), 4, 20
    target, draft = tiny.transformer("qwen3"), LanguageModel(small)
    prompt = tiny.prompt_of(9)
    generation = speculative(target, SHAPES[shape](draft, k), Request(prompt, 30), k=k, nodes=nodes)
    text, scattered, accepted = list(prompt), 0, 0
    for record in generation:
        text += record.tokens
        behind, cached = len(draft._pending), draft._cache
        assert cached.length == draft._committed == len(text) - behind and draft._pending == text[-behind:]
        if record.requested:
            fed_and_kept = record.accepted if generation.draft.depth > record.accepted else record.accepted - 1
            assert behind <= len(record.tokens) - fed_and_kept + 1
        path = generation.verdict.path
        scattered += len(path) > 1 and any(b - a != 1 for a, b in zip(path, path[1:], strict=False))
        for cache_, reader in ((cached, small), (generation.cache, target)):
            fresh = reader.new_cache(len(text) + 1)
            reader.forward(text[: cache_.length], fresh, logits=False)
            for side in ("keys", "values"):
                kept, true = (getattr(c, side)[:, :, : cache_.length] for c in (cache_, fresh))
                torch.testing.assert_close(kept, true, rtol=0, atol=1e-10)
        accepted += record.accepted
    assert accepted and scattered, "this test wants accepted paths that are not contiguous"


def test_rows_of_a_tree_are_rows_of_its_texts():
    """Each node's row equals a plain forward of its own text: no branch sees another."""
    target = model("qwen3")
    generation = speculative(target, Eagle2(MODELS["near"]("qwen3"), 4), request(9), k=4, nodes=14)
    scored = []
    plain = generation._score
    generation._score = lambda *arguments: scored.append(plain(*arguments)) or scored[-1]
    text = list(tiny.prompt_of(9))
    for record in generation:
        tree, rows = generation.draft, scored[-1].logits
        for node in range(len(tree)):
            path, at = [], node
            while at != -1:
                path.insert(0, tree.tokens[at])
                at = tree.parents[at]
            fresh = target.forward([*text, *path], target.new_cache(64)).logits[-1]
            torch.testing.assert_close(rows[node + 1], fresh, rtol=0, atol=1e-9)
        text += record.tokens


# -- contexts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["near", "layer_skip"])
def test_a_full_context_ends_the_text(shape, kind):
    """The target's context, which the draft shares, is reached to the last token."""
    target = tiny.transformer("qwen3", max_position_embeddings=40)
    for length in (1, 25, 38, 39):
        draft = LayerSkip(target, 1) if kind == "layer_skip" else LanguageModel(target)
        text = Request(tiny.prompt_of(length), 1000)
        record = speculative(target, SHAPES[shape](draft, 5), text, k=5, nodes=40).run()
        assert record.stop_reason == CONTEXT and len(record.output_ids) == 40 - length
        assert record.output_ids == autoregressive(target, text).run().output_ids


@pytest.mark.parametrize("shape", SHAPES)
def test_a_draft_whose_context_is_shorter_than_the_text_stops_drafting(shape):
    target = tiny.transformer("llama")
    small = tiny.transformer("llama", layers=1, seed=4, max_position_embeddings=20)
    text = Request(tiny.prompt_of(10), 24)
    record = speculative(target, SHAPES[shape](LanguageModel(small), 5), text, k=5, nodes=60).run()
    assert record.output_ids == autoregressive(target, text).run().output_ids
    assert record.rounds[0].drafted > 0 and record.rounds[-2].stopped == "context"


def test_a_cache_has_room_for_a_beam_wider_than_the_tree_that_stays():
    """Across the end of a block: 125 of 128 slots are taken (two blocks) before a beam of many rows is fed."""
    target = model("llama")
    for length in (110, 120, 126):
        text = Request(tiny.prompt_of(length), 4)
        for draft in (LayerSkip(target, 1), LanguageModel(tiny.cousin("llama", LAYERS))):
            record = speculative(target, Eagle2(draft, 40), text, k=4, nodes=5).run()
            assert record.output_ids == autoregressive(target, text).run().output_ids


def test_a_draft_without_the_targets_last_ids_proposes_trees_too():
    target = tiny.transformer("llama")
    small = tiny.transformer("llama", layers=1, seed=4, vocab_size=60)
    text = Request(tiny.prompt_of(5, vocabulary=60), 24)
    expected = autoregressive(target, text).run().output_ids
    for shape in SHAPES.values():
        drafter = shape(LanguageModel(small, target.vocabulary), 4)
        assert speculative(target, drafter, text, k=4, nodes=16).run().output_ids == expected
