"""In bf16 a row's logits do not depend on how many rows are scored with it, where the processor has packed products."""

import pytest
import torch

from specdec.models.attention import NARROW
from specdec.models.kvcache import BLOCK
from specdec.models.linear import Linear, can_pack
from specdec.models.selftest import remembered, width_invariant
from tests.helpers import tiny

packed = pytest.mark.skipif(not can_pack(torch.bfloat16), reason="this processor has no packed bf16 products")


def differing(model, tokens: list[int], start: int, widths) -> list[int]:
    """The widths at which some logit differs from decoding one by one, scoring from `start` on."""
    cache = model.new_cache(len(tokens))
    if start:
        model.forward(tokens[:start], cache, logits=False)
    reference = torch.cat([model.forward([token], cache).logits for token in tokens[start : start + max(widths)]])
    wrong = []
    for width in widths:
        cache.truncate(start)
        wide = model.forward(tokens[start : start + width], cache).logits
        if not torch.equal(wide, reference[:width]):
            wrong.append(width)
    return wrong


@packed
@pytest.mark.parametrize("variant", [*tiny.FAMILIES, "llama-biases"])
def test_every_width_up_to_the_narrow_limit_is_bit_exact(variant):
    model = tiny.transformer(variant, dtype=torch.bfloat16)
    assert not differing(model, tiny.prompt_of(60), 11, range(1, NARROW + 1))


@packed
@pytest.mark.parametrize("start", [BLOCK - 28, BLOCK - 9, BLOCK - 1, BLOCK, 2 * BLOCK - 32, 0])
def test_widths_are_bit_exact_across_cache_blocks(start):
    model = tiny.transformer("llama", dtype=torch.bfloat16)
    assert not differing(model, tiny.prompt_of(256), start, (1, 2, 3, 8, 9, 17, 28, 29, 32))


FORMATS = [pytest.param(torch.bfloat16, marks=packed), torch.float32]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("shape", [(96, 32), (576, 576), (1536, 576), (960, 576), (576, 1536)])
def test_packed_products_are_bit_exact_for_every_width(shape, dtype):
    generator = torch.Generator().manual_seed(0)
    linear = Linear(torch.randn(shape, generator=generator).to(dtype))
    rows = torch.randn(NARROW, shape[1], generator=generator)  # rounded by the product
    together = linear(rows)
    for width in range(1, NARROW + 1):
        assert torch.equal(linear(rows[:width]), together[:width]), f"width {width}"
    assert torch.equal(linear(rows[5:6]), together[5:6])


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 40])
def test_packed_products_are_products(rows, dtype):
    weight, x, bias = (torch.randn(shape).to(dtype) for shape in ((40, 32), (rows, 32), (40,)))
    exact = x.double() @ weight.double().T
    loose, tight = (0.01, 0.03), (1e-4, 1e-5)
    near = dict(zip(("rtol", "atol"), loose if dtype == torch.bfloat16 else tight, strict=True))
    torch.testing.assert_close(Linear(weight)(x).double(), exact, **near)
    torch.testing.assert_close(Linear(weight, bias)(x).double(), exact + bias.double(), **near)


@packed
def test_the_selftest_says_yes_for_a_bf16_model():
    assert width_invariant(tiny.transformer("qwen3", dtype=torch.bfloat16))


def test_the_selftest_says_no_when_a_row_depends_on_its_neighbours(monkeypatch):
    model = tiny.convert(tiny.reference("llama"), torch.float32)
    plain = model.head
    monkeypatch.setattr(model, "head", lambda normed: plain(normed) + 1e-6 * len(normed))
    assert not width_invariant(model)


def test_the_selftest_fits_models_with_a_short_context():
    model = tiny.convert(tiny.reference("llama", max_position_embeddings=40), torch.float64)
    width_invariant(model)  # neither beyond its positions nor its cache


def test_bf16_stays_near_float32():
    exact = tiny.transformer("qwen2", dtype=torch.float32)
    rounded, prompt = tiny.transformer("qwen2", dtype=torch.bfloat16), tiny.prompt_of(30)
    a = exact.forward(prompt, exact.new_cache(64)).logits
    b = rounded.forward(prompt, rounded.new_cache(64)).logits.float()
    assert (a - b).abs().max() < 0.05 * a.abs().max()


def test_the_selftest_is_measured_once_for_a_model_a_number_format_and_a_thread_count(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, asked = tiny.transformer("qwen3", dtype=torch.bfloat16), []

    def measure(model):
        asked.append(model)
        return len(asked) == 1

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert remembered(model, "a", measure) and remembered(model, "a", measure) and len(asked) == 1
        assert not remembered(model, "b", measure) and not remembered(model, "b", measure) and len(asked) == 2
        remembered(tiny.transformer("qwen3", dtype=torch.float32), "a", measure)
        assert len(asked) == 3
        torch.set_num_threads(2)
        remembered(model, "a", measure)
        assert len(asked) == 4
    finally:
        torch.set_num_threads(before)
    for file in (tmp_path / "specdec").iterdir():  # cut short by a full disk
        file.write_text("{", "utf-8")
    remembered(model, "a", measure)
    assert len(asked) == 5


def test_the_selftest_needs_no_folder_to_be_kept_in(tmp_path, monkeypatch):
    (tmp_path / "specdec").write_text("a file", "utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = tiny.transformer("qwen3", dtype=torch.float32)
    assert remembered(model, "a", lambda model: True) and not remembered(model, "a", lambda model: False)
