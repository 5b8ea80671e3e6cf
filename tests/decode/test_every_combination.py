"""Every draft, shape, depth rule and verifier that may be combined: at temperature 0 the baseline's tokens, all others
refused with the reason."""

from functools import cache

import pytest

from specdec.decode import Request, autoregressive, speculative
from specdec.drafters import Eagle, LanguageModel, LayerSkip, LookupFirst, NGram
from specdec.errors import UserError
from specdec.growth import build_grower
from specdec.growth.rules import RULES
from specdec.growth.sequoia import fit
from specdec.models.tokenizer import Tokenizer
from specdec.verifiers import VERIFIERS, build_verifier
from tests.helpers import heads, tiny

FAMILY, K, NODES, TOKENS = "llama", 3, 7, 12

DRAFTS = {
    "near": lambda target: LanguageModel(tiny.cousin(FAMILY, 4)),
    "layer_skip": lambda target: LayerSkip(target, 2),
    "skipped blocks": lambda target: LayerSkip(target, skip_attention=(1,), skip_mlp=(0,)),
    "eagle3": lambda target: head(target, 3, 20),
    "eagle1": lambda target: head(target, 1, None),
}
TREES = {
    "medusa": {"kind": "static_tree", "paths": "medusa"},
    "paths": {"kind": "static_tree", "paths": ((0,), (1,), (1, 0), (2,), (0, 2))},
    "fitted": {"kind": "static_tree", "paths": fit((0.5, 0.3, 0.1), NODES, K).paths},
    "without replacement": {"kind": "sampled_tree", "widths": (2, 2, 1)},
    "with replacement": {"kind": "sampled_tree", "widths": (2, 2, 1), "replacement": True},
    "eagle2": "eagle2",
    "opt_tree": {"kind": "opt_tree", "delta": 0.05},
    "coarse_fine": {"kind": "coarse_fine", "coarse": {"kind": "static_tree", "paths": (3, 2)}, "fine": "chain"},
}
CHAINS = {name: min(0.5, rule.range[1]) if rule.range else None for name, rule in RULES.items()}
CHAIN_ONLY = ("block", "rejection")


def head(target, version: int, size: int | None) -> Eagle:
    config = heads.config_of(version, size)
    return Eagle(config, heads.weights_of(config), target, None if size is None else heads.vocabulary_of(size))


@cache
def target():
    return heads.target_of(FAMILY)


def request(length: int) -> Request:
    return Request(tiny.prompt_of(length), TOKENS, eos_ids=frozenset({tiny.EOS}))


@cache
def answer(length: int) -> list[int]:
    return autoregressive(target(), request(length)).run().output_ids


def outputs(make, verifier: str) -> bool:
    """Decode two prompts; whether anything was drafted."""
    drafted = 0
    for length in (2, 9):
        generation = speculative(target(), make(), request(length), k=K, nodes=NODES, verifier=build_verifier(verifier))
        record = generation.run()
        assert record.output_ids == answer(length)
        drafted += sum(r.drafted for r in record.rounds)
    return drafted > 0


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("rule", CHAINS)
@pytest.mark.parametrize("draft", DRAFTS)
def test_chains_under_every_rule_give_the_baselines_tokens(draft, rule, verifier):
    def make():
        model = DRAFTS[draft](target())
        return build_grower(
            "chain",
            model,
            k=K,
            policy=rule,
            threshold=CHAINS[rule],
            tokenizer=Tokenizer(tiny.tokenizer(), [tiny.EOS], "test"),
        )

    assert outputs(make, verifier) or rule in ("cost", "difficulty")


@pytest.mark.parametrize("verifier", [name for name in VERIFIERS if name not in (*CHAIN_ONLY, "spectr")])
@pytest.mark.parametrize("shape", TREES)
@pytest.mark.parametrize("draft", DRAFTS)
def test_trees_under_every_rule_for_trees_give_the_baselines_tokens(draft, shape, verifier):
    assert outputs(lambda: build_grower(TREES[shape], DRAFTS[draft](target()), k=K), verifier)


@pytest.mark.parametrize("draft", DRAFTS)
def test_trees_that_decide_their_depth_do_too(draft):
    def make():
        return build_grower({"kind": "eagle2", "levels": [1, 2]}, DRAFTS[draft](target()), k=K, policy="ddd")

    assert outputs(make, "greedy")


@pytest.mark.parametrize("shape", ["chain", *TREES])
@pytest.mark.parametrize("draft", DRAFTS)
def test_looking_up_first_gives_the_baselines_tokens_as_well(draft, shape):
    def make():
        grower = build_grower((TREES | {"chain": "chain"})[shape], DRAFTS[draft](target()), k=K)
        return LookupFirst(NGram("longest", 2, 1), grower)

    assert outputs(make, "greedy")


@pytest.mark.parametrize("rule", CHAINS)
def test_looking_up_first_does_so_under_every_rule(rule):
    def make():
        tokenizer = Tokenizer(tiny.tokenizer(), [tiny.EOS], "test")
        options = {"policy": rule, "threshold": CHAINS[rule], "tokenizer": tokenizer}
        return LookupFirst(NGram("longest", 2, 1), build_grower("chain", DRAFTS["near"](target()), k=K, **options))

    assert outputs(make, "greedy")


@pytest.mark.parametrize("rule", ["longest", "first", "first_full"])
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_copied_text_under_every_rule_gives_the_baselines_tokens(rule, verifier):
    outputs(lambda: NGram(rule), verifier)


@pytest.mark.parametrize("verifier", CHAIN_ONLY)
@pytest.mark.parametrize("shape", TREES)
def test_rules_for_chains_refuse_trees(shape, verifier):
    with pytest.raises(UserError, match=f"verifier {verifier}: not exact for a tree; allowed: chain"):
        outputs(lambda: build_grower(TREES[shape], DRAFTS["near"](target()), k=K), verifier)


@pytest.mark.parametrize("shape", [name for name in TREES if name != "with replacement"])
def test_a_rule_for_independent_candidates_refuses_others(shape):
    with pytest.raises(UserError, match="verifier spectr: not exact for proposals"):
        outputs(lambda: build_grower(TREES[shape], DRAFTS["near"](target()), k=K), "spectr")


@pytest.mark.parametrize("policy", [name for name in RULES if name not in ("fixed", "cost")])
@pytest.mark.parametrize("shape", ["static_tree", "sampled_tree", "eagle2", "opt_tree"])
def test_a_chains_depth_rule_is_refused_for_a_tree(shape, policy):
    with pytest.raises(UserError, match=policy):
        build_grower(shape, DRAFTS["near"](target()), k=K, policy=policy, threshold=CHAINS[policy])
