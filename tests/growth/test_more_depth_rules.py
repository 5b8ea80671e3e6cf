"""Depth rules that learn, measure or read the text."""

import math

import pytest
import torch

from specdec.errors import UserError
from specdec.growth import RULES, Chain, build_rule
from specdec.growth.depth_text import KINDS, TokenType, difficulty, kind_of, token_kinds
from specdec.growth.feedback import Feedback
from specdec.models.tokenizer import Tokenizer
from specdec.sampling import Sampling
from tests.helpers import tiny
from tests.helpers.growing import ScriptedModel, draft

OPTIONS = {
    "svip": 1.0,
    "adaedl": 0.4,
    "draft_verify": 0.5,
    "pid": 0.7,
    "cost": 0.2,
    "token_type": 0.4,
    "difficulty": 0.5,
}


def tokenizer():
    return Tokenizer(tiny.tokenizer(), [tiny.EOS], "test")


def rule_of(name, k=8, threshold=None):
    threshold = OPTIONS[name] if threshold is None else threshold
    return build_rule(name, k, threshold, tokenizer() if name == "token_type" else None)


def logits(*law: float) -> torch.Tensor:
    return torch.tensor(law, dtype=torch.float64).log()


def top(confidence: float) -> torch.Tensor:
    return logits(confidence, *[(1 - confidence) / 3] * 3)


# -- what all promise -------------------------------------------------------------------------------------------------


def test_these_and_the_simple_ones_are_all():
    assert {*OPTIONS, "fixed", "max_prob", "margin", "entropy", "history"} == set(RULES)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0)])
def test_at_least_one_token_and_at_most_k_are_drafted(name, sampling):
    for confidence in (0.3, 0.97):
        for depth in (1, 2, 8):
            model = ScriptedModel([top(confidence)] * 9)
            proposal = draft(Chain(model, rule_of(name)), depth=depth, sampling=sampling)
            assert 1 <= len(proposal) <= depth and model.steps == len(proposal)
            assert proposal.stopped in (name, "depth")


@pytest.mark.parametrize("name", OPTIONS)
def test_logits_are_left_alone_and_precision_does_not_matter(name):
    for law in ((0.7, 0.2, 0.1), (0.4, 0.35, 0.25)):
        answers = set()
        for dtype in (torch.float64, torch.float32):
            row = (logits(*law) + 30).to(dtype)
            kept = row.clone()
            rule = rule_of(name)
            rule.begin([0, 1, 2])
            answers.add((rule.before(0, row), rule.after(0, row, 0)))
            assert torch.equal(row, kept)
        assert len(answers) == 1


@pytest.mark.parametrize("name", OPTIONS)
def test_each_prompt_begins_anew(name):
    def rounds(rule):
        rule.begin([1, 2, 3])
        depths = []
        for accepted in (0, 0, 1, 5, 0):
            count = 0
            while count < 8 and rule.before(count, top(0.6)):
                count += 1
                if count == 8 or not rule.after(count - 1, top(0.6), 0):
                    break
            depths.append(count)
            rule.observe(count, min(accepted, count))
            rule.read([4, 5])
        return depths

    rule = rule_of(name)
    assert rounds(rule) == rounds(rule)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("threshold", [None, -0.01, float("nan"), True])
def test_impossible_thresholds_are_refused(name, threshold):
    with pytest.raises(UserError, match=f"{name}: threshold = {threshold}: must lie between 0 and"):
        build_rule(name, 4, threshold, tokenizer())


def test_a_chain_tells_its_rule_about_the_text():
    rule = build_rule("fixed", 2)
    chain = Chain(ScriptedModel([top(0.9)] * 9), rule)
    draft(chain, depth=2)
    assert rule.text == [0] and rule.vocabulary is None
    chain.commit([0, 0, 3], None, None)
    chain.commit([2], None, None)
    assert rule.text == [0, 0, 0, 3, 2]


def test_a_round_that_drafted_nothing_teaches_nothing():
    seen = []
    rule = build_rule("fixed", 2)
    rule.observe = lambda drafted, accepted: seen.append((drafted, accepted))
    chain = Chain(ScriptedModel([top(0.9)] * 9), rule)
    draft(chain, depth=2)
    chain.commit([0, 0, 3], None, None)
    chain.model.room = 0
    assert draft(chain, depth=2, fresh=False).stopped == "context"
    chain.commit([0], None, None)
    assert seen == [(2, 2), (0, 0)]


# -- entropy ----------------------------------------------------------------------------------------------------------


def test_svip_tests_the_root_of_the_entropy():
    root = math.sqrt(math.log(4))
    assert rule_of("svip", threshold=root + 1e-9).after(0, logits(*[0.25] * 4), 0)
    assert not rule_of("svip", threshold=root - 1e-9).after(0, logits(*[0.25] * 4), 0)
    assert rule_of("svip", threshold=0.0).after(0, logits(1.0, 0.0), 0)


def test_adaedl_tests_its_bound():
    bound = 1 - math.sqrt(0.2 * math.log(4))
    assert rule_of("adaedl", threshold=bound - 1e-9).after(0, logits(*[0.25] * 4), 0)
    assert not rule_of("adaedl", threshold=bound + 1e-9).after(0, logits(*[0.25] * 4), 0)


def test_the_threshold_follows_the_acceptance_as_in_draft_and_verify():
    level = Feedback(0.6)
    level.update(4, 2, full=False)  # rate .5: pulled up
    assert level.value == pytest.approx(0.9 * 0.6 + 0.1 * 0.61)
    for _ in range(3):
        level.update(4, 4, full=False)
    assert level.rate == pytest.approx(0.9375)
    before = level.value
    level.update(4, 4, full=True)  # full length: stays
    assert level.value == before
    level.update(4, 4, full=False)  # pulled down
    assert level.value == pytest.approx(0.9 * before + 0.1 * (before - 0.01))
    level.update(0, 0, full=False)
    assert level.value == pytest.approx(before - 0.001)


@pytest.mark.parametrize("name", ["adaedl", "draft_verify"])
def test_moving_thresholds_move(name):
    rule = rule_of(name, k=4)
    start = rule.level.value
    rule.observe(3, 0)
    assert rule.level.value > start
    rule.reset()
    assert rule.level.value == start
    rule.observe(3, 3)
    assert rule.level.value < start


def test_draft_verify_looks_at_the_token_drawn():
    rule = rule_of("draft_verify", threshold=0.25)
    assert [rule.after(0, logits(0.6, 0.3, 0.1), token) for token in range(3)] == [True, True, False]
    rule.begin([0], torch.tensor([5, 7, 9]))
    assert [rule.after(0, logits(0.6, 0.3, 0.1), token) for token in (5, 7, 9)] == [True, True, False]


# -- measured ---------------------------------------------------------------------------------------------------------


def test_the_controller_settles_where_the_rate_is_the_threshold():
    """Acceptance that falls with depth: 1 - depth / 10 of a draft is accepted."""
    rule = rule_of("pid", k=10, threshold=0.6)
    depths = []
    for _ in range(80):
        depths.append(rule.depth)
        rule.observe(rule.depth, round(rule.depth * (1 - rule.depth / 10)))
        assert 1 <= rule.depth <= 10
    assert sum(depths[-20:]) / 20 == pytest.approx(4, abs=1)


def test_the_controller_leaves_its_bounds_at_once():
    rule = rule_of("pid", k=8, threshold=0.5)
    for _ in range(50):
        rule.observe(rule.depth, rule.depth)
    assert rule.depth == 8
    for _ in range(4):
        rule.observe(8, 0)
    assert rule.depth < 8
    for _ in range(50):
        rule.observe(rule.depth, 0)
    assert rule.depth == 1
    rule.observe(0, 0)
    assert rule.depth == 1


def test_cost_goes_on_while_another_token_pays():
    """By hand: confidence .5, rate 1.  After one token: gain .5, E 1.5, T 1 + c."""
    for cost, goes_on in ((0.3, True), (0.49, True), (0.51, False), (2.0, False)):
        rule = rule_of("cost", threshold=cost)
        rule.before(0, top(0.5))
        assert rule.after(0, top(0.5), 0) is goes_on is (cost * 1.5 / (1 + cost) <= 0.5)
    rule = rule_of("cost", threshold=0.15)
    rule.before(0, top(0.5))
    assert rule.after(0, top(0.5), 0) and rule.after(1, top(0.5), 0)  # gain .25, E 1.75, T 1.3
    assert not rule.after(2, top(0.5), 0)  # gain .125, E 1.875, T 1.45


def test_cost_learns_the_rate():
    rule = rule_of("cost", threshold=0.3)
    assert rule.rate == 1.0
    rule.observe(4, 1)
    assert rule.rate == pytest.approx(2 / 3)
    rule.observe(2, 2)
    assert rule.rate == pytest.approx(4 / 5)
    rule.before(0, top(0.5))
    for _ in range(9):
        rule.observe(4, 0)
    assert not rule.after(0, top(0.5), 0)


def test_what_costs_nothing_is_always_drafted():
    rule = rule_of("cost", threshold=0.0)
    assert all(rule.before(i, top(0.3)) and rule.after(i, top(0.3), 0) for i in range(8))


# -- the text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, kind",
    [(" the", "word"), ("ing", "piece"), (" 12", "number"), (".\n", "punctuation"), ("\n\n", "space"), ("", "space")],
)
def test_kinds_of_tokens(text, kind):
    assert kind_of(text) == kind and kind in KINDS


def test_every_id_has_a_kind():
    kinds = token_kinds(tokenizer())
    assert len(kinds) == tiny.VOCABULARY and set(kinds) <= set(KINDS)
    assert all(kinds[index] == "special" for index in (tiny.BOS, tiny.EOS, tiny.END))


def test_token_type_learns_which_kinds_are_accepted():
    rule = TokenType(8, 0.4, ["word", "number"])
    row = top(0.9)
    for _ in range(4):  # the word is accepted, the number behind it is not
        rule.before(0, row)
        rule.after(0, row, 0)
        rule.after(1, row, 1)
        rule.observe(3, 1)
    assert rule.rate("word") == 1.0 and rule.rate("number") == pytest.approx(1 / 5)
    rule.before(0, row)
    assert rule.after(0, row, 0) and not rule.after(1, row, 1)
    rule.before(0, row)
    assert not rule.after(0, row, 1)


def test_token_type_needs_the_tokenizer():
    with pytest.raises(UserError, match="token_type: needs the tokenizer"):
        build_rule("token_type", 4, 0.5)


def test_difficulty_is_the_share_of_what_is_new():
    assert difficulty([]) == difficulty([1]) == difficulty([1, 2]) == 0
    assert difficulty([7] * 20) == 0
    assert difficulty(list(range(20))) == pytest.approx(1)
    assert difficulty([1, 2, 3, 1, 2]) == pytest.approx((0.5 * math.log(2) + 2 * 0.25 * math.log(4)) / math.log(4))


def test_harder_text_is_drafted_less():
    rule = rule_of("difficulty", k=9, threshold=0.5)
    rule.begin([7] * 20)
    assert rule.allowed() == 9
    rule.begin(list(range(40)))
    assert rule.allowed() == 1
    rule.read([7] * 64)
    assert rule.allowed() == 9
    rule.begin([1, 2, 3, 1, 2])
    assert rule.allowed() == round(1 + 8 * (1 - difficulty([1, 2, 3, 1, 2])) / 0.5)
