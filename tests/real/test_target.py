"""The default target: the right weights, the right logits, and bf16 rows that do not depend on their neighbours."""

from pathlib import Path

import pytest
import torch

from specdec.models.attention import NARROW
from specdec.models.kvcache import BLOCK
from specdec.models.linear import can_pack
from specdec.models.selftest import width_invariant

MESSAGES = [{"role": "user", "content": "Name three rivers in Europe and say where each of them ends."}]


def processor_has_bf16() -> bool:
    file = Path("/proc/cpuinfo")
    return file.is_file() and "avx512_bf16" in file.read_text()


@pytest.fixture(scope="module")
def theirs(folder):
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def test_the_converted_folder_is_the_model_it_says_it_is(load):
    loaded = load("bfloat16")
    c = loaded.model.config
    assert (c.family, c.layers, c.hidden_size, c.heads, c.kv_heads, c.tied) == ("llama", 30, 576, 9, 3, True)
    assert loaded.model.vocabulary == len(loaded.tokenizer) == 49152
    assert loaded.tokenizer.token(loaded.tokenizer.eos_ids[0]) == "<|im_end|>"
    ids = loaded.tokenizer.chat(MESSAGES)
    assert loaded.tokenizer.inner.decode(ids).endswith("<|im_start|>assistant\n")


def test_float32_logits_are_those_of_transformers(load, theirs):
    loaded = load("float32")
    ids = loaded.tokenizer.chat(MESSAGES)
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0]
    model = loaded.model
    prefilled = model.forward(ids, model.new_cache(len(ids))).logits
    scale = expected.abs().max()
    assert (prefilled - expected).abs().max() < 1e-4 * scale
    cache = model.new_cache(len(ids))
    split = [
        model.forward(ids[a:b], cache).logits for a, b in ((0, 1), (1, 6), (6, len(ids) - 1), (len(ids) - 1, None))
    ]
    assert (torch.cat(split) - expected).abs().max() < 1e-4 * scale


def test_the_target_writes_sense(load):
    from specdec.decode import Request, autoregressive

    loaded = load("float32")
    ids = loaded.tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])
    record = autoregressive(loaded.model, Request(ids, 12, eos_ids=frozenset(loaded.tokenizer.eos_ids))).run()
    assert "Paris" in loaded.tokenizer.decode(record.output_ids)


@pytest.fixture(scope="module")
def bf16(folder):
    """Skipped where the processor cannot do it; where it can, a failure below is a failure."""
    if not processor_has_bf16():
        pytest.skip("this processor has no avx512_bf16")
    assert can_pack(torch.bfloat16), "the processor has avx512_bf16, but this PyTorch has no packed bf16 products"


@pytest.fixture(scope="module")
def text():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1000, 40000, (300,), generator=generator).tolist()


def rows_one_by_one(model, text, start, count):
    cache = model.new_cache(len(text))
    if start:
        model.forward(text[:start], cache, logits=False)
    single = [model.forward([token], cache).logits for token in text[start : start + count]]
    return torch.cat(single), cache


def test_every_width_is_bit_exact(load, bf16, text):
    model, start = load("bfloat16").model, 40
    reference, cache = rows_one_by_one(model, text, start, NARROW)
    for width in range(1, NARROW + 1):
        cache.truncate(start)
        wide = model.forward(text[start : start + width], cache).logits
        assert torch.equal(wide, reference[:width]), f"width {width}"


@pytest.mark.parametrize("first, last", [(BLOCK - 28, BLOCK + 2), (2 * BLOCK - 6, 2 * BLOCK + 4)])
def test_widths_are_bit_exact_around_the_ends_of_cache_blocks(load, bf16, text, first, last):
    model, widths = load("bfloat16").model, (2, 5, 9, NARROW)
    reference, cache = rows_one_by_one(model, text, first, last - first)
    for start in range(first, last):
        width = widths[start % len(widths)]
        cache.truncate(start)
        wide = model.forward(text[start : start + width], cache).logits
        shared = min(width, last - start)
        assert torch.equal(wide[:shared], reference[start - first : start - first + shared]), f"start {start}, {width}"
        # The cache goes on with the row as the baseline would have written it.
        cache.truncate(start)
        model.forward(text[start : start + 1], cache, logits=False)


def test_the_selftest_agrees(load, bf16):
    assert width_invariant(load("bfloat16").model)
