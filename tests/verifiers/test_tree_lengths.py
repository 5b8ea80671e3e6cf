"""How many tokens the exact rules keep: formulas, and which rule is never worse than which."""

import itertools
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from specdec.sampling import GREEDY, RandomStream
from specdec.tree import POINT, WITH_REPLACEMENT, WITHOUT_REPLACEMENT, Draft
from specdec.verifiers import TargetRows, build_verifier
from specdec.verifiers.spectr import division_factor
from tests.helpers.enumerate import distance
from tests.helpers.sampled import PLAIN, CachedRows, drawn, emitted, error, law_of_round, length, trees, verdicts
from tests.helpers.toy import DRAFT, TARGET
from tests.verifiers.test_tree_laws import CHAINS, RAGGED, RULES, SAMPLED, TREES, allowed, label

EXACT = 1e-12
P, Q = (0.5, 0.3, 0.2), (0.2, 0.5, 0.3)
TREE_RULES = ("sample_and_match", "recursive", "traversal")

weights = st.lists(st.integers(0, 6), min_size=3, max_size=3).filter(any).map(lambda n: tuple(x / sum(n) for x in n))
tables = st.tuples(weights, weights, weights)


def rational(table) -> list[list[Fraction]]:
    return [[Fraction(str(x)) for x in row] for row in table]


def kept(name: str, widths, law: str, **tables) -> float:
    return length(drawn(build_verifier(name), widths, law, **tables))


# -- chains -----------------------------------------------------------------------------------------------------------


def along_chains(depth: int, step) -> Fraction:
    """1 + sum over l of E[step(...step(1, p, q)..., p, q)] for chains drawn from q, in rational numbers."""
    p, q, total = rational(TARGET), rational(DRAFT), Fraction(1)
    for tokens in itertools.product(range(3), repeat=depth):
        drawn_with, value, last, sum_of_values = Fraction(1), Fraction(1), 0, Fraction(0)
        for token in tokens:
            drawn_with *= q[last][token]
            value = step(value, p[last][token] / q[last][token])
            sum_of_values += value
            last = token
        total += drawn_with * sum_of_values
    return total


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_block_verification_keeps_what_its_formula_says(depth):
    """E[emitted] = 1 + sum of E[P_l], P_l = min(1, P_(l-1) * p / q)."""
    expected = along_chains(depth, lambda value, ratio: min(1, value * ratio))
    assert abs(kept("block", [1] * depth, WITHOUT_REPLACEMENT) - expected) <= EXACT


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("name", ["rejection", "recursive", "spectr"])
def test_token_wise_rejection_keeps_the_product_of_its_odds(name, depth):
    expected = along_chains(depth, lambda value, ratio: value * min(1, ratio))
    assert abs(kept(name, [1] * depth, WITHOUT_REPLACEMENT) - expected) <= EXACT


@pytest.mark.parametrize("widths", CHAINS, ids=label)
def test_on_a_chain_recursive_and_k_seq_are_rejection_and_traversal_is_block(widths):
    for law in (POINT, *SAMPLED):
        rules = {name: drawn(build_verifier(name), widths, law) for name in RULES}
        assert distance(rules["recursive"], rules["rejection"]) <= EXACT
        assert distance(rules["spectr"], rules["rejection"]) <= EXACT
        assert distance(rules["traversal"], rules["block"]) <= EXACT


def test_on_every_chain_the_verdicts_of_traversal_are_those_of_block():
    for draft, _ in trees(DRAFT, 0, (1, 1, 1), WITHOUT_REPLACEMENT):
        rows = CachedRows(TARGET, 0, draft)
        laws = [verdicts(build_verifier(name), draft, rows) for name in ("block", "traversal")]
        assert distance(*laws) <= EXACT


def test_block_gains_on_longer_chains_and_only_there():
    gains = [kept("block", widths, POINT) - kept("rejection", widths, POINT) for widths in CHAINS]
    assert max(map(abs, gains)) <= EXACT
    gains = [
        kept("block", widths, WITHOUT_REPLACEMENT) - kept("rejection", widths, WITHOUT_REPLACEMENT) for widths in CHAINS
    ]
    assert abs(gains[0]) <= EXACT and 1e-3 < gains[1] < gains[2]


@given(p=tables, q=tables)
@settings(max_examples=25, deadline=None)
def test_block_and_traversal_never_keep_less_than_rejection(p, q):
    lengths = {name: kept(name, [1, 1], WITHOUT_REPLACEMENT, table=q, target=p) for name in RULES}
    assert lengths["block"] >= lengths["rejection"] - EXACT
    assert abs(lengths["traversal"] - lengths["block"]) <= EXACT


@given(p=tables, q=tables, law=st.sampled_from(SAMPLED))
@settings(max_examples=15, deadline=None)
def test_any_tables_leave_the_targets_law(p, q, law):
    for name in TREE_RULES:
        texts = drawn(build_verifier(name), [2, 1], law, table=q, target=p)
        mass = sum(share for text, share in texts.items() if p[0][text[0]] > 0)
        assert abs(mass - 1) <= EXACT
        for token in range(3):
            assert abs(sum(s for text, s in texts.items() if text[0] == token) - p[0][token]) <= EXACT


def test_equal_models_keep_everything():
    for name in ("rejection", "recursive", "spectr", "block", "traversal"):
        assert abs(kept(name, [1, 1, 1], WITHOUT_REPLACEMENT, table=TARGET) - 4) <= EXACT


def test_the_example_of_the_traversal_paper():
    """A node with value 1/2 and a ratio of 4/3 behind it: 2/3 of the path survive from the leaf, 1/2 from the root."""
    q = torch.tensor([[0.5, 0.5, 0.0], [0.55, 0.45, 0.0]], dtype=torch.float64)
    p = torch.tensor([[0.25, 0.75, 0.0], [0.4, 0.6, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    draft, rows = Draft.chain([0, 1], WITHOUT_REPLACEMENT, q), TargetRows(p.log(), PLAIN)
    whole = {}
    for name in ("recursive", "traversal"):
        law = verdicts(build_verifier(name), draft, rows)
        whole[name] = sum(share for verdict, share in law.items() if len(verdict.path) == 2)
    assert abs(whole["recursive"] - 1 / 2) <= EXACT and abs(whole["traversal"] - 2 / 3) <= EXACT


# -- trees ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", SAMPLED)
@pytest.mark.parametrize("widths", (*CHAINS, *TREES), ids=label)
def test_traversal_keeps_at_least_what_recursive_rejection_keeps(widths, law):
    gain = kept("traversal", widths, law) - kept("recursive", widths, law)
    assert gain >= -EXACT
    assert (abs(gain) <= EXACT) == (len(widths) == 1)  # one level has no later tokens to gain by


@pytest.mark.parametrize("name", TREE_RULES)
@pytest.mark.parametrize("widths", TREES, ids=label)
def test_without_replacement_keeps_more_than_with(name, widths):
    gain = kept(name, widths, WITHOUT_REPLACEMENT) - kept(name, widths, WITH_REPLACEMENT)
    assert gain > 1e-3


@pytest.mark.parametrize("widths", ([1], [1, 1], [2], [2, 1], [2, 2]), ids=label)
def test_sampled_trees_lose_by_sample_and_match(widths):
    for law in SAMPLED:
        assert kept("recursive", widths, law) - kept("sample_and_match", widths, law) > 1e-3


@pytest.mark.parametrize("law", SAMPLED)
def test_one_sampled_token_is_matched_with_sum_pq_and_accepted_with_sum_min(law):
    matched = kept("sample_and_match", [1], law, table=(Q,) * 3, target=(P,) * 3) - 1
    accepted = kept("recursive", [1], law, table=(Q,) * 3, target=(P,) * 3) - 1
    assert abs(matched - Fraction(31, 100)) <= EXACT  # .10 + .15 + .06
    assert abs(accepted - Fraction(7, 10)) <= EXACT  # .2 + .3 + .2


def test_equal_laws_are_matched_less_than_they_are_accepted():
    same = {"table": (P,) * 3, "target": (P,) * 3}
    assert abs(kept("sample_and_match", [1], WITHOUT_REPLACEMENT, **same) - 1.38) <= EXACT
    assert abs(kept("recursive", [1], WITHOUT_REPLACEMENT, **same) - 2) <= EXACT


def test_points_give_every_rule_the_verdicts_of_sample_and_match():
    """No gain, and not even another law: the walk of the target's own text through the tree."""
    for widths in (*CHAINS, *TREES):
        rules = {name: drawn(build_verifier(name), widths, POINT) for name in RULES if allowed(name, widths, POINT)}
        for law in rules.values():
            assert distance(law, rules["sample_and_match"]) <= EXACT
    ragged = [law_of_round(build_verifier(name), [(RAGGED, 1.0)]) for name in TREE_RULES]
    assert max(distance(ragged[0], law) for law in ragged[1:]) <= EXACT


def test_points_are_kept_with_the_targets_own_probability():
    """1 + the sum over the nodes of the probability of their text; children 1 and 2, below each its two likeliest."""
    p = rational(TARGET)
    draft = next(draft for draft, _ in trees(DRAFT, 0, (2, 2), POINT))
    assert draft.tokens == (1, 2, 0, 1, 0, 2)
    expected = 1 + sum(p[0][a] for a in (1, 2)) + p[0][1] * (p[1][0] + p[1][1]) + p[0][2] * (p[2][0] + p[2][2])
    for name in TREE_RULES:
        assert abs(kept(name, [2, 2], POINT) - expected) <= EXACT


# -- one level with several candidates --------------------------------------------------------------------------------


def best_possible(p, q, k: int) -> float:
    """The largest chance that a token of law p is among k draws from q: a linear programme over all couplings."""
    draws = list(itertools.product(range(3), repeat=k))
    gain = [-float(token in draw) for draw in draws for token in range(3)]
    rows, totals = [], []
    for i, draw in enumerate(draws):
        rows.append([float(i == j) for j in range(len(draws)) for _ in range(3)])
        totals.append(float(torch.tensor([q[token] for token in draw], dtype=torch.float64).prod()))
    for token in range(3):
        rows.append([float(token == other) for _ in draws for other in range(3)])
        totals.append(p[token])
    return -linprog(gain, A_eq=rows, b_eq=totals, bounds=(0, None)).fun


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("p, q", [(P, Q), (Q, P), (P, P), ((0.9, 0.05, 0.05), (0.1, 0.1, 0.8)), ((1.0, 0, 0), Q)])
def test_k_seq_accepts_what_its_formula_says_and_close_to_the_best(p, q, k):
    accepted = kept("spectr", [k], WITH_REPLACEMENT, table=(q,) * 3, target=(p,) * 3) - 1
    rho = division_factor(torch.tensor(p).double(), torch.tensor(q).double(), k)
    beta = sum(min(b, a / rho) for a, b in zip(p, q, strict=True))
    assert 1 <= rho <= k
    assert abs(accepted - (1 - (1 - beta) ** k)) <= 1e-7
    assert abs(accepted - rho * beta) <= 1e-6
    best = best_possible(p, q, k)
    assert (1 - 1 / 2.718281828) * best <= accepted + 1e-9 <= best + 2e-9
    recursive = kept("recursive", [k], WITH_REPLACEMENT, table=(q,) * 3, target=(p,) * 3) - 1
    assert recursive <= best + 1e-9


@given(p=weights, q=weights, k=st.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_the_division_factor_is_on_the_exact_side_of_its_root(p, q, k):
    p, q = torch.tensor(p).double(), torch.tensor(q).double()

    def tries(rho):
        return sum((1 - float(torch.minimum(q, p / rho).sum())) ** i for i in range(k))

    rho = division_factor(p, q, k)
    assert 1 <= rho <= k and tries(rho) <= rho + EXACT
    assert rho == 1 or tries(rho * (1 - 1e-6)) > rho * (1 - 1e-6) - EXACT


@given(p=tables, q=tables)
@settings(max_examples=10, deadline=None)
def test_k_seq_leaves_the_targets_law_of_any_tables(p, q):
    law = drawn(build_verifier("spectr"), [2], WITH_REPLACEMENT, table=q, target=p)
    for token in range(3):
        assert abs(sum(share for text, share in law.items() if text[0] == token) - p[0][token]) <= EXACT


def test_two_siblings_without_replacement_are_exact_and_their_acceptance_is_known():
    """p - q leaves (.3, 0, 0) after any rejection; only token 0 can follow, drawn next with .2 / (1 - q(first))."""
    law = drawn(build_verifier("recursive"), [2], WITHOUT_REPLACEMENT, table=(Q,) * 3, target=(P,) * 3)
    assert error(law, 2, (P,) * 3) <= EXACT
    rejected = {1: Fraction(2, 10), 2: Fraction(1, 10)}  # q - p
    second = sum(mass * Fraction(2, 10) / (1 - Fraction(str(Q[token]))) for token, mass in rejected.items())
    assert abs(length(law) - 1 - (Fraction(7, 10) + second)) <= EXACT


# -- temperature 0 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", (*RULES, "typical"))
def test_at_temperature_zero_every_rule_is_the_greedy_walk(name):
    rule, greedy = build_verifier(name), build_verifier("greedy")
    for widths in (*CHAINS, *TREES):
        for law in (POINT, WITHOUT_REPLACEMENT, WITH_REPLACEMENT):
            if name == "typical":
                if law == WITH_REPLACEMENT:  # it looks for the longest of equal siblings' subtrees
                    continue
            elif not allowed(name, widths, law):
                continue
            for draft, _ in trees(DRAFT, 0, tuple(widths), law)[::5]:
                rows = CachedRows(TARGET, 0, draft, GREEDY)
                expected = greedy.verify(draft, rows, None)
                assert rule.verify(draft, rows, RandomStream(1, "", "")) == expected
                if law == POINT:
                    assert verdicts(rule, draft, rows) == {expected: 1.0}
                    assert emitted(draft, expected)
