"""Degenerate text is found, ordinary text is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.loops import SHORTEST, is_loop, loop_start


@pytest.mark.parametrize("period", [1, 2, 5, 12, 30])
def test_a_phrase_three_times_in_a_row_is_a_loop_where_it_begins(period):
    phrase = list(range(100, 100 + period))
    repeats = max(3, -(-SHORTEST // period))
    assert loop_start([1, 2, 3, *phrase * repeats]) == 3


def test_twice_is_no_loop_and_neither_is_a_short_stutter():
    assert not is_loop(list(range(20)) * 2)
    assert not is_loop([1, 2, 3] + [7] * (SHORTEST - 1))
    assert is_loop([1, 2, 3] + [7] * SHORTEST)


@given(st.lists(st.integers(0, 10**6), unique=True, max_size=200))
def test_text_without_repeats_is_never_a_loop(ids):
    assert not is_loop(ids)


@given(st.lists(st.integers(0, 50), max_size=40), st.lists(st.integers(0, 50), min_size=1, max_size=20))
def test_whatever_stands_before_it_a_loop_is_found(before, phrase):
    assert is_loop([*before, *phrase * (SHORTEST + 3)])
