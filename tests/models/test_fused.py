"""The C library computes what PyTorch computes, row by row, whatever rows come with it."""

import pytest
import torch
import torch.nn.functional as F

from specdec.models import rotary
from specdec.models.fused import Fused, Reach, fused_for, library
from tests.helpers import tiny

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler")


@pytest.fixture
def fused() -> Fused:
    return fused_for(torch.bfloat16, torch.device("cpu"))


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("width", [8, 32, 33, 576])
def test_the_norm_of_a_sum(fused, width):
    hidden, update, weight = rows(5, width), rows(5, width, seed=1).bfloat16(), rows(width, seed=2)
    total, normed = fused.add_norm(hidden, update, weight, 1e-5)
    expected = F.rms_norm(hidden + update.float(), (width,), weight, 1e-5)
    assert torch.equal(total, hidden + update.float())
    assert torch.allclose(normed.float(), expected, rtol=2**-8, atol=1e-6)
    for i in range(5):
        alone = fused.add_norm(hidden[i : i + 1], update[i : i + 1], weight, 1e-5)
        assert torch.equal(alone[1][0], normed[i])


def test_without_an_update_the_input_is_passed_on_unchanged(fused):
    hidden = rows(3, 32)
    before = hidden.clone()
    total, _ = fused.add_norm(hidden, None, torch.ones(32), 1e-5)
    assert total is hidden and torch.equal(hidden, before)


@pytest.mark.parametrize("width", [3, 64, 1536])
def test_the_gated_product(fused, width):
    gate_up = 4 * rows(4, 2 * width).bfloat16()
    gate, up = gate_up.float().chunk(2, -1)
    assert torch.allclose(fused.gated(gate_up).float(), F.silu(gate) * up, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("norms", [False, True])
def test_heads_are_turned_and_stored_where_they_belong(fused, norms):
    count, heads, kv_heads, d, capacity, start = 3, 4, 2, 8, 16, 5
    qkv = rows(count, (heads + 2 * kv_heads) * d).bfloat16()
    turns = torch.polar(torch.ones(count, d // 2), rows(count, d // 2, seed=3))
    weights = (rows(d, seed=4), rows(d, seed=5)) if norms else (None, None)
    keys, values = torch.zeros(2, kv_heads, capacity, d, dtype=torch.bfloat16)
    q = fused.place(qkv, turns, weights, 1e-6, keys, values, heads, start)
    split = qkv.float().view(count, -1, d).split([heads, kv_heads, kv_heads], dim=1)
    turned = []
    for part, weight in zip(split[:2], weights, strict=True):
        turned.append(rotary.rotate(part if weight is None else F.rms_norm(part, (d,), weight, 1e-6), turns))
    stored = slice(start, start + count)
    assert torch.allclose(q.float(), turned[0], rtol=2**-7, atol=1e-3)
    assert torch.allclose(keys[:, stored].transpose(0, 1).float(), turned[1], rtol=2**-7, atol=1e-3)
    assert torch.equal(values[:, stored].transpose(0, 1).float(), split[2])
    outside = torch.ones(capacity, dtype=torch.bool)
    outside[stored] = False
    assert not keys[:, outside].any() and not values[:, outside].any()


@pytest.mark.parametrize("d", [8, 64, 128])
@pytest.mark.parametrize("tree", [False, True])
def test_attention_is_the_softmax_over_what_a_row_sees(fused, d, tree):
    count, heads, kv_heads, capacity, start = 4, 6, 2, 32, 9
    q, keys, values = (
        rows(*shape, seed=i).bfloat16()
        for i, shape in enumerate([(count, heads, d), (kv_heads, capacity, d), (kv_heads, capacity, d)])
    )
    mask = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], dtype=torch.bool) if tree else None
    seen = torch.zeros(count, capacity, dtype=torch.bool)
    seen[:, :start] = True
    seen[:, start : start + count] = torch.ones(count, count).tril().bool() if mask is None else mask
    wide = [side.float().repeat_interleave(heads // kv_heads, 0) for side in (keys, values)]
    expected = F.scaled_dot_product_attention(q.float().transpose(0, 1), *wide, seen).transpose(0, 1)
    mixed = fused.attend(q, keys, values, Reach(start, count, mask))
    assert torch.allclose(mixed.float(), expected, rtol=2**-7, atol=2e-3)


@pytest.mark.parametrize("d", [8, 64, 128])
def test_a_sum_does_not_know_where_the_prefix_ends(fused, d):
    """The same slots in the same order, as prefix and as listed ancestors: the same bits at every split."""
    heads, kv_heads, capacity = 9, 3, 192
    keys, values = (6 * rows(kv_heads, capacity, d, seed=s).bfloat16() for s in (1, 2))
    for count in (1, 2, 7, 64, 65, 131, 190):
        q = rows(1, heads, d, seed=count).bfloat16()
        whole = fused.attend(q, keys, values, Reach(count - 1, 1, None))
        for listed in {1, 2, 3, min(count, 17)} - set(range(count + 1, 20)):
            reach = Reach(count - 1, 1, None)
            reach.prefix = torch.tensor([count - listed])
            reach.extras = torch.tensor([listed])
            reach.extra = torch.arange(count - listed, count)[None].contiguous()
            assert torch.equal(fused.attend(q, keys, values, reach), whole)


def test_rows_of_caches_of_their_own_are_those_of_one_cache(fused):
    heads, kv_heads, capacity, d = 9, 3, 128, 64
    keys, values = (rows(4, kv_heads, capacity, d, seed=s).bfloat16() for s in (1, 2))
    q, lengths = rows(4, heads, d).bfloat16(), torch.tensor([1, 37, 64, 128])
    mixed = fused.attend_apart(q, keys, values, lengths)
    for i, length in enumerate(lengths.tolist()):
        alone = fused.attend(q[i : i + 1], keys[i], values[i], Reach(length - 1, 1, None))
        assert torch.equal(mixed[i], alone[0])


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_node_of_a_tree_gets_bit_for_bit_what_its_path_gets(family):
    """Widths, siblings and places in the cache make no difference: sums run along the path."""
    model = tiny.transformer(family, dtype=torch.bfloat16)
    prompt, parents = tiny.prompt_of(20), [-1, -1, 0, 2, 1, 3]
    tokens = tiny.prompt_of(len(parents), seed=1)
    mask, depths, paths = torch.eye(len(parents), dtype=torch.bool), [], []
    for i, parent in enumerate(parents):
        mask[i] |= mask[parent] if parent >= 0 else False
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
        paths.append([*(paths[parent] if parent >= 0 else []), tokens[i]])
    cache = model.new_cache(64)
    model.forward(prompt, cache, logits=False)
    positions = [len(prompt) + depth for depth in depths]
    tree = model.forward(tokens, cache, positions=positions, mask=mask).logits
    for i, path in enumerate(paths):
        cache.truncate(len(prompt))
        one_by_one = [model.forward([token], cache).logits[0] for token in path]
        assert torch.equal(tree[i], one_by_one[-1]), f"node {i}"


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_whole_forward_is_the_reference_up_to_rounding(family):
    model = tiny.transformer(family, seed=3, dtype=torch.bfloat16)
    text = tiny.prompt_of(24)
    with_library = model.forward(text, model.new_cache(32)).logits.float()
    model.fused, kept = None, model.fused
    try:
        reference = model.forward(text, model.new_cache(32)).logits.float()
    finally:
        model.fused = kept
    assert kept is not None and (with_library - reference).abs().max() < 0.05 * reference.abs().max()


def test_other_number_formats_take_the_reference_path():
    assert fused_for(torch.float32, torch.device("cpu")) is None
    assert tiny.transformer("llama", dtype=torch.float64).fused is None


def test_without_a_compiler_decoding_goes_on(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library.cache_clear()
    try:
        assert fused_for(torch.bfloat16, torch.device("cpu")) is None
    finally:
        library.cache_clear()
