"""The forward gives Transformers' logits, whatever the shape of the pass."""

import copy

import pytest
import torch

from specdec.models.attention import NARROW
from specdec.models.kvcache import BLOCK
from specdec.tree import Draft
from tests.helpers import tiny

NEAR = {"rtol": 0.0, "atol": 1e-4}


def both(variant, **changes):
    model = tiny.reference(variant, **changes)
    return model, tiny.convert(model)


@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_prefill_gives_the_logits_of_transformers(variant):
    theirs, ours = both(variant)
    prompt = tiny.prompt_of(20)
    logits = ours.forward(prompt, ours.new_cache(64)).logits
    torch.testing.assert_close(logits, tiny.logits_of(theirs, prompt), **NEAR)
    assert logits.std() > 1, "logits too flat to tell a wrong forward from a right one"


@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_long_prefill_gives_the_logits_of_transformers(variant):
    theirs, ours = both(variant)
    prompt = tiny.prompt_of(200)
    assert len(prompt) > NARROW and len(prompt) > BLOCK
    logits = ours.forward(prompt, ours.new_cache(200)).logits
    torch.testing.assert_close(logits, tiny.logits_of(theirs, prompt), **NEAR)


@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_one_token_at_a_time_gives_the_logits_of_transformers(variant):
    theirs, ours = both(variant)
    prompt, cache = tiny.prompt_of(12), ours.new_cache(64)
    rows = [ours.forward([token], cache).logits for token in prompt]
    torch.testing.assert_close(torch.cat(rows), tiny.logits_of(theirs, prompt), **NEAR)
    assert cache.length == len(prompt)


@pytest.mark.parametrize("variant", tiny.FAMILIES)
@pytest.mark.parametrize("sizes", [(120, 5, 1, 7, 20), (1, 40, 90, 3), (126, 1, 1, 1, 1, 32)])
def test_blocks_behind_a_prefix_give_the_logits_of_transformers_across_cache_blocks(variant, sizes):
    theirs, ours = both(variant)
    prompt, cache = tiny.prompt_of(sum(sizes)), ours.new_cache(sum(sizes))
    rows, at = [], 0
    for size in sizes:
        rows.append(ours.forward(prompt[at : at + size], cache).logits)
        at += size
    torch.testing.assert_close(torch.cat(rows), tiny.logits_of(theirs, prompt), **NEAR)


def test_prefill_without_logits_fills_the_cache_alike():
    model = tiny.transformer("qwen3", dtype=torch.float32)
    prompt, silent, loud = tiny.prompt_of(10), model.new_cache(64), model.new_cache(64)
    assert model.forward(prompt, silent, logits=False).logits is None
    model.forward(prompt, loud)
    assert torch.equal(silent.keys, loud.keys) and torch.equal(silent.values, loud.values)


TREES = {
    "two branches": (-1, -1, 0, 0, 1),
    "interleaved": (-1, -1, 1, 0, 2, 3, 3, 4),
    "star": (-1,) * 6,
    "deep": (-1, 0, 1, 2, 0, 4, 5),
}


@pytest.mark.parametrize("parents", TREES.values(), ids=TREES)
@pytest.mark.parametrize("variant", tiny.FAMILIES)
@pytest.mark.parametrize("prefix", [6, 124])
def test_each_node_of_a_tree_has_the_logits_of_a_plain_forward_of_its_root_path(variant, parents, prefix):
    theirs, ours = both(variant)
    prompt, tree = tiny.prompt_of(prefix), Draft(tuple(tiny.prompt_of(len(parents), seed=1)), parents)
    cache = ours.new_cache(200)
    ours.forward(prompt[:-1], cache, logits=False)
    rows = [prompt[-1], *tree.tokens]
    logits = ours.forward(rows, cache, positions=tree.positions(prefix - 1), mask=tree.mask()).logits
    for node in range(len(tree)):
        path, at = [], node
        while at >= 0:
            path.insert(0, tree.tokens[at])
            at = parents[at]
        plain = tiny.logits_of(theirs, [*prompt, *path])[-1]
        torch.testing.assert_close(logits[node + 1], plain, **NEAR)


def test_a_tree_wider_than_a_narrow_pass_has_the_same_logits():
    theirs, ours = both("qwen2")
    prompt, count = tiny.prompt_of(9), NARROW + 8
    tree = Draft(tuple(tiny.prompt_of(count, seed=2)), tuple((j - 1) // 2 if j else -1 for j in range(count)))
    cache = ours.new_cache(200)
    ours.forward(prompt[:-1], cache, logits=False)
    logits = ours.forward(
        [prompt[-1], *tree.tokens], cache, positions=tree.positions(len(prompt) - 1), mask=tree.mask()
    ).logits
    for node in (0, 1, 5, count - 1):
        path, at = [], node
        while at >= 0:
            path.insert(0, tree.tokens[at])
            at = tree.parents[at]
        torch.testing.assert_close(logits[node + 1], tiny.logits_of(theirs, [*prompt, *path])[-1], **NEAR)


def test_changing_one_branch_leaves_the_other_untouched():
    model, parents = tiny.transformer("qwen3", dtype=torch.float32), (-1, -1, 0, 0, 1)
    prompt = tiny.prompt_of(6)

    def score(tokens):
        tree, cache = Draft(tokens, parents), model.new_cache(64)
        model.forward(prompt[:-1], cache, logits=False)
        rows = [prompt[-1], *tokens]
        return model.forward(rows, cache, positions=tree.positions(len(prompt) - 1), mask=tree.mask()).logits

    before, after = score((10, 20, 30, 31, 40)), score((11, 20, 30, 31, 40))
    changed = (before - after).abs().amax(-1) > 1e-6
    assert changed.tolist() == [False, True, False, True, True, False]  # node 0 and its children 2, 3


def test_siblings_share_a_position_and_positions_follow_depth():
    tree = Draft((1, 2, 3, 4, 5), (-1, -1, 0, 0, 1))
    assert tree.depths == (1, 1, 2, 2, 2)
    assert tree.positions(7) == [7, 8, 8, 9, 9, 9]


def test_explicit_positions_of_a_chain_change_nothing():
    model, prompt = tiny.transformer("llama", dtype=torch.float32), tiny.prompt_of(6)
    chain = Draft.chain(prompt[1:])
    plain = model.forward(prompt, model.new_cache(64)).logits
    spelled = model.forward(prompt, model.new_cache(64), positions=chain.positions(0), mask=chain.mask()).logits
    torch.testing.assert_close(spelled, plain, rtol=0, atol=1e-5)


@pytest.mark.parametrize("variant", tiny.FAMILIES)
def test_taps_are_the_hidden_states_of_transformers(variant):
    theirs, ours = both(variant, layers=3)
    prompt = tiny.prompt_of(7)
    with torch.no_grad():
        states = theirs(torch.tensor([prompt]), output_hidden_states=True, use_cache=False).hidden_states
    taps = (0, 2, 3)
    features = ours.forward(prompt, ours.new_cache(64), taps=taps, logits=False).features
    torch.testing.assert_close(features, torch.cat([states[k][0] for k in taps], dim=-1), **NEAR)


@pytest.mark.parametrize("exit_after", [1, 2])
def test_an_early_exit_is_the_model_cut_there(exit_after):
    theirs, ours = both("llama", layers=3)
    prompt, plan = tiny.prompt_of(9), ours.full_plan[:exit_after]
    cut = copy.deepcopy(tiny.reference("llama", layers=exit_after))
    with torch.no_grad():
        cut.load_state_dict({name: theirs.state_dict()[name] for name in cut.state_dict()})
    logits = ours.forward(prompt, ours.new_cache(64), plan=plan).logits
    torch.testing.assert_close(logits, tiny.logits_of(cut, prompt), **NEAR)


@pytest.mark.parametrize("part", ["attention", "mlp"])
def test_a_skipped_block_adds_nothing(part):
    silenced = {"attention": "self_attn.o_proj", "mlp": "mlp.down_proj"}[part]
    theirs, ours = both("qwen2", layers=3, seed=5)
    prompt = tiny.prompt_of(9)
    plan = [(0, True, True), (1, part != "attention", part != "mlp"), (2, True, True)]
    logits = ours.forward(prompt, ours.new_cache(64), plan=plan).logits
    theirs = copy.deepcopy(theirs)
    with torch.no_grad():
        theirs.get_parameter(f"model.layers.1.{silenced}.weight").zero_()
    torch.testing.assert_close(logits, tiny.logits_of(theirs, prompt), **NEAR)


def test_float64_models_compute_in_float64():
    theirs = tiny.reference("qwen3", dtype=torch.float64, seed=3)
    ours, prompt = tiny.convert(theirs), tiny.prompt_of(30)
    logits = ours.forward(prompt, ours.new_cache(64)).logits
    assert logits.dtype == torch.float64
    torch.testing.assert_close(logits, tiny.logits_of(theirs, prompt), rtol=0, atol=1e-5)  # theirs rotates in float32
    single = torch.cat([ours.forward([t], cache).logits for cache in [ours.new_cache(64)] for t in prompt])
    torch.testing.assert_close(logits, single, rtol=0, atol=1e-12)


def test_the_head_is_cut_to_the_vocabulary():
    theirs = tiny.reference("llama")
    ours, prompt = tiny.convert(theirs, vocabulary=90), tiny.prompt_of(5, vocabulary=90)
    logits = ours.forward(prompt, ours.new_cache(64)).logits
    assert logits.shape == (5, 90) and ours.vocabulary == 90
    torch.testing.assert_close(logits, tiny.logits_of(theirs, prompt)[:, :90], **NEAR)


def test_weight_bytes_of_a_plan_count_its_blocks_and_the_head():
    model = tiny.transformer("llama", layers=3, dtype=torch.float32)
    attention, mlp = (32 * 32 + 2 * 16 * 32 + 32 * 32) * 4, 3 * 32 * 64 * 4
    head = tiny.VOCABULARY * 32 * 4
    assert model.weight_bytes() == 3 * (attention + mlp) + head
    assert model.weight_bytes(model.full_plan[:1]) == attention + mlp + head
    assert model.weight_bytes([(0, True, False), (1, False, True)]) == attention + mlp + head
