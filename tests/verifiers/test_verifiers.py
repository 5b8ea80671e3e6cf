"""Verification: what is emitted follows the target, and nothing that was given is changed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.drafters.base import Budget, Context
from specdec.errors import UserError
from specdec.growth import Chain, build_rule
from specdec.sampling import GREEDY, RandomStream, Sampling
from specdec.tree import POINT, WITH_REPLACEMENT, WITHOUT_REPLACEMENT, Draft
from specdec.verifiers import VERIFIERS, TargetRows, Verdict, Verifier, build_verifier
from tests.helpers.enumerate import walk
from tests.helpers.growing import ScriptedModel
from tests.helpers.toy import ToyModel

PLAIN = Sampling(temperature=1.0)


def rows_of(*laws, sampling: Sampling = PLAIN) -> TargetRows:
    return TargetRows(torch.tensor(laws, dtype=torch.float64).log(), sampling)


def emitted(draft: Draft, verdict: Verdict) -> tuple[int, ...]:
    return (*(draft.tokens[node] for node in verdict.path), verdict.next_token)


def law_of_first(run) -> list[float]:
    """The law of the first token emitted, of three."""
    law = walk(lambda branch: run(branch)[0])
    return [law.get(token, 0.0) for token in range(3)]


def near(law, expected, tolerance=1e-12) -> bool:
    return max(abs(a - b) for a, b in zip(law, expected, strict=True)) <= tolerance


# -- greedy -----------------------------------------------------------------------------------------------------------


def greedy(draft: Draft, *best: int) -> Verdict:
    """The verdict when the target's largest logit after the root, node 0, ... is `best`."""
    logits = torch.nn.functional.one_hot(torch.tensor(best), 10).double()
    return build_verifier("greedy").verify(draft, TargetRows(logits, GREEDY), None)


def test_the_greedy_walk_follows_a_chain_as_far_as_it_agrees():
    chain = Draft.chain([4, 5, 6])
    assert greedy(chain, 4, 5, 6, 7) == Verdict((0, 1, 2), 7, "bonus")
    assert greedy(chain, 4, 9, 6, 7) == Verdict((0,), 9, "correction")
    assert greedy(chain, 9, 5, 6, 7) == Verdict((), 9, "correction")


def test_the_greedy_walk_of_nothing_is_one_step_of_the_target():
    assert greedy(Draft(), 3) == Verdict((), 3, "bonus")


def test_the_greedy_walk_follows_the_one_branch_that_agrees():
    tree = Draft((1, 2, 1, 3, 4, 5), (-1, -1, 0, 1, 1, 4))
    assert greedy(tree, 2, 0, 4, 0, 0, 5, 8) == Verdict((1, 4, 5), 8, "bonus")
    assert greedy(tree, 2, 0, 4, 0, 0, 7, 8) == Verdict((1, 4), 7, "correction")
    assert greedy(tree, 1, 9, 0, 0, 0, 0, 0) == Verdict((0,), 9, "correction")
    assert greedy(tree, 2, 0, 3, 0, 6, 0, 0) == Verdict((1, 3), 6, "bonus")  # node 3 is a leaf
    assert greedy(tree, 7, 0, 0, 0, 0, 0, 0) == Verdict((), 7, "correction")


def test_at_temperature_zero_the_largest_target_probability_wins_whatever_p_over_q():
    """p(a) = .3 is above q(a) = .2, and yet b with p(b) = .5 is the target's one-hot law."""
    laws = ((0.3, 0.5, 0.2), (0.3, 0.5, 0.2))
    for name in VERIFIERS:
        draft = Draft.chain([0])
        verdict = build_verifier(name).verify(draft, rows_of(*laws, sampling=GREEDY), RandomStream(0, "", ""))
        assert verdict == Verdict((), 1, "correction")


# -- rejection, exact laws --------------------------------------------------------------------------------------------


def point(token: int, p, bonus=(0.2, 0.3, 0.5)):
    draft, rows = Draft.chain([token]), rows_of(p, bonus)
    return lambda branch: emitted(draft, build_verifier("rejection").verify(draft, rows, branch))


def sampled(q, p, bonus=(0.2, 0.3, 0.5), law=WITHOUT_REPLACEMENT):
    q = torch.tensor([q], dtype=torch.float64)
    rows = rows_of(p, bonus)

    def run(branch):
        draft = Draft.chain([branch.draw(q[0])], law, q)
        return emitted(draft, build_verifier("rejection").verify(draft, rows, branch))

    return run


def test_a_token_taken_as_an_argmax_counts_as_certain():
    """Its soft q would give [.75, .25] here."""
    draft, rows = Draft.chain([0]), rows_of((0.6, 0.4), (0.5, 0.5))
    law = walk(lambda branch: emitted(draft, build_verifier("rejection").verify(draft, rows, branch))[0])
    assert near([law[0], law[1]], [0.6, 0.4])


@pytest.mark.parametrize("candidate", [0, 1, 2])
def test_a_candidate_chosen_deterministically_is_exact_even_if_it_is_second_best(candidate):
    assert near(law_of_first(point(candidate, (0.5, 0.3, 0.2))), [0.5, 0.3, 0.2])


@pytest.mark.parametrize("law", [WITHOUT_REPLACEMENT, WITH_REPLACEMENT])
def test_the_q_that_is_stored_is_the_q_that_was_drawn_from(law):
    """Draft logits [2, 1, 0] at temperature .5; a raw q would give [.2606, .4499, .2895]."""
    model = ScriptedModel([torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64)] * 9999)
    rows, stored = rows_of((0.2, 0.5, 0.3), (0.2, 0.3, 0.5)), []
    sampling = Sampling(temperature=1.0, draft_temperature=0.5)

    def run(branch):
        chain = Chain(model, build_rule("fixed", 1))
        chain.start([0], None, Context(sampling, branch, ToyModel(), None))
        draft = chain.propose(Budget(1, 1))
        stored.append(draft.q[0])
        draft = Draft(draft.tokens, draft.parents, law, draft.q)
        return emitted(draft, build_verifier("rejection").verify(draft, rows, branch))

    assert near(law_of_first(run), [0.2, 0.5, 0.3])
    assert near(stored[0].tolist(), [0.8668, 0.1173, 0.0159], 5e-5)


def test_the_draw_behind_an_accepted_token_follows_its_own_row():
    law = walk(sampled((0.2, 0.5, 0.3), (0.5, 0.3, 0.2), bonus=(0.1, 0.2, 0.7)))
    accepted = {text: value for text, value in law.items() if len(text) == 2}
    for first, mass in enumerate((0.2, 0.3, 0.2)):  # min(p, q)
        for second, share in enumerate((0.1, 0.2, 0.7)):
            assert abs(accepted[first, second] - mass * share) <= 1e-12


def test_equal_laws_accept_everything():
    p = (0.5, 0.3, 0.2)
    same = rows_of(p).law(0).tolist()  # to the last bit
    law = walk(sampled(same, p))
    assert all(len(text) == 2 for text in law)
    assert near(law_of_first(sampled(same, p)), p)


laws = st.lists(st.integers(0, 6), min_size=3, max_size=3).filter(any).map(lambda n: tuple(x / sum(n) for x in n))


@given(p=laws, q=laws)
@settings(max_examples=80, deadline=None)
def test_any_draft_law_leaves_the_targets_law(p, q):
    assert near(law_of_first(sampled(q, p)), p)
    overlap = sum(map(min, p, q))
    accepted = sum(value for text, value in walk(sampled(q, p)).items() if len(text) == 2)
    assert abs(accepted - overlap) <= 1e-12


@given(p=laws, token=st.integers(0, 2))
@settings(max_examples=40, deadline=None)
def test_any_point_leaves_the_targets_law(p, token):
    assert near(law_of_first(point(token, p)), p)


def test_filters_hold_at_the_draft_at_the_correction_and_at_the_bonus():
    """p = [.4, .3, .2, .1] with top_p .5 is [4/7, 3/7, 0, 0]."""
    p = (0.4, 0.3, 0.2, 0.1)
    rows = rows_of(p, p, sampling=Sampling(temperature=1.0, top_p=0.5))
    q = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)

    def run(branch):
        draft = Draft.chain([branch.draw(q[0])], WITHOUT_REPLACEMENT, q)
        return emitted(draft, build_verifier("rejection").verify(draft, rows, branch))

    law = walk(run)
    first = [sum(v for text, v in law.items() if text[0] == token) for token in range(4)]
    assert near(first, [4 / 7, 3 / 7, 0, 0])
    second = [sum(v for text, v in law.items() if text[1:] == (token,)) for token in range(4)]
    assert near([x / sum(second) for x in second], [4 / 7, 3 / 7, 0, 0])


def test_float32_laws_that_only_rounding_tells_apart_still_give_a_token():
    logits = torch.randn(2, 50)
    q = logits[:1].softmax(-1)
    for token in range(50):
        draft = Draft.chain([token], WITHOUT_REPLACEMENT, q)
        verdict = build_verifier("rejection").verify(draft, TargetRows(logits, PLAIN), RandomStream(token, "", ""))
        assert 0 <= verdict.next_token < 50


def test_draft_and_target_may_differ_in_precision():
    p, q = torch.tensor([[0.5, 0.3, 0.2]] * 2, dtype=torch.float64).log(), torch.tensor([[0.2, 0.5, 0.3]])
    draft = Draft.chain([1], WITHOUT_REPLACEMENT, q)
    for logits in (p, p.float(), p.bfloat16()):
        build_verifier("rejection").verify(draft, TargetRows(logits, PLAIN), RandomStream(0, "", ""))


# -- manners ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VERIFIERS)
@pytest.mark.parametrize("law", [POINT, WITHOUT_REPLACEMENT])
def test_inputs_are_not_changed_and_the_same_inputs_give_the_same_verdict(name, law):
    sampling = GREEDY if name == "greedy" else Sampling(temperature=0.9, top_k=4, top_p=0.95)
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(5, 6, generator=generator)
    q = torch.rand(4, 6, generator=generator).softmax(-1) if law != POINT else None
    draft, rows = Draft.chain([1, 2, 3, 4], law, q), TargetRows(logits, sampling)
    before = logits.clone(), None if q is None else q.clone()
    verdicts = {build_verifier(name).verify(draft, rows, RandomStream(9, "p", "verify")) for _ in range(3)}
    assert len(verdicts) == 1
    assert torch.equal(logits, before[0]) and (q is None or torch.equal(q, before[1]))


def test_sampling_is_refused_by_a_rule_that_is_exact_for_greedy_only():
    with pytest.raises(UserError, match=r"verifier greedy: exact at temperature 0 only, not at 0\.7"):
        build_verifier("greedy").check_sampling(Sampling(temperature=0.7))
    build_verifier("greedy").check_sampling(GREEDY)
    for sampling in (GREEDY, PLAIN):
        build_verifier("rejection").check_sampling(sampling)


def test_a_shape_a_rule_is_not_exact_for_is_refused_by_name():
    tree = Draft((1, 2), (-1, -1))
    with pytest.raises(UserError, match="verifier rejection: not exact for a tree; allowed: chain"):
        build_verifier("rejection").check_draft(tree)
    build_verifier("greedy").check_draft(tree)
    for name in VERIFIERS:
        build_verifier(name).check_draft(Draft())


def test_a_law_a_rule_is_not_exact_for_is_refused_by_name():
    class PointsOnly(Verifier):
        name, laws = "points_only", frozenset({POINT})

    q = torch.full((1, 3), 1 / 3)
    with pytest.raises(
        UserError, match="points_only: not exact for proposals drawn without_replacement; allowed: point"
    ):
        PointsOnly().check_draft(Draft.chain([1], WITHOUT_REPLACEMENT, q))
    PointsOnly().check_draft(Draft.chain([1]))


def test_an_unknown_rule_names_those_that_are_known():
    with pytest.raises(UserError, match=r'unknown verifier "exact"; allowed: .*greedy.*rejection'):
        build_verifier("exact")
