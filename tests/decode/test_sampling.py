"""Warping and random choices."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from specdec.errors import UserError
from specdec.sampling import GREEDY, RandomStream, Sampling, warp


def slow_warp(logits: list[float], sampling: Sampling) -> list[float]:
    """Temperature, then top-k, then top-p, one token at a time; ties go to the lower id."""
    ids = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if sampling.temperature == 0:
        return [float(i == ids[0]) for i in range(len(logits))]
    kept = ids[: sampling.top_k] if sampling.top_k else ids
    weights = {i: np.exp((logits[i] - logits[ids[0]]) / sampling.temperature) for i in kept}
    total = sum(weights.values())
    law = {i: weight / total for i, weight in weights.items()}
    if sampling.top_p is not None and sampling.top_p < 1:
        mass, nucleus = 0.0, {}
        for i in kept:
            if mass >= sampling.top_p:
                break
            nucleus[i] = law[i]
            mass += law[i]
        law = {i: p / mass for i, p in nucleus.items()}
    return [law.get(i, 0.0) for i in range(len(logits))]


@given(
    logits=st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=1, max_size=9),
    temperature=st.sampled_from([0, 0.3, 0.7, 1.0, 1.9]),
    top_k=st.sampled_from([None, 1, 2, 3, 20]),
    top_p=st.sampled_from([None, 0.123, 0.4567, 0.789, 0.9999, 1.0]),
)
@settings(max_examples=300, deadline=None)
def test_every_combination_of_filters_matches_a_slow_reference(logits, temperature, top_k, top_p):
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    z = torch.tensor(logits, dtype=torch.float64)
    before = z.clone()
    law = warp(z, sampling)
    assert torch.equal(z, before), "the input was changed"
    assert law.dtype == torch.float64 and abs(float(law.sum()) - 1) < 1e-12
    torch.testing.assert_close(law, torch.tensor(slow_warp(logits, sampling), dtype=torch.float64), rtol=0, atol=1e-12)


def test_top_p_keeps_the_smallest_set_that_holds_its_mass():
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64).log()
    law = warp(logits, Sampling(temperature=1.0, top_p=0.5))
    torch.testing.assert_close(law, torch.tensor([4 / 7, 3 / 7, 0, 0], dtype=torch.float64), rtol=0, atol=1e-12)
    assert law[2] == law[3] == 0


@pytest.mark.parametrize("top_p", [1e-9, 0.01])
def test_top_p_keeps_at_least_one_token(top_p):
    law = warp(torch.tensor([0.0, 1.0, 0.5]), Sampling(temperature=1.0, top_p=top_p))
    assert law.tolist() == [0.0, 1.0, 0.0]


def test_top_k_keeps_exactly_k_of_equal_logits():
    law = warp(torch.tensor([1.0, 1.0, 1.0, 1.0]), Sampling(temperature=1.0, top_k=2))
    assert law.tolist() == [0.5, 0.5, 0.0, 0.0]


def test_temperature_comes_before_the_filters():
    logits = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64)
    cold = warp(logits, Sampling(temperature=0.5, top_p=0.85))
    assert cold.tolist() == [1.0, 0.0, 0.0]  # .867 alone holds the mass at temperature .5; at 1 it would not


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-6, 1e-30, 1e-300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_towards_temperature_zero_the_law_is_the_largest_logit(temperature, dtype):
    logits = torch.tensor([[1.0, 3.0, 2.0], [9.0, -9.0, 0.0]], dtype=dtype)
    assert warp(logits, Sampling(temperature=temperature)).tolist() == [[0, 1, 0], [1, 0, 0]]


def test_rows_are_warped_independently():
    rows = torch.randn(5, 7, dtype=torch.float64)
    sampling = Sampling(temperature=0.8, top_k=5, top_p=0.9)
    together = warp(rows, sampling)
    for row, law in zip(rows, together, strict=True):
        assert torch.equal(warp(row, sampling), law)


def test_low_precision_logits_are_warped_in_float32():
    assert warp(torch.zeros(4, dtype=torch.bfloat16), Sampling(temperature=1.0)).dtype == torch.float32


def test_a_forbidden_token_stays_forbidden():
    law = warp(torch.tensor([0.0, -torch.inf, 1.0]), Sampling(temperature=1.5, top_p=0.999))
    assert law[1] == 0 and torch.isfinite(law).all()


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key, value",
    [
        ("temperature", -0.1),
        ("temperature", float("inf")),
        ("temperature", float("nan")),
        ("draft_temperature", -1.0),
        ("draft_temperature", float("inf")),
        ("top_k", 0),
        ("top_k", -3),
        ("top_k", 1.5),
        ("top_k", True),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", -0.5),
        ("top_p", float("nan")),
    ],
)
def test_an_impossible_setting_is_refused_by_name_and_value(key, value):
    with pytest.raises(UserError, match=f"^{key} = {value}: must"):
        Sampling(**{key: value})


def test_the_drafts_settings_are_the_targets_unless_it_has_its_own_temperature():
    sampling = Sampling(temperature=0.7, top_k=5, top_p=0.9)
    assert sampling.for_draft == sampling
    own = Sampling(temperature=0.7, top_k=5, top_p=0.9, draft_temperature=1.5)
    assert own.for_draft == Sampling(temperature=1.5, top_k=5, top_p=0.9)
    assert Sampling(temperature=0.7, draft_temperature=0.0).for_draft.greedy


def test_a_greedy_target_makes_a_greedy_draft():
    assert Sampling(temperature=0.0, draft_temperature=1.0).for_draft.greedy and GREEDY.for_draft.greedy


# -- streams ----------------------------------------------------------------------------------------------------------


def numbers(stream: RandomStream, count: int = 20) -> list[int]:
    law = torch.full((1000,), 1e-3)
    return [stream.draw(law) for _ in range(count)]


def test_a_stream_is_reproducible():
    assert numbers(RandomStream(3, "a", "verify")) == numbers(RandomStream(3, "a", "verify"))


def test_streams_differ_by_seed_prompt_and_purpose():
    keys = [(0, "a", "verify"), (1, "a", "verify"), (0, "b", "verify"), (0, "a", "draft"), (0, "", "averify")]
    assert len({tuple(numbers(RandomStream(*key))) for key in keys}) == len(keys)


def test_keys_cannot_run_into_each_other():
    assert numbers(RandomStream(1, "1a", "x")) != numbers(RandomStream(11, "a", "x"))
    assert numbers(RandomStream(1, "a", "bx")) != numbers(RandomStream(1, "ab", "x"))


def test_a_stream_is_untouched_by_other_streams_and_other_randomness():
    alone = numbers(RandomStream(0, "a", "verify"))
    stream, other = RandomStream(0, "a", "verify"), RandomStream(0, "a", "draft")
    mixed = []
    for _ in range(20):
        torch.rand(3)
        np.random.rand()
        numbers(other, 2)
        mixed += numbers(stream, 1)
    assert mixed == alone


def test_a_stream_leaves_the_global_generators_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    numbers(RandomStream(0, "a", "b"))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_follow_the_law(dtype):
    law, count = torch.tensor([0.5, 0.3, 0.2], dtype=dtype), 3000
    stream = RandomStream(7, "chi", "square")
    seen = Counter(stream.draw(law) for _ in range(count))
    assert set(seen) == {0, 1, 2}
    assert chisquare([seen[i] for i in range(3)], [500 * 3, 300 * 3, 200 * 3]).pvalue > 1e-3


def test_accept_follows_its_probability():
    stream = RandomStream(7, "accept", "")
    seen = sum(stream.accept(0.3) for _ in range(3000))
    assert chisquare([seen, 3000 - seen], [900, 2100]).pvalue > 1e-3
    assert all(stream.accept(1.0) for _ in range(1000)) and not any(stream.accept(0.0) for _ in range(1000))


class Extremes:
    """A generator that returns the ends of its range."""

    def __init__(self, value):
        self.value = value

    def random(self):
        return self.value


@pytest.mark.parametrize("point", [0.0, 5e-324, 0.3, np.nextafter(0.3, 1), 0.999999, np.nextafter(1.0, 0)])
@given(weights=st.lists(st.sampled_from([0.0, 0.0, 0.1, 0.3, 1e-30, 1.0]), min_size=1, max_size=8).filter(any))
@settings(max_examples=40, deadline=None)
def test_a_token_without_probability_is_never_drawn(point, weights):
    stream = RandomStream(0, "a", "b")
    stream._generator = Extremes(point)
    for dtype in (torch.float32, torch.float64):
        law = torch.tensor(weights, dtype=dtype)
        token = stream.draw(law / law.sum())
        assert 0 <= token < len(weights) and weights[token] > 0
