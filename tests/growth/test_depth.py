"""Depth rules: when a draft stops."""

import math

import pytest
import torch

from specdec.errors import UserError
from specdec.growth import Chain, build_rule
from specdec.sampling import GREEDY, Sampling
from specdec.tree import WITHOUT_REPLACEMENT
from tests.helpers.growing import ScriptedModel, draft

THRESHOLDS = {"max_prob": 0.5, "margin": 0.3, "entropy": 1.0}
RULES = (*THRESHOLDS, "fixed", "history")


def logits(*law: float) -> torch.Tensor:
    return torch.tensor(law, dtype=torch.float64).log()


def top(confidence: float) -> torch.Tensor:
    """A law of four tokens with this largest probability."""
    return logits(confidence, *[(1 - confidence) / 3] * 3)


# -- numbers by hand --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "law, threshold, goes_on",
    [((0.6, 0.3, 0.1), 0.6, True), ((0.6, 0.3, 0.1), 0.61, False), ((0.1, 0.8, 0.1), 0.7, True)],
)
def test_max_prob_is_the_largest_probability(law, threshold, goes_on):
    assert build_rule("max_prob", 8, threshold - 1e-12).after(0, logits(*law), 2) is goes_on


@pytest.mark.parametrize(
    "law, threshold, goes_on",
    [((0.6, 0.3, 0.1), 0.3, True), ((0.6, 0.3, 0.1), 0.31, False), ((0.1, 0.45, 0.45), 0.01, False)],
)
def test_margin_is_the_difference_of_the_two_largest(law, threshold, goes_on):
    assert build_rule("margin", 8, threshold - 1e-12).after(0, logits(*law), 2) is goes_on


@pytest.mark.parametrize(
    "law, entropy",
    [((0.5, 0.5), math.log(2)), ((0.25,) * 4, math.log(4)), ((0.5, 0.25, 0.25), 1.5 * math.log(2)), ((1.0, 0.0), 0.0)],
)
def test_entropy_is_in_nats(law, entropy):
    rule = build_rule("entropy", 8, entropy + 1e-9)
    assert rule.after(0, logits(*law), 0)
    if entropy:
        assert not build_rule("entropy", 8, entropy - 1e-9).after(0, logits(*law), 0)


def test_rules_do_not_depend_on_a_shift_of_the_logits_or_their_precision():
    for name, threshold in THRESHOLDS.items():
        rule = build_rule(name, 8, threshold)
        for law in ((0.7, 0.2, 0.1), (0.4, 0.35, 0.25)):
            answers = {
                rule.after(0, (logits(*law) + shift).to(dtype), 0)
                for shift in (0.0, 30.0)
                for dtype in (torch.float64, torch.float32)
            }
            assert len(answers) == 1


def test_rules_that_look_at_the_law_do_not_look_at_the_token_drawn():
    for name, threshold in THRESHOLDS.items():
        rule = build_rule(name, 8, threshold)
        for law in ((0.7, 0.2, 0.1), (0.4, 0.35, 0.25)):
            assert len({rule.after(0, logits(*law), token) for token in range(3)}) == 1


def test_rules_leave_the_logits_alone():
    for name in RULES:
        row = logits(0.7, 0.2, 0.1).float()
        before = row.clone()
        rule = build_rule(name, 8, THRESHOLDS.get(name))
        rule.before(0, row)
        rule.after(0, row, 0)
        assert torch.equal(row, before)


# -- the history schedule ---------------------------------------------------------------------------------------------


def test_history_grows_by_two_after_full_acceptance_and_shrinks_by_one_otherwise():
    rule = build_rule("history", 10)
    depths = [rule.depth]
    for drafted, accepted in ((5, 5), (7, 7), (9, 4), (8, 0)):
        rule.observe(drafted, accepted)
        depths.append(rule.depth)
    assert depths == [5, 7, 9, 8, 7]


@pytest.mark.parametrize("k, start", [(1, 1), (2, 1), (3, 1), (4, 2), (8, 4)])
def test_history_starts_at_half_of_k(k, start):
    assert build_rule("history", k).depth == start


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
def test_history_stays_between_one_and_k(k):
    rule = build_rule("history", k)
    for _ in range(20):
        rule.observe(rule.depth, rule.depth)
        assert 1 <= rule.depth <= k
    assert rule.depth == k
    for _ in range(20):
        rule.observe(rule.depth, 0)
        assert 1 <= rule.depth <= k
    assert rule.depth == 1


def test_history_learns_nothing_from_a_round_without_a_draft():
    rule = build_rule("history", 8)
    rule.observe(0, 0)
    assert rule.depth == 4


def test_history_begins_anew_with_each_prompt():
    rule = build_rule("history", 8)
    rule.observe(4, 4)
    rule.reset()
    assert rule.depth == 4


# -- rules inside a chain ---------------------------------------------------------------------------------------------


def test_the_unsure_token_is_kept_and_ends_the_round():
    model = ScriptedModel([top(c) for c in (0.9, 0.8, 0.2, 0.9)])
    proposal = draft(Chain(model, build_rule("max_prob", 4, 0.4)), depth=4)
    assert len(proposal) == 3 and proposal.stopped == "max_prob"


def test_the_threshold_itself_counts_as_confident():
    certain = logits(1.0, 0.0, 0.0)
    for name, threshold in (("max_prob", 1.0), ("margin", 1.0), ("entropy", 0.0)):
        assert build_rule(name, 4, threshold).after(0, certain, 0)
    model = ScriptedModel([top(c) for c in (0.9, 0.4 + 1e-12, 0.9, 0.9)])
    assert len(draft(Chain(model, build_rule("max_prob", 4, 0.4)), depth=4)) == 4


def test_a_round_drafts_at_least_one_token():
    for name, threshold in (("max_prob", 1.0), ("margin", 1.0), ("entropy", 0.0)):
        model = ScriptedModel([top(0.3)] * 4)
        assert len(draft(Chain(model, build_rule(name, 4, threshold)), depth=4)) == 1


@pytest.mark.parametrize("k", [1, 3, 8])
def test_fixed_depth_never_stops_early(k):
    row = torch.full((200,), 0.99 / 199, dtype=torch.float64)
    row[5] = 0.01
    model = ScriptedModel([row.log()] * k)
    proposal = draft(Chain(model, build_rule("fixed", k)), depth=k)
    assert len(proposal) == k and proposal.stopped == "depth" and model.steps == k


def test_the_budget_caps_every_rule():
    for name in RULES:
        model = ScriptedModel([top(0.97)] * 9)
        rule = build_rule(name, 8, {"max_prob": 0.0, "margin": 0.0, "entropy": 9.0}.get(name))
        assert len(draft(Chain(model, rule), depth=2)) == 2


def test_no_step_is_paid_for_beyond_the_last_token():
    for name, threshold in (("fixed", None), ("max_prob", 0.4), ("history", None)):
        model = ScriptedModel([top(0.9), top(0.2), top(0.9), top(0.9)])
        proposal = draft(Chain(model, build_rule(name, 4, threshold)), depth=4)
        assert model.steps == len(proposal)


def test_thresholds_look_at_raw_logits_whatever_the_temperature():
    model = ScriptedModel([top(0.5)] * 3)
    chain = Chain(model, build_rule("max_prob", 3, 0.6))
    proposal = draft(chain, depth=3, sampling=Sampling(temperature=0.2, draft_temperature=0.1))
    assert len(proposal) == 1  # at temperature .1 the law is far above .6


def test_a_chain_stores_the_law_it_drew_from():
    rows = [logits(0.6652, 0.2447, 0.09), logits(0.2, 0.3, 0.5)]
    proposal = draft(Chain(ScriptedModel(rows), build_rule("fixed", 2)), depth=2, sampling=Sampling(temperature=0.5))
    assert proposal.law == WITHOUT_REPLACEMENT
    torch.testing.assert_close(proposal.q, torch.stack([(row / 0.5).softmax(0) for row in rows]))


def test_a_greedy_chain_proposes_largest_logits_as_points():
    proposal = draft(Chain(ScriptedModel([top(0.9), logits(0.1, 0.2, 0.7)]), build_rule("fixed", 2)), depth=2)
    assert proposal.tokens == (0, 2) and proposal.q is None


def test_a_drafted_end_of_text_is_kept_and_ends_the_round():
    model = ScriptedModel([top(0.9), logits(0.1, 0.2, 0.7), top(0.9)])
    proposal = draft(Chain(model, build_rule("fixed", 3)), depth=3, eos=frozenset({2}))
    assert proposal.tokens == (0, 2) and proposal.stopped == "end_of_text" and model.steps == 2


def test_a_draft_without_room_proposes_nothing():
    model = ScriptedModel([top(0.9)] * 4, room=0)
    assert draft(Chain(model, build_rule("fixed", 4)), depth=4).stopped == "context"
    model = ScriptedModel([top(0.9)] * 4, room=2)
    proposal = draft(Chain(model, build_rule("fixed", 4)), depth=4)
    assert len(proposal) == 2 and proposal.stopped == "context"


def test_what_was_tentative_is_dropped_at_the_end_of_every_proposal():
    model = ScriptedModel([top(0.9)] * 3)
    draft(Chain(model, build_rule("fixed", 3)), depth=3)
    assert model.rollbacks == 1


def test_a_chain_tells_its_rule_how_much_was_accepted():
    seen = []
    rule = build_rule("fixed", 3)
    rule.observe = lambda drafted, accepted: seen.append((drafted, accepted))
    chain = Chain(ScriptedModel([top(0.9)] * 12), rule)
    for committed in ([0, 0, 0, 3], [0, 0, 1], [2], [0, 0]):
        draft(chain, depth=3, fresh=not seen)
        chain.commit(committed, None, None)
    assert seen == [(3, 3), (3, 2), (3, 0), (3, 2)]


def test_a_reduced_vocabulary_proposes_the_targets_ids():
    columns = torch.tensor([1, 3, 4])
    model = ScriptedModel([logits(0.1, 0.2, 0.7), logits(0.5, 0.3, 0.2)], vocabulary=columns)
    assert draft(Chain(model, build_rule("fixed", 2)), depth=2, target_vocabulary=6).tokens == (4, 1)
    model = ScriptedModel([logits(0.1, 0.2, 0.7)], vocabulary=columns)
    proposal = draft(
        Chain(model, build_rule("fixed", 1)), depth=1, sampling=Sampling(temperature=1.0), target_vocabulary=6
    )
    torch.testing.assert_close(proposal.q[0], torch.tensor([0, 0.1, 0, 0.2, 0.7, 0], dtype=torch.float64))


def test_greedy_settings_are_the_default_here():
    assert GREEDY.greedy


# -- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["max_prob", "margin", "entropy"])
@pytest.mark.parametrize("threshold", [None, -0.01, float("nan"), True])
def test_a_threshold_that_is_missing_or_out_of_range_is_refused_with_its_range(name, threshold):
    with pytest.raises(UserError, match=f"{name}: threshold = {threshold}: must lie between 0 and"):
        build_rule(name, 4, threshold)


@pytest.mark.parametrize("name", ["max_prob", "margin"])
def test_a_probability_above_one_is_refused(name):
    with pytest.raises(UserError, match=r"threshold = 1\.5: must lie between 0 and 1"):
        build_rule(name, 4, 1.5)


@pytest.mark.parametrize("name", ["fixed", "history"])
def test_a_threshold_that_would_be_ignored_is_refused(name):
    with pytest.raises(UserError, match=f"{name}: takes no threshold, got 0.5"):
        build_rule(name, 4, 0.5)


def test_an_unknown_rule_names_the_nearest_and_all_that_are_known():
    with pytest.raises(
        UserError, match=r'unknown depth rule "max_probs" \(did you mean "max_prob"\?\).*entropy.*margin'
    ):
        build_rule("max_probs", 4, 0.5)
