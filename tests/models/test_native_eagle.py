"""An EAGLE head in the engine guesses what the PyTorch head guesses, to the bit alike for every width and tree."""

import pytest
import torch

from specdec.models.draft_head import EagleHead, eagle_head
from specdec.models.kvcache import KVCache
from specdec.models.native import obstacle
from specdec.models.native.eagle import NativeHead
from specdec.models.quantised import Quantised, plain, quantised
from specdec.tree import Draft
from tests.helpers import heads, tiny

pytestmark = pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))

HEADS = {
    "3": (3, None, {}),
    "3 cut": (3, 30, {}),
    "3 normed residual": (3, None, {"norm_before_residual": True}),
    "3 wide, own embedding": (3, 41, {"hidden_size": 48, "head_dim": 12, "intermediate_size": 70}),
    "3 of three layers": (3, 30, {"layers": 3}),
    "1": (1, None, {}),
}


def made(kind: str):
    """The head's configuration, its weights and a target in bf16."""
    version, size, changes = HEADS[kind]
    config = heads.config_of(version, size, **changes)
    weights = heads.weights_of(config)
    generator = torch.Generator().manual_seed(1)
    if config.hidden_size != config.target_hidden_size:
        weights["embedding"] = torch.randn(tiny.VOCABULARY, config.hidden_size, generator=generator)
    if version == 1:
        weights["fc.bias"] = torch.randn(config.hidden_size, generator=generator)
    return config, weights, heads.target_of(dtype=torch.bfloat16)


def features_of(config, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(count, len(config.taps) * config.target_hidden_size, generator=generator)


@pytest.mark.parametrize("kind", HEADS)
def test_the_head_is_the_reference_up_to_rounding(kind):
    config, weights, target = made(kind)
    # the same numbers in both: what bf16 cannot hold is not the engine's mistake
    exact_weights = {name: weight.bfloat16().float() for name, weight in weights.items()}
    exact = EagleHead(config, exact_weights, heads.target_of(dtype=torch.float32))
    native, count = eagle_head(config, weights, target), 80
    assert isinstance(native, NativeHead)
    text, features = tiny.prompt_of(count), features_of(config, count)
    caches = [KVCache(config, 128, dtype) for dtype in (torch.bfloat16, torch.float32)]
    for begin, end in ((0, 70), (70, 77), (77, 80)):
        ours, theirs = (
            head.step(text[begin:end], cache, features=features[begin:end], scored=end - begin)
            for head, cache in zip((native, exact), caches, strict=True)
        )
        for a, b in zip(ours, theirs, strict=True):
            assert (a - b).abs().mean() < 0.02 * b.std()
    states = theirs[0]
    again = [
        head.step([7, 8, 9], cache, states=states, scored=2)
        for head, cache in zip((native, exact), caches, strict=True)
    ]
    assert again[0][1].shape == again[1][1].shape and len(again[0][1]) == 2
    assert (again[0][1] - again[1][1]).abs().mean() < 0.02 * again[1][1].std()


@pytest.mark.parametrize("kind", HEADS)
def test_states_and_logits_are_the_same_bits_for_every_width(kind):
    config, weights, target = made(kind)
    head, text, features = eagle_head(config, weights, target), tiny.prompt_of(90), features_of(config, 90)
    cache = KVCache(config, 128, torch.bfloat16)
    states, logits = head.step(text, cache, features=features, scored=90)
    before = torch.get_num_threads()
    try:
        for width in [*range(1, 34), 65]:
            torch.set_num_threads(1 + width % 3)
            cache.truncate(20)
            part = slice(20, 20 + width)
            some, few = head.step(text[part], cache, features=features[part], scored=1)
            assert torch.equal(some, states[part]) and torch.equal(few, logits[part][-1:]), f"width {width}"
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", HEADS)
def test_a_node_gets_what_its_path_gets(kind):
    config, weights, target = made(kind)
    head, features = eagle_head(config, weights, target), features_of(config, 20)
    cache, parents = KVCache(config, 128, torch.bfloat16), (-1, -1, 0, 1, 0, 3)
    tokens = tiny.prompt_of(len(parents), seed=5)
    states = torch.randn(len(parents), config.hidden_size, generator=torch.Generator().manual_seed(3))
    head.step(tiny.prompt_of(20), cache, features=features)
    tree = Draft(tuple(tokens), parents)
    positions = [19 + depth for depth in tree.depths]
    _, together = head.step(tokens, cache, states=states, positions=positions, mask=tree.mask()[1:, 1:], scored=6)
    for node in range(len(parents)):
        path, at = [], node
        while at >= 0:
            path, at = [at, *path], parents[at]
        cache.truncate(20)
        for one in path:
            _, alone = head.step([tokens[one]], cache, states=states[one : one + 1], scored=1)
        assert torch.equal(together[node], alone[0]), f"node {node}"


def test_a_target_without_the_engine_gets_the_reference():
    config = heads.config_of(3)
    assert isinstance(eagle_head(config, heads.weights_of(config), heads.target_of(dtype=torch.float32)), EagleHead)


@pytest.mark.parametrize("format", ["q8_0", "q4_1"])
@pytest.mark.parametrize("version", [3, 1])
def test_a_head_held_in_fewer_bits_is_the_head_of_what_they_stand_for(version, format):
    wide = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 96}
    target = tiny.transformer("llama", layers=4, dtype=torch.bfloat16, **wide)
    config = heads.config_of(version, None, **wide, target_hidden_size=64)
    weights = heads.weights_of(config)
    held = {name: quantised(w.bfloat16(), format) if w.dim() == 2 else w for name, w in weights.items()}
    stands = {name: plain(w) for name, w in held.items()}
    assert any(isinstance(w, Quantised) for w in held.values())
    text, features = tiny.prompt_of(40), features_of(config, 40)
    found = [
        eagle_head(config, w, target).step(text, KVCache(config, 64, torch.bfloat16), features=features, scored=3)
        for w in (held, stands)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
