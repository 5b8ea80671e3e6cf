"""The cache holds committed rows in text order, whatever was tried in between."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.errors import UserError
from specdec.models.kvcache import BLOCK, KVCache
from specdec.tree import Draft
from tests.helpers import tiny


@pytest.fixture(scope="module")
def config():
    return tiny.transformer("llama").config


def filled(config, length: int) -> KVCache:
    """Row i holds the number i."""
    cache = KVCache(config, length, torch.float32)
    numbers = torch.arange(cache.capacity, dtype=torch.float32)[None, None, :, None]
    cache.keys[:], cache.values[:] = numbers, -numbers
    cache.length = length
    return cache


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_keep_makes_the_kept_rows_contiguous_and_in_order(data):
    config = tiny.transformer("llama").config
    base = data.draw(st.integers(0, 40))
    written = data.draw(st.integers(1, 20))
    rows = sorted(data.draw(st.sets(st.integers(0, written - 1))))
    cache = filled(config, base + written)
    cache.keep(base, rows)
    expected = [*range(base), *(base + row for row in rows)]
    assert cache.length == len(expected)
    assert cache.keys[0, 0, : cache.length, 0].tolist() == expected
    assert cache.values[-1, -1, : cache.length, -1].tolist() == [-number for number in expected]


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_mixture_of_operations_leaves_what_a_plain_list_would(data):
    config = tiny.transformer("llama").config
    cache, expected, fresh = KVCache(config, BLOCK, torch.float32), [], 0
    for _ in range(data.draw(st.integers(1, 12))):
        operation = data.draw(st.sampled_from(["append", "truncate", "keep", "view"]))
        if operation == "truncate":
            length = data.draw(st.integers(0, len(expected)))
            cache.truncate(length)
            expected = expected[:length]
        else:
            rows = data.draw(st.integers(1, 6))
            if len(expected) + rows > cache.capacity:
                continue
            numbers = list(range(fresh + 1, fresh + rows + 1))
            fresh += rows
            holder = cache.view() if operation == "view" else cache
            start = holder.reserve(rows)
            assert start == len(expected)
            holder.keys[:, :, start : start + rows] = torch.tensor(numbers, dtype=torch.float32)[:, None]
            holder.length = start + rows
            if operation == "append":
                expected += numbers
            elif operation == "keep":
                chosen = sorted(data.draw(st.sets(st.integers(0, rows - 1))))
                cache.keep(start, chosen)
                expected += [numbers[row] for row in chosen]
            else:
                assert holder.length == len(expected) + rows and cache.length == len(expected)
                holder.rollback()
                assert holder.length == len(expected)
        assert cache.length == len(expected)
        assert cache.keys[0, 0, : cache.length, 0].tolist() == expected


def test_truncate_never_lengthens(config):
    cache = filled(config, 5)
    for length in (6, -1):
        with pytest.raises(ValueError, match=f"length 5 to {length}"):
            cache.truncate(length)
    assert cache.length == 5


def test_a_full_cache_says_how_full_it_is(config):
    cache = filled(config, BLOCK)
    for holder in (cache, cache.view()):
        with pytest.raises(UserError, match=r"context is full: 64 \+ 1 rows exceed the cache's 64"):
            holder.reserve(1)


def test_capacity_is_whole_blocks_and_bytes_count_keys_and_values(config):
    cache = KVCache(config, BLOCK + 1, torch.float32)
    assert cache.capacity == 2 * BLOCK
    assert cache.bytes == 2 * config.layers * config.kv_heads * 2 * BLOCK * config.head_dim * 4


def test_a_view_shows_the_committed_rows_of_its_parent(config):
    cache = filled(config, 4)
    view = cache.view()
    view.length = 7
    view.rollback()
    cache.keep(4, [0, 1])
    assert view.length == 6 and view.keys is cache.keys and view.capacity == cache.capacity


@pytest.mark.parametrize("variant", tiny.FAMILIES)
@pytest.mark.parametrize("prefix", [6, 125])
def test_an_accepted_path_that_is_not_contiguous_continues_like_a_fresh_forward(variant, prefix):
    model, prompt = tiny.transformer(variant, dtype=torch.float32), tiny.prompt_of(prefix)
    tree = Draft((11, 12, 13, 14, 15, 16), (-1, -1, 0, 1, 2, 2))
    path = [0, 2, 5]
    cache = model.new_cache(200)
    model.forward(prompt[:-1], cache, logits=False)
    base = cache.length
    model.forward([prompt[-1], *tree.tokens], cache, positions=tree.positions(base), mask=tree.mask())
    cache.keep(base, [0, *(node + 1 for node in path)])
    text = [*prompt, *(tree.tokens[node] for node in path)]
    fresh = model.new_cache(200)
    model.forward(text, fresh, logits=False)
    assert cache.length == fresh.length == len(text)
    for ours, theirs in ((cache.keys, fresh.keys), (cache.values, fresh.values)):
        torch.testing.assert_close(ours[:, :, : len(text)], theirs[:, :, : len(text)], rtol=0, atol=1e-5)
    following = [model.forward([50], holder).logits for holder in (cache, fresh)]
    torch.testing.assert_close(*following, rtol=0, atol=1e-4)


def test_after_a_rejection_the_next_logits_are_those_of_an_uncached_forward():
    model, prompt = tiny.transformer("qwen3", dtype=torch.float32), tiny.prompt_of(8)
    cache = model.new_cache(64)
    model.forward(prompt, cache, logits=False)
    model.forward([9, 10, 11], cache)  # all of it rejected
    cache.truncate(len(prompt))
    after = model.forward([20], cache).logits
    fresh = model.forward([*prompt, 20], model.new_cache(64)).logits[-1:]
    torch.testing.assert_close(after, fresh, rtol=0, atol=1e-5)


def test_an_early_exit_in_a_view_does_not_disturb_the_parent():
    model, prompt = tiny.transformer("llama", layers=3, dtype=torch.float32), tiny.prompt_of(8)
    cache = model.new_cache(64)
    model.forward(prompt, cache, logits=False)
    view = cache.view()
    model.forward([30, 31], view, plan=model.full_plan[:1])
    view.rollback()
    after = model.forward([20], cache).logits
    fresh = model.forward([*prompt, 20], model.new_cache(64)).logits[-1:]
    torch.testing.assert_close(after, fresh, rtol=0, atol=1e-5)
