"""How far a lossy rule moves the text: the distance it reports is that of the law it emits, enumerated."""

from __future__ import annotations

import pytest
import torch

from specdec.sampling import Sampling
from specdec.tree import POINT, WITHOUT_REPLACEMENT, Draft
from specdec.verifiers import TargetRows, build_verifier
from specdec.verifiers.typical import distance
from tests.helpers.enumerate import walk

P = torch.tensor([[0.55, 0.4, 0.05], [0.1, 0.3, 0.6], [0.2, 0.2, 0.6]], dtype=torch.float64)
Q = torch.tensor([[0.2, 0.5, 0.3], [0.45, 0.5, 0.05]], dtype=torch.float64)
ROWS = TargetRows(P.log(), Sampling(1.0))


def round_of(branch, law: str) -> tuple[int, float]:
    """A chain of one token, drawn from Q or fixed: the first token emitted, and the distance reported."""
    tokens = [branch.draw(Q[0])] if law == WITHOUT_REPLACEMENT else [1]
    draft = Draft.chain(tokens, law, Q[:1] if law == WITHOUT_REPLACEMENT else None)
    verdict = build_verifier("typical").verify(draft, ROWS, branch)
    emitted = tokens[0] if verdict.path else verdict.next_token
    return emitted, round(distance(draft, ROWS, verdict.path), 12)


@pytest.mark.parametrize("law", [WITHOUT_REPLACEMENT, POINT])
def test_the_distance_of_a_token_is_the_total_variation_of_the_law_it_follows(law):
    outcomes = walk(lambda branch: round_of(branch, law))
    emitted = [sum(chance for (token, _), chance in outcomes.items() if token == x) for x in range(3)]
    expected = sum(max(0.0, e - float(p)) for e, p in zip(emitted, P[0], strict=True))
    assert expected > 0.05
    assert {reported for _, reported in outcomes} == {round(expected, 12)}


def test_a_round_adds_up_its_tokens_and_stops_where_it_stopped():
    tokens = [1, 0]
    draft = Draft.chain(tokens, WITHOUT_REPLACEMENT, Q)
    alone, both = distance(draft, ROWS, ()), distance(draft, ROWS, (0,))
    assert 0 < alone < both == distance(draft, ROWS, (0, 1))
    assert distance(Draft(), ROWS, ()) == 0


def test_trees_have_no_such_distance():
    draft = Draft((0, 1), (-1, -1), WITHOUT_REPLACEMENT, Q)
    with pytest.raises(ValueError, match="chain"):
        distance(draft, ROWS, ())
