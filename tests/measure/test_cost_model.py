"""The cost model's formulas, exactly, and what it says where they can be worked out by hand."""

from __future__ import annotations

from fractions import Fraction as F
from itertools import product

import pytest

from specdec.errors import UserError
from specdec.measure import cost_model as cm

ALPHAS = [F(0), F(1, 3), F(1, 2), F(4, 5), F(1)]


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("k", [0, 1, 2, 5])
def test_expected_tokens_is_the_mean_over_every_course_of_a_round(alpha, k):
    """All 2^K outcomes of K independent trials, each with its probability; tokens: the first run of successes and
    one."""
    total = F(0)
    for outcome in product([True, False], repeat=k):
        chance = F(1)
        for kept in outcome:
            chance *= alpha if kept else 1 - alpha
        run = outcome.index(False) if False in outcome else k
        total += chance * (run + 1)
    assert cm.expected_tokens(alpha, k) == total
    if alpha < 1:
        assert total == (1 - alpha ** (k + 1)) / (1 - alpha)


def test_acceptance_by_position_multiplies_along_the_chain():
    conditional = [F(3, 4), F(2, 3), F(1, 2)]
    assert cm.expected_by_position(conditional) == 1 + F(3, 4) + F(1, 2) + F(1, 4)
    assert cm.expected_by_position([F(4, 5)] * 4) == cm.expected_tokens(F(4, 5), 4) == F(33616, 10000)


def test_rounds_of_several_depths_are_averaged_one_by_one():
    conditional = [F(1, 2), F(1, 3)]
    # nothing drafted: 1; one: 3/2; two: 5/3; deeper than anything known counts as two
    assert cm.expected_over_rounds([0, 1, 2, 7], conditional) == (1 + F(3, 2) + F(5, 3) + F(5, 3)) / 4
    with pytest.raises(ValueError):
        cm.expected_over_rounds([], conditional)


def test_leviathans_formula_can_say_slower():
    assert cm.leviathan_speedup(F(4, 5), 4, 1) == F(33616, 10000) / 5
    assert float(cm.leviathan_speedup(F(4, 5), 4, F(1, 20))) == pytest.approx(2.801, abs=5e-4)
    assert cm.leviathan_speedup(F(1), 4, 0) == 5 and cm.leviathan_speedup(F(0), 4, 0) == 1


def test_if_alpha_is_above_c_one_guess_gains_what_the_paper_says():
    for alpha, c in ((F(1, 2), F(1, 4)), (F(1, 4), F(1, 2)), (F(1, 3), F(1, 3))):
        gain = cm.leviathan_speedup(alpha, 1, c)
        assert gain == (1 + alpha) / (1 + c)
        assert (gain > 1) == (alpha > c)


COSTS = cm.Costs(draft_step=F(1, 10), verify=lambda width: 1 + F(width - 1, 20), other=F(1, 50))


def test_a_round_costs_its_steps_its_pass_and_the_rest():
    assert COSTS.price(4) == F(4, 10) + F(6, 5) + F(1, 50)
    assert COSTS.price(0) == 1 + F(1, 50)
    assert COSTS.mean_price([0, 4]) == (COSTS.price(0) + COSTS.price(4)) / 2


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_break_even_inverts_the_yield(k, alpha):
    assert cm.break_even(cm.expected_tokens(alpha, k), k) == pytest.approx(alpha, abs=1e-9)


def test_break_even_at_the_edges():
    assert cm.break_even(1.0, 3) == 0.0 and cm.break_even(0.7, 3) == 0.0
    assert cm.break_even(4.0, 3) == pytest.approx(1.0)
    assert cm.break_even(4.1, 3) is None
    assert cm.break_even(1.3, 1) == pytest.approx(0.3)


def test_the_best_depth_is_the_best_of_all_and_0_where_nothing_pays():
    conditional = [F(4, 5), F(3, 5), F(1, 10)]
    gains = {k: cm.expected_by_position(conditional[:k]) / COSTS.price(k) for k in (1, 2, 3)}
    assert cm.best_depth(conditional, COSTS) == (2, gains[2]) and gains[2] == max(gains.values())
    assert cm.best_depth([F(1, 10)] * 4, COSTS) == (0, 1)
    assert cm.best_depth([], COSTS) == (0, 1)


def test_rounds_that_found_nothing_pay_for_looking_but_not_for_width():
    """Half of the rounds draft nothing: K is capped in the others alone."""
    conditional = [F(9, 10), F(9, 10)]
    gain = (1 + cm.expected_tokens(F(9, 10), 2)) / (COSTS.price(0) + COSTS.price(2))
    assert cm.best_depth(conditional, COSTS, [0, 2]) == (2, gain)


def test_the_lowest_break_even_over_depths():
    found = cm.lowest_break_even(COSTS, [1, 2, 4])
    alphas = {k: cm.break_even(float(COSTS.price(k)), k) for k in (1, 2, 4)}
    assert found == (min(alphas, key=alphas.get), min(alphas.values()))
    assert cm.lowest_break_even(cm.Costs(2, lambda width: 1), [1, 2]) is None


def test_a_surface_is_linear_between_points_and_flat_beyond():
    surface = cm.Surface({(1, 100): 10.0, (5, 100): 14.0, (1, 300): 20.0, (5, 300): 28.0})
    assert surface.at(1, 100) == 10 and surface.at(5, 300) == 28
    assert surface.at(2, 100) == 11 and surface.at(1, 200) == 15 and surface.at(3, 200) == 18
    assert surface.at(9, 100) == 14 and surface.at(1, 10) == 10 and surface.at(5, 900) == 28
    assert surface.relative(5, 100, unit=10.0) == 1.4
    with pytest.raises(UserError, match="every width"):
        cm.Surface({(1, 100): 10.0, (5, 300): 14.0})
