"""Above temperature 0 trees and adaptive depths leave the target's law: every branch is walked."""

import pytest
import torch

from specdec.decode import Request, speculative
from specdec.growth import Chain, CoarseFine, Ddd, Eagle2, OptTree, SampledTree, StaticTree, build_rule
from specdec.growth.depth_text import TokenType
from specdec.sampling import Sampling
from specdec.tree import LAWS, POINT, WITH_REPLACEMENT, WITHOUT_REPLACEMENT
from specdec.verifiers import VERIFIERS, build_verifier
from tests.helpers.enumerate import distance, walk
from tests.helpers.toy import DRAFT, ToyDraft, ToyModel, law_of_texts

EXACT = 1e-12
PLAIN = Sampling(temperature=1.0)
TREES = {name: rule for name, rule in VERIFIERS.items() if rule.lossless and "tree" in rule.shapes}
FOR_LAW = {law: [name for name, rule in TREES.items() if law in rule.laws and not rule.greedy_only] for law in LAWS}
RULES = {"svip": 1.0, "adaedl": 0.55, "draft_verify": 0.4, "pid": 0.6, "cost": 0.4, "difficulty": 0.2}


def whole(make, sampling=PLAIN, *, k=2, nodes=None, count=3, eos=frozenset(), verifier="rejection", prompt=(0,)):
    """The law of whole texts of `count` tokens, and the target's own."""
    target = ToyModel()

    def run(branch):
        request = Request(prompt, count, sampling, eos_ids=eos, stream=lambda purpose: branch)
        generation = speculative(target, make(), request, k=k, nodes=nodes, verifier=build_verifier(verifier))
        return tuple(generation.run().output_ids)

    return walk(run), law_of_texts(target, prompt[-1], count, sampling, eos)


def one_round(make, verifier, sampling=PLAIN, *, k=2, nodes=None, root=0, eos=frozenset()):
    """The law of K + 1 tokens when the target goes on alone after the first round, and the target's own."""
    target, law = ToyModel(), {}

    def run(branch):
        request = Request([root], 9, sampling, eos_ids=eos, stream=lambda purpose: branch)
        generation = speculative(target, make(), request, k=k, nodes=nodes, verifier=build_verifier(verifier))
        return next(iter(generation)).tokens

    for tokens, probability in walk(run).items():
        rest = {(): 1.0}
        if len(tokens) <= k and tokens[-1] not in eos:
            rest = law_of_texts(target, tokens[-1], k + 1 - len(tokens), sampling, eos)
        for more, share in rest.items():
            law[tokens + more] = law.get(tokens + more, 0.0) + probability * share
    return law, law_of_texts(target, root, k + 1, sampling, eos)


def draft(columns=None):
    if columns is None:
        return ToyDraft(DRAFT)
    table = torch.tensor(DRAFT, dtype=torch.float64)[:, : len(columns)]
    return ToyDraft((table / table.sum(-1, keepdim=True)).tolist(), columns)


# -- depth rules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("prompt", [(0,), (1, 2, 1, 2)])
def test_texts_follow_the_target_under_every_depth_rule(rule, prompt):
    for eos in (frozenset(), frozenset({1})):
        law, expected = whole(lambda: Chain(draft(), build_rule(rule, 2, RULES[rule])), prompt=prompt, eos=eos)
        assert distance(law, expected) <= EXACT


def test_texts_follow_the_target_when_the_depth_hangs_on_kinds_of_tokens():
    kinds = ["word", "number", "space"]
    law, expected = whole(lambda: Chain(draft(), TokenType(2, 0.7, kinds)), count=4)
    assert distance(law, expected) <= EXACT


@pytest.mark.parametrize("rule", ["draft_verify", "token_type"])
def test_rules_that_look_at_the_token_do_so_over_a_part_of_the_ids(rule):
    def make():
        chosen = build_rule(rule, 2, 0.5) if rule != "token_type" else TokenType(2, 0.7, ["word", "number", "space"])
        return Chain(draft((2, 1)), chosen)

    law, expected = whole(make)
    assert distance(law, expected) <= EXACT


# -- sampled trees ----------------------------------------------------------------------------------------------------

SAMPLED = [(law, verifier) for law in (WITH_REPLACEMENT, WITHOUT_REPLACEMENT) for verifier in FOR_LAW[law]]


@pytest.mark.parametrize("law, verifier", SAMPLED)
@pytest.mark.parametrize("widths", [(2, 1), (1, 2), (3,), ((0,), (0, 0), (1,), (0, 1))])
def test_a_sampled_tree_leaves_the_targets_law(law, verifier, widths):
    depth = 1 if widths == (3,) else 2
    found, expected = one_round(
        lambda: SampledTree(draft(), widths, law == WITH_REPLACEMENT), verifier, k=depth, nodes=5
    )
    assert distance(found, expected) <= EXACT


@pytest.mark.parametrize("law, verifier", SAMPLED)
def test_a_sampled_tree_with_ends_of_text_cuts_and_warping_leaves_the_targets_law(law, verifier):
    for options in (
        {"eos": frozenset({1})},
        {"nodes": 3},
        {"sampling": Sampling(temperature=1.0, top_k=2)},
        {"sampling": Sampling(temperature=0.7, draft_temperature=2.0)},
        {"sampling": Sampling(temperature=1.0, draft_temperature=0.0)},  # greedy: points
    ):
        if options.get("sampling", PLAIN).for_draft.greedy and verifier not in FOR_LAW[POINT]:
            continue
        found, expected = one_round(
            lambda: SampledTree(draft(), (2, 1), law == WITH_REPLACEMENT), verifier, **({"nodes": 4} | options)
        )
        assert distance(found, expected) <= EXACT
    found, expected = one_round(lambda: SampledTree(draft((2, 1)), (2, 1), law == WITH_REPLACEMENT), verifier, nodes=4)
    assert distance(found, expected) <= EXACT


@pytest.mark.parametrize("law, verifier", SAMPLED)
def test_whole_texts_of_sampled_trees_follow_the_target(law, verifier):
    found, expected = whole(
        lambda: SampledTree(draft(), (2,), law == WITH_REPLACEMENT), k=1, nodes=2, count=2, verifier=verifier
    )
    assert distance(found, expected) <= EXACT


# -- chosen trees -----------------------------------------------------------------------------------------------------

CHOSEN = {
    "static": lambda m: StaticTree(m, ((0,), (2,), (0, 1), (2, 0))),
    "medusa": lambda m: StaticTree(m, "medusa"),
    "eagle2": lambda m: Eagle2(m, 2),
    "ddd": lambda m: Eagle2(m, 2, level_rule=Ddd((1,), -0.3)),
    "opt_tree": lambda m: OptTree(m, 4, 0.3),
    "coarse_fine": lambda m: CoarseFine(StaticTree(m, (2, 1)), Eagle2(m, 2)),
}


@pytest.mark.parametrize("shape", CHOSEN)
@pytest.mark.parametrize("verifier", FOR_LAW[POINT])
def test_a_chosen_tree_leaves_the_targets_law(verifier, shape):
    for options in ({}, {"eos": frozenset({1})}, {"sampling": Sampling(temperature=1.3, top_p=0.9)}):
        found, expected = whole(lambda: CHOSEN[shape](draft()), nodes=5, verifier=verifier, **options)
        assert distance(found, expected) <= EXACT


def test_there_are_verifiers_for_every_law():
    assert all(FOR_LAW.values())
