"""Weights in 8 and 4 bits: what they stand for, and the engine's products over them, bit for bit."""

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.errors import UserError
from specdec.models.native import obstacle
from specdec.models.quantised import FORMATS, Quantised, plain, quantised, reordered, stacked
from tests.helpers.engine import product

needs_engine = pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@needs_engine
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("inputs", [32, 64, 576, 1536])
@pytest.mark.parametrize("outputs", [1, 8, 9, 31, 32, 33, 200])
def test_a_product_over_them_is_that_over_what_they_stand_for(format, inputs, outputs):
    weight, bias = quantised(drawn(outputs, inputs), format), drawn(outputs, seed=1).float()
    assert isinstance(weight, Quantised)
    x = drawn(33, inputs, seed=2)
    wanted = product(x, weight.dequantised(), bias)
    for rows in (1, 2, 7, 8, 9, 12, 13, 33):
        for threads in (1, 2, 3):
            assert torch.equal(product(x[:rows], weight, bias, threads), wanted[:rows])


@given(st.integers(0, 2**16), st.sampled_from(FORMATS), st.floats(1e-3, 1e3), st.floats(-10, 10))
@settings(max_examples=60, deadline=None)
def test_rounding_is_by_at_most_half_a_step(seed, format, scale, shift):
    weight = drawn(3, 96, seed=seed).float() * scale + shift * scale
    made = quantised(weight, format)
    groups = weight.unflatten(1, (-1, 32))
    step = groups.abs().amax(-1) / 127 if format == "q8_0" else (groups.amax(-1) - groups.amin(-1)) / 15
    # half a step, the rounding of scale and least value to half precision, and that of the result to bf16
    allowed = step / 2 + groups.abs().amax(-1) * (2**-9 + 2**-9)
    off = (made.dequantised().float() - weight).unflatten(1, (-1, 32)).abs().amax(-1)
    assert (off <= allowed).all()


@pytest.mark.parametrize(("format", "kind"), [("q8_0", GGMLQuantizationType.Q8_0), ("q4_1", GGMLQuantizationType.Q4_1)])
def test_they_are_what_ggufs_own_package_reads(format, kind):
    weight = drawn(5, 128)
    made = quantised(weight, format)
    scales, numbers = made.scales[..., None], made.numbers.unflatten(1, (-1, 32))
    if format == "q8_0":
        parts = [scales.view(torch.uint8), numbers.view(torch.uint8)]
    else:
        low, high = numbers.chunk(2, dim=-1)
        parts = [scales.view(torch.uint8), made.least[..., None].view(torch.uint8), low | high << 4]
    blocks = torch.cat(parts, dim=-1).flatten(1).numpy()
    read = torch.from_numpy(gguf.dequantize(blocks, kind))
    assert torch.equal(read.bfloat16(), made.dequantised())


@pytest.mark.parametrize("format", FORMATS)
def test_all_that_is_alike_or_zero_is_kept(format):
    weight = torch.zeros(2, 64).bfloat16()
    weight[1] = 0.5
    made = quantised(weight, format)
    assert torch.equal(made.dequantised(), weight)


@pytest.mark.parametrize("format", FORMATS)
def test_rows_move_as_those_of_a_tensor(format):
    first, second = quantised(drawn(6, 32), format), quantised(drawn(4, 32, seed=1), format)
    both = stacked([first, second])
    assert torch.equal(plain(both), torch.cat([plain(first), plain(second)]))
    assert torch.equal(plain(reordered(both, lambda rows: rows.flip(0))), plain(both).flip(0))
    halves = both.chunk(2)
    assert torch.equal(torch.cat([plain(half) for half in halves]), plain(both))
    assert both.nbytes == {"q8_0": 10 * 34, "q4_1": 10 * 20}[format]


def test_mixed_formats_are_stacked_as_they_stand_for():
    first, second = quantised(drawn(6, 32), "q8_0"), quantised(drawn(4, 32, seed=1), "q4_1")
    assert torch.equal(stacked([first, second]), torch.cat([plain(first), plain(second)]))


def test_inputs_that_are_no_whole_groups_stay_as_they_are():
    weight = drawn(3, 33)
    assert quantised(weight, "q8_0") is weight


def test_another_format_is_refused():
    with pytest.raises(UserError, match='weights "q2"'):
        quantised(drawn(3, 32), "q2")
