"""Refusals by name, typical acceptance, and the manners of the rules for trees."""

import math

import pytest
import torch

from specdec.errors import UserError
from specdec.sampling import RandomStream, Sampling
from specdec.tree import LAWS, POINT, WITH_REPLACEMENT, WITHOUT_REPLACEMENT, Draft
from specdec.verifiers import VERIFIERS, TargetRows, Verdict, build_verifier
from specdec.verifiers.residual import normalised, odds, remaining, residual
from specdec.verifiers.typical import DELTA, EPSILON, threshold
from tests.helpers.sampled import PLAIN, drawn, error, law_of_round, verdicts

CHAIN, TREE = ((0, 1), (-1, 0)), ((0, 1), (-1, -1))


def make(shape, law: str) -> Draft:
    return Draft(*shape, law, None if law == POINT else torch.full((2, 3), 1 / 3, dtype=torch.float64))


# -- what is declared -------------------------------------------------------------------------------------------------

ON_TREES = {
    "greedy": set(LAWS),
    "rejection": set(),
    "sample_and_match": set(LAWS),
    "recursive": set(LAWS),
    "spectr": {WITH_REPLACEMENT},
    "block": set(),
    "traversal": set(LAWS),
    "typical": set(LAWS),
}


@pytest.mark.parametrize("name", VERIFIERS)
def test_each_rule_takes_what_it_is_exact_for_and_refuses_the_rest_by_name(name):
    rule = build_verifier(name)
    assert rule.name == name
    rule.check_draft(Draft())
    for law in LAWS:
        rule.check_draft(make(CHAIN, law))
        if law in ON_TREES[name]:
            rule.check_draft(make(TREE, law))
            continue
        with pytest.raises(UserError, match=f"verifier {name}: not exact for"):
            rule.check_draft(make(TREE, law))


def test_refusals_say_what_is_allowed():
    with pytest.raises(UserError, match="verifier block: not exact for a tree; allowed: chain"):
        build_verifier("block").check_draft(make(TREE, WITHOUT_REPLACEMENT))
    for law in (POINT, WITHOUT_REPLACEMENT):
        with pytest.raises(
            UserError, match=f"verifier spectr: not exact for proposals drawn {law}; allowed: with_replacement"
        ):
            build_verifier("spectr").check_draft(make(TREE, law))


def test_only_typical_acceptance_is_marked_as_lossy():
    assert [name for name, rule in VERIFIERS.items() if not rule.lossless] == ["typical"]


# -- typical acceptance -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("widths, law", [([1], POINT), ([2], POINT), ([1, 1], WITHOUT_REPLACEMENT)])
def test_typical_acceptance_is_not_exact(widths, law):
    assert error(drawn(build_verifier("typical"), widths, law), 1) > 0.1


def test_typical_acceptance_compares_with_the_smaller_threshold():
    sharp = torch.tensor([0.95, 0.05, 0.0], dtype=torch.float64)
    assert threshold(sharp) == EPSILON == 0.09
    flat = torch.full((100,), 0.01, dtype=torch.float64)
    assert abs(threshold(flat) - 0.3 / 100) < 1e-12 and DELTA == 0.3
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    entropy = -sum(x * math.log(x) for x in p.tolist())
    assert abs(threshold(p) - min(0.09, 0.3 * math.exp(-entropy))) < 1e-12


def typical(draft: Draft, *laws) -> dict[Verdict, float]:
    return verdicts(build_verifier("typical"), draft, TargetRows(torch.tensor(laws, dtype=torch.float64).log(), PLAIN))


def test_typical_acceptance_keeps_the_longest_path_then_the_likelier_then_the_first():
    sure, off = (0.0, 0.0, 1.0), (0.05, 0.05, 0.9)
    longest = Draft((0, 1, 2), (-1, -1, 1))
    assert set(typical(longest, (0.6, 0.4, 0.0), sure, sure, sure)) == {Verdict((1, 2), 2, "bonus")}
    likelier = Draft((0, 1), (-1, -1))
    assert set(typical(likelier, (0.4, 0.6, 0.0), sure, sure)) == {Verdict((1,), 2, "bonus")}
    assert set(typical(likelier, (0.5, 0.5, 0.0), sure, sure)) == {Verdict((0,), 2, "bonus")}
    orphan = Draft((0, 2), (-1, 0))  # node 1 is likely, its parent is not
    assert set(typical(orphan, off, sure, sure)) == {Verdict((), token, "correction") for token in range(3)}


def test_typical_acceptance_draws_what_follows_from_the_target():
    p = (0.5, 0.3, 0.2)
    law = typical(Draft((0,), (-1,)), (0.9, 0.1, 0.0), p)
    assert {verdict.next_token: pytest.approx(share, abs=1e-12) for verdict, share in law.items()} == dict(enumerate(p))


# -- arithmetic at its edges ------------------------------------------------------------------------------------------


def test_a_token_the_target_never_says_is_never_accepted():
    """Not even where the draft's mass has been rounded away."""
    p, q = torch.tensor([0.0, 1.0]), torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    draft = Draft((0, 0), (-1, 0), WITHOUT_REPLACEMENT, q)
    assert odds(draft, 0, p) == odds(draft, 1, p) == 0.0
    assert odds(draft, 0, torch.tensor([0.5, 0.5])) == 1.0
    assert odds(draft, 1, torch.tensor([0.5, 0.5]), 0.25) == 0.25


def test_a_residual_without_mass_falls_back_to_the_law_it_came_from():
    p = torch.tensor([0.25, 0.75], dtype=torch.float64)
    draft = Draft.chain([0], WITHOUT_REPLACEMENT, p[None].clone())
    rest, mass = residual(draft, 0, p)
    assert torch.equal(rest, p) and mass == 0.0
    certain = torch.tensor([1.0, 0.0])
    rest, mass = residual(Draft.chain([0]), 0, certain)
    assert torch.equal(rest, certain) and mass == 0.0
    assert remaining(0.0, 1.0) == 1.0 and remaining(0.0, 0.5) == 0.0 and remaining(0.25, 0.75) == 0.5
    assert normalised(torch.tensor([1.0, 3.0]), p)[1] == 4.0


@pytest.mark.parametrize("name", ["sample_and_match", "recursive", "spectr", "block", "traversal", "typical"])
def test_float32_rounding_never_leaves_a_rule_without_a_token(name):
    """Laws that are equal but for rounding, and certain ones: only tokens the target may say come out."""
    generator = torch.Generator().manual_seed(3)
    law = WITH_REPLACEMENT if name == "spectr" else WITHOUT_REPLACEMENT
    tree = name not in ("block",)
    for seed in range(40):
        logits = torch.randn(4, 30, generator=generator) * (1 + seed)
        sampling = Sampling(temperature=0.8, top_k=5)
        rows = TargetRows(logits, sampling)
        p = rows.law(0)
        a, b = p.topk(2).indices.tolist()
        second = p.index_fill(0, torch.tensor(a), 0.0)
        in_force = p if law == WITH_REPLACEMENT else second / second.sum()
        if tree:
            draft = Draft((a, b, 3), (-1, -1, 1), law, torch.stack([p, in_force, rows.law(2)]))
        else:
            draft = Draft.chain([a, b], law, torch.stack([p, rows.law(1)]))
        verdict = build_verifier(name).verify(draft, rows, RandomStream(seed, "", ""))
        last = verdict.path[-1] + 1 if verdict.path else 0
        assert float(rows.law(last)[verdict.next_token]) > 0


@pytest.mark.parametrize("name", ["recursive", "spectr", "block", "traversal"])
def test_only_visited_rows_are_warped(name):
    """Behind a token that the target never says, nothing is looked at."""
    seen = set()

    class Counting(TargetRows):
        def law(self, row):
            seen.add(row)
            return super().law(row)

    q = torch.tensor([[1.0, 0.0, 0.0]] * 2, dtype=torch.float64)
    draft = Draft.chain([0, 0], WITHOUT_REPLACEMENT, q)
    logits = torch.tensor([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64).log()
    build_verifier(name).verify(draft, Counting(logits, PLAIN), RandomStream(0, "", ""))
    assert seen == {0}


def test_float64_rows_stay_float64():
    """A draft in float32 costs its own rounding, not the target's."""
    p = ((0.5, 0.3, 0.2),) * 3
    q = torch.tensor([[0.2, 0.5, 0.3]] * 2)
    for name in ("recursive", "traversal"):
        drafts = []
        for token, share in enumerate(q[0].double().tolist()):
            drafts.append((Draft.chain([token], WITHOUT_REPLACEMENT, q[:1]), share / float(q[0].double().sum())))
        assert error(law_of_round(build_verifier(name), drafts, p), 1, p) <= 1e-7
