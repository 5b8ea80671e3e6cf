"""A grown head copies what stood behind the text's last two tokens, and a training leaves it so."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from specdec.errors import UserError
from specdec.models.eagle import EagleConfig
from specdec.training.copying.build import codes_of_all, grown_head, module_of, slow_frequencies
from specdec.training.copying.circuits import OFFSETS, _looking, grow, places, shape
from specdec.training.copying.guard import Guard, circuit_masks
from specdec.training.copying.matching import learn
from specdec.training.copying.matching import places as right_places
from specdec.training.copying.settle import scale, settle
from specdec.training.copying.stream import Sizes, survey
from specdec.training.corpus import States
from specdec.training.eagle import EagleModule, collate
from specdec.training.objective import Recipe
from specdec.training.optimisers import Optimisers
from tests.helpers import heads, tiny

V, H = 200, 128


@pytest.mark.parametrize("head_dim", [16, 32, 64])
def test_a_looking_head_sees_one_offset_alone_however_long_the_text(head_dim):
    config = SimpleNamespace(head_dim=head_dim, rope_theta=1e5, rope_scaling=None)
    from specdec.models import rotary

    key, queries = _looking(config, torch.ones(1))
    turns = rotary.table(config, 700, torch.float32, torch.device("cpu"))
    keys = rotary.rotate(key.T.expand(700, 1, head_dim), turns)[:, 0]
    for offset, query in enumerate(queries):
        asked = rotary.rotate(query.T.expand(700, 1, head_dim), turns)[:, 0]
        scores = asked @ keys.T / head_dim**0.5
        weights = scores.masked_fill(torch.ones(700, 700).triu(1).bool(), -1e9).softmax(-1)
        assert float(weights.diagonal(-offset)[OFFSETS:].min()) > 0.95, f"offset {offset}"


def test_places_are_those_behind_the_same_two_tokens_where_the_same_followed():
    ids = torch.randint(4, (40,), generator=torch.Generator().manual_seed(0))
    found, text = right_places(ids), ids.tolist()
    assert found.any()
    for i in range(len(ids) - 3):
        for p in range(len(ids) - 3):
            same = p < i and text[p : p + 2] == text[i + 1 : i + 3] and text[p + 2] == text[i + 3]
            assert bool(found[i, p]) == same


def text_of(length: int, seed: int) -> torch.Tensor:
    """Random tokens, once and then again."""
    once = torch.randint(V, (length,), generator=torch.Generator().manual_seed(seed))
    return torch.cat([once, once])


def states_of(ids: torch.Tensor, taps: int, seed: int) -> States:
    """Like a target's: a number is large everywhere, one at the first position; no row that decides reads either."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(len(ids) - 2, taps, H, generator=generator)
    features[:, :, 0] += 30
    features[0, :, 1] += 300
    features = features.flatten(1)
    return States(ids, features, torch.zeros(len(ids) - 1, H), torch.ones(len(ids), dtype=torch.bool))


@pytest.fixture(scope="module")
def made():
    """A random head that has learned nothing, and what it grows into."""
    torch.manual_seed(0)
    config = EagleConfig(3, H, 4, 2, 32, 256, 1e-5, 1e5, 1024, H, (0, 1, 2), V, own_head=False)
    head = torch.randn(V, H)
    head[:, :2] = 0
    embedding = head + 3 * torch.randn(H)  # tokens of a trained model have much in common
    weights = {name: 0.03 * torch.randn(size) for name, size in config.shapes().items()}
    weights["fc"] = torch.cat([torch.eye(H)] * 3, 1) / 3
    weights |= {name: torch.ones(H) for name in config.norms()}
    module = module_of(config, weights, embedding, head, None)
    stream = survey(module, [states_of(text_of(60, i), 3, i) for i in range(20)], torch.arange(V), torch.ones(V))
    sizes = Sizes(H, 32)
    texts = [tuple(text_of(40, 100 + i).tolist()) for i in range(60)]
    match = learn(texts, codes_of_all(module, stream), sizes.matched, slow_frequencies(config), updates=150)
    grown, tensors = grow(config, weights, stream, match, vote=6)
    return SimpleNamespace(
        config=config, grown=grown, embedding=embedding, head=head, weights=weights, tensors=tensors, stream=stream
    )


def hits(module: EagleModule, depth: int = 4) -> list[float]:
    """How often each of `depth` self-fed steps is right in the second half of texts it has not seen."""
    found = torch.zeros(depth)
    with torch.no_grad():
        for seed in range(5):
            ids = text_of(60, 500 + seed)
            batch = collate([states_of(ids, 3, 500 + seed)], depth)
            for k, hidden in enumerate(module.unroll(batch, depth)):
                guess = F.linear(module.layer().ready(hidden[0]), module.head.float()).argmax(-1)
                where = torch.arange(64, 110)
                found[k] += (guess[where - batch.first] == ids[where + 2 + k]).float().mean() / 5
    return found.tolist()


def test_a_grown_head_copies_and_goes_on_copying_where_the_head_before_knew_nothing(made):
    before = module_of(made.config, made.weights, made.embedding, made.head, None)
    after = module_of(made.grown, made.tensors, made.embedding, made.head, None)
    assert max(hits(before)) < 0.1
    assert min(hits(after)) > 0.5


def test_what_learned_before_neither_reads_nor_writes_what_is_reserved(made):
    taken = torch.cat([made.stream.codes, made.stream.votes], 1)
    torch.testing.assert_close(taken.T @ taken, torch.eye(taken.shape[1]), rtol=0, atol=1e-4)
    w, masks = made.tensors, circuit_masks(made.grown)
    for name in ("fc", "o", "down"):
        free = w[name] * ~masks[name] if name in masks else w[name]
        assert (taken.T @ free).abs().max() < 1e-4, name
    reading = (w["qkv"] * ~masks["qkv"])[:, H:]
    assert (reading @ taken).abs().max() < 1e-4 and (w["gate_up"] @ taken).abs().max() < 1e-4


@pytest.mark.parametrize(("heads_", "kv"), [(4, 2), (6, 2), (3, 3), (9, 3)])
def test_the_grown_shape_has_three_more_heads_at_least_whatever_the_groups(heads_, kv):
    config = EagleConfig(3, H, heads_, kv, 32, 256, 1e-5, 1e5, 1024, H, (0, 1, 2), V)
    grown = shape(config)
    assert grown.layers == 2 and grown.heads >= heads_ + 3 and grown.heads * kv == heads_ * grown.kv_heads
    assert {name: mask.shape for name, mask in circuit_masks(grown).items()} == {
        name: torch.Size(grown.shapes()[name]) for name in circuit_masks(grown)
    }
    assert places(grown).neurons == Sizes(H, 32).reserved


def test_a_training_leaves_the_circuits_and_their_directions_alone(made):
    module = module_of(made.grown, made.tensors, made.embedding, made.head, None)
    masks, before = circuit_masks(made.grown), {n: p.weight.detach().clone() for n, p in module.products.items()}
    Guard(made.stream.codes, made.stream.votes).watch(module, "muon")
    optimisers = Optimisers(module, Recipe(1, optimiser="muon", matrix_rate=0.02, peak_rate=0.01))
    batch = collate([states_of(text_of(30, 7), 3, 7)], 2)
    for _ in range(3):
        optimisers.begin(1.0)
        sum(hidden.pow(2).mean() + hidden.abs().mean() for hidden in module.unroll(batch, 2)).backward()
        optimisers.step()
    for name, product in module.products.items():
        mask = masks.get(name, torch.zeros(product.weight.shape, dtype=torch.bool))
        assert torch.equal(product.weight[mask], before[name][mask]), name
        assert not torch.equal(product.weight, before[name]), name
    taken = torch.cat([made.stream.codes, made.stream.votes], 1)
    for name in ("fc", "down"):
        assert (taken.T @ module.products[name].weight).abs().max() < 1e-4
    with pytest.raises(UserError, match="trained by muon alone"):
        Guard(made.stream.codes, made.stream.votes).watch(module, "adamw")


def test_settling_takes_what_the_measure_likes_and_leaves_the_rest(made):
    module = module_of(made.grown, made.tensors, made.embedding, made.head, None)
    row = made.grown.heads * 32 + 30
    sink = module.products["qkv_1"].weight[row].detach().clone()
    vote = module.products["o_1"].weight[:, :16].detach().clone()

    def measure() -> float:
        ratio = float(module.products["qkv_1"].weight[row].detach().norm() / sink.norm())
        return -abs(ratio - 0.64)

    assert settle(module, measure) == {"sink": pytest.approx(0.64), "vote": 1.0}
    torch.testing.assert_close(module.products["qkv_1"].weight[row].detach(), 0.64 * sink)
    torch.testing.assert_close(module.products["o_1"].weight[:, :16].detach(), vote)
    scale(module, "vote", 2.0)
    torch.testing.assert_close(module.products["o_1"].weight[:, :16].detach(), 2 * vote)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"version": 1}, "only an EAGLE-3 head of one layer"),
        ({"layers": 2}, "only an EAGLE-3 head of one layer"),
        ({"intermediate_size": 4}, "no room for"),
    ],
)
def test_a_head_without_room_is_refused_with_the_reason(tmp_path, changes, text):
    from specdec.models.eagle_files import write_head

    version = changes.pop("version", 3)
    config = heads.config_of(version, None, **changes)
    write_head(tmp_path, config, heads.weights_of(config), None, tiny.VOCABULARY)
    target = heads.target_of(dtype=torch.float32)
    with pytest.raises(UserError, match=text):
        grown_head(tmp_path, tmp_path / "out", target, target.config, torch.zeros(1), torch.zeros(1), [])
