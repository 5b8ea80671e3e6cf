"""Prompt lookup under its three rules."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.decode import Request, speculative
from specdec.drafters import NGram
from specdec.drafters.base import Budget
from specdec.drafters.ngram import RULES
from specdec.errors import UserError
from specdec.tree import POINT
from tests.helpers import tiny


def look(text, depth, rule, **options):
    """What is proposed behind `text`, and why it ends."""
    drafter = NGram(rule, **options)
    drafter.start(text, None, None)
    draft = drafter.propose(Budget(depth, depth))
    assert draft.law == POINT and draft.is_chain
    return list(draft.tokens), draft.stopped


SHORT_THEN_LONG = [1, 2, 8, 8, 8, 8, 3, 1, 2, 9, 3, 1, 2]
"""(3, 1, 2) is followed by four tokens; the shorter (1, 2) first stands at the start, followed by many."""


def test_first_takes_the_leftmost_longest_match_even_if_little_follows_it():
    assert look(SHORT_THEN_LONG, 5, "first") == ([9, 3, 1, 2], "end_of_match")
    assert look(SHORT_THEN_LONG, 4, "first") == ([9, 3, 1, 2], "depth")


def test_first_full_wants_as_many_tokens_as_were_asked_for():
    assert look(SHORT_THEN_LONG, 5, "first_full") == ([8, 8, 8, 8, 3], "depth")
    assert look(SHORT_THEN_LONG, 4, "first_full") == ([9, 3, 1, 2], "depth")
    assert look([1, 2, 1], 3, "first_full") == ([], "no_match")
    assert look([1, 2, 1], 2, "first_full") == ([2, 1], "depth")


def test_longest_keeps_to_its_range_of_lengths():
    assert look(SHORT_THEN_LONG, 5, "longest") == ([9, 3, 1, 2], "end_of_match")
    assert look(SHORT_THEN_LONG, 3, "longest", max_ngram=2) == ([8, 8, 8], "depth")
    assert look([7, 1, 5, 6, 1], 2, "longest", min_ngram=1) == ([5, 6], "depth")
    assert look([7, 1, 5, 6, 1], 2, "longest", min_ngram=2) == ([], "no_match")


def test_the_earliest_of_equal_matches_is_taken():
    for rule in RULES:
        assert look([1, 5, 1, 6, 1], 1, rule) == ([5], "depth")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("text", [[1], [1, 2], [1, 2, 3, 4, 5]])
def test_nothing_is_proposed_where_nothing_repeats(rule, text):
    assert look(text, 4, rule) == ([], "no_match")


@pytest.mark.parametrize("rule", RULES)
def test_a_text_does_not_match_itself(rule):
    assert look([1, 2, 3], 2, rule) == ([], "no_match")
    assert look([4, 4], 1, rule) == ([4], "depth")


def slow(text, depth, rule, max_ngram, min_ngram):
    """The definition, by looking everywhere."""
    for n in range(min(max_ngram, len(text) - 1), min_ngram - 1, -1):
        for start in range(len(text) - n):
            if text[start : start + n] == text[-n:]:
                follows = text[start + n : start + n + depth]
                if len(follows) == depth or (follows and rule != "first_full"):
                    return follows
    return []


@given(
    pieces=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8), min_size=1, max_size=6),
    depth=st.integers(1, 6),
    rule=st.sampled_from(RULES),
    ngram=st.tuples(st.integers(1, 4), st.integers(1, 4)).map(sorted),
)
@settings(max_examples=300, deadline=None)
def test_a_lookup_finds_what_a_slow_search_finds_however_the_text_grew(pieces, depth, rule, ngram):
    low, high = ngram
    drafter, text = NGram(rule, max_ngram=high, min_ngram=low), []
    for i, piece in enumerate(pieces):
        text += piece
        drafter.commit(piece, None, None) if i else drafter.start(piece, None, None)
        draft = drafter.propose(Budget(depth, depth))
        assert list(draft.tokens) == slow(text, depth, rule, high, low if rule == "longest" else 1)


@pytest.mark.parametrize("rule", RULES)
def test_a_prompt_decoded_three_times_gives_the_same_rounds(rule):
    model, drafter = tiny.transformer("llama"), NGram(rule)
    request = Request(tiny.prompt_of(4, seed=3) * 4, 24)
    runs = []
    for _ in range(3):
        rounds = speculative(model, drafter, request, k=4).run().rounds
        runs.append([(r.tokens, r.drafted, r.accepted, r.stopped) for r in rounds])
    assert runs[0] == runs[1] == runs[2]
    assert sum(drafted for _, drafted, _, _ in runs[0]) > 0


def test_an_impossible_setting_is_refused_by_name():
    with pytest.raises(UserError, match=r'unknown ngram rule "longst" \(did you mean "longest"\?\)'):
        NGram("longst")
    for low, high in ((0, 3), (4, 3), (-1, 2)):
        with pytest.raises(UserError, match=f"min_ngram = {low}, max_ngram = {high}"):
            NGram("longest", max_ngram=high, min_ngram=low)
