"""Layer skipping shares the target's cache and never disturbs it; what its first layers computed is used again."""

import pytest
import torch

from specdec.decode import Request, autoregressive, speculative
from specdec.drafters import Chain, LayerSkip
from specdec.errors import UserError
from specdec.growth import build_grower, build_rule
from specdec.models.linear import can_pack
from specdec.sampling import Sampling
from tests.helpers import tiny

LAYERS, BF16 = 4, torch.bfloat16
packed = pytest.mark.skipif(not can_pack(torch.bfloat16), reason="this processor has no packed bf16 products")

EXITS = {f"exit {layers}": {"layers": layers} for layers in range(1, LAYERS + 1)}
SETS = {
    "attention": {"skip_attention": (1, 2)},
    "mlp": {"skip_mlp": (0, 3)},
    "both": {"skip_attention": (0, 2), "skip_mlp": (2, 3)},
    "a whole layer": {"skip_attention": (1,), "skip_mlp": (1,)},
    "the last layers, by their blocks": {"skip_attention": (2, 3), "skip_mlp": (2, 3)},
    "every block": {"skip_attention": range(LAYERS), "skip_mlp": range(LAYERS)},
    "an exit and blocks": {"layers": 3, "skip_attention": (1,)},
}


def drafts_of(drafter):
    """The list that the drafter's proposals are added to as they are made."""
    found, plain = [], drafter.propose
    drafter.propose = lambda budget: found.append(plain(budget)) or found[-1]
    return found


def assert_same_rows(cache, other, length):
    for name in ("keys", "values"):
        ours, theirs = (getattr(side, name)[:, :, :length] for side in (cache, other))
        assert torch.equal(ours, theirs), f"{name} differ in {int((ours != theirs).sum())} elements"


@packed
@pytest.mark.parametrize("shape, temperature", [("chain", 0.0), ("chain", 1.0), ("eagle2", 0.0)])
@pytest.mark.parametrize("options", [*EXITS.values(), *SETS.values()], ids=[*EXITS, *SETS])
def test_the_cache_after_every_round_is_that_of_the_target_alone(options, shape, temperature):
    """Bit for bit, in every layer: as after the same passes without a draft, and as after the text token by token."""
    target = tiny.transformer("qwen3", layers=LAYERS, dtype=BF16)
    prompt = tiny.prompt_of(120)  # the rounds cross a block of the cache
    drafter = build_grower(shape, LayerSkip(target, **options), k=3)
    drafts = drafts_of(drafter)
    generation = speculative(target, drafter, Request(prompt, 20, Sampling(temperature), seed=5), k=3, nodes=6)
    passes, single = (target.new_cache(generation.cache.capacity) for _ in range(2))
    text, fed = list(prompt), 0
    for cache in (passes, single):
        target.forward(prompt[:-1], cache, logits=False)
    for record in generation:
        draft, base = drafts.pop() if drafts else None, passes.length
        if draft is None or not draft.tokens:
            target.forward(text[-1:], passes)
        else:
            where = {} if draft.is_chain else {"positions": draft.positions(base), "mask": draft.mask()}
            target.forward([text[-1], *draft.tokens], passes, **where)
        rows = [0, *(node + 1 for node in record.path)][: len(record.tokens)]
        passes.keep(base, rows)
        text += record.tokens
        for token in text[single.length : -1]:
            target.forward([token], single)
        length = generation.cache.length
        assert length == passes.length == single.length == len(text) - 1
        assert_same_rows(generation.cache, passes, length)
        assert_same_rows(generation.cache, single, length)
        fed += record.drafted
    assert fed


@packed
@pytest.mark.parametrize("variant", ["llama", "qwen3", "qwen2"])
@pytest.mark.parametrize("layers", range(1, LAYERS + 1))
def test_a_pass_that_goes_on_from_early_layers_is_the_whole_pass_bit_for_bit(layers, variant):
    target = tiny.transformer(variant, layers=LAYERS, dtype=BF16)
    prompt, tokens = tiny.prompt_of(11), tiny.prompt_of(6, seed=2)
    whole = target.new_cache(64)
    target.forward(prompt, whole, logits=False)
    expected = target.forward(tokens, whole).logits
    for known in range(1, len(tokens) + 1):
        cache = target.new_cache(64)
        target.forward(prompt, cache, logits=False)
        view = cache.view()
        steps = [target.forward([token], view, plan=target.full_plan[:layers]).hidden for token in tokens[:known]]
        view.rollback()
        resumed = target.resume(tokens, cache, layers, torch.cat(steps))
        assert torch.equal(resumed.logits, expected), f"{known} rows known"
        assert cache.length == whole.length
        assert_same_rows(cache, whole, whole.length)


@pytest.mark.parametrize("layers", range(1, LAYERS + 1))
def test_early_work_is_used_by_chains_of_whole_layers_alone(layers, monkeypatch):
    """In float64, where passes of two widths agree but for rounding, the text stays the baseline's."""
    target, resumed = tiny.transformer("llama", layers=LAYERS), []
    plain = target.resume
    monkeypatch.setattr(target, "resume", lambda *rest: resumed.append(1) or plain(*rest))
    request = Request(tiny.prompt_of(7), 24)
    answer = autoregressive(target, request).run().output_ids
    used = {}
    for name, shape, options in [
        ("exit", "chain", {"layers": layers}),
        ("said by blocks", "chain", {f"skip_{kind}": range(layers, LAYERS) for kind in ("attention", "mlp")}),
        ("blocks", "chain", {"layers": layers, "skip_mlp": (0,)}),
        ("tree", "eagle2", {"layers": layers}),
    ]:
        if layers == LAYERS and name == "said by blocks":
            continue  # nothing would be left out
        resumed.clear()
        record = speculative(
            target, build_grower(shape, LayerSkip(target, **options), k=3), request, k=3, nodes=6
        ).run()
        assert record.output_ids == answer
        used[name] = (len(resumed), sum(r.drafted > 0 for r in record.rounds))
    if layers < LAYERS:
        assert used["said by blocks"] == used["exit"]
    assert used["exit"][0] == used["exit"][1] > 0 and used["blocks"][0] == used["tree"][0] == 0


def test_a_rule_that_refuses_the_first_token_leaves_the_roots_early_state():
    """Nothing is drafted, yet the root has been through the first layers: it goes on from there."""
    target = tiny.transformer("llama", layers=LAYERS)
    drafter = Chain(LayerSkip(target, 2), build_rule("fixed", 3))
    drafter.rule.before = lambda depth, logits: False
    drafts, request = drafts_of(drafter), Request(tiny.prompt_of(7), 8)
    record = speculative(target, drafter, request, k=3).run()
    assert record.output_ids == autoregressive(target, request).run().output_ids
    assert all(len(draft) == 0 and len(draft.early.hidden) == 1 for draft in drafts) and drafts


@pytest.mark.parametrize("options", SETS.values(), ids=SETS)
def test_a_draft_without_some_blocks_guesses_like_the_target_without_them(options):
    """Committed text is read through the whole target's keys and values, drafted tokens through the draft's own."""
    target, prompt = tiny.transformer("llama", layers=LAYERS), tiny.prompt_of(6)
    model = LayerSkip(target, **options)
    for layer, attention, mlp in model.plan:
        assert layer < options.get("layers", LAYERS) and (attention or mlp)
        assert attention == (layer not in options.get("skip_attention", ()))
        assert mlp == (layer not in options.get("skip_mlp", ()))
    drafter = Chain(model, build_rule("fixed", 3))
    drafts, text = drafts_of(drafter), list(prompt)
    for record in speculative(target, drafter, Request(prompt, 12), k=3):
        if record.drafted:
            cache, guess = target.new_cache(64), []
            target.forward(text[:-1], cache, logits=False)
            row = target.forward(text[-1:], cache, plan=model.plan).logits
            for _ in range(record.drafted):
                guess.append(int(row[-1].argmax()))
                row = target.forward(guess[-1:], cache, plan=model.plan).logits
            assert list(drafts[-1].tokens) == guess
        text += record.tokens


def test_what_is_left_out_must_be_said_and_must_be_there():
    target = tiny.transformer("llama", layers=3)
    with pytest.raises(UserError, match="layers, skip_attention or skip_mlp must say what is left out"):
        LayerSkip(target)
    for key in ("skip_attention", "skip_mlp"):
        for layer in (3, -1, True, 1.0, "1"):
            with pytest.raises(UserError, match=f"{key} names layer {layer}: must be an integer between 0 and 2"):
                LayerSkip(target, **{key: [layer]})
