"""A target that learns to speak early: layers dropped as asked, losses as written down, rounds as decoding has them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from specdec.decode import Request, autoregressive, speculative
from specdec.drafters import Chain, LayerSkip
from specdec.errors import UserError
from specdec.growth import build_rule
from specdec.models.config import ModelConfig
from specdec.training.corpus import AnswerCorpus, Sample
from specdec.training.layerskip import (
    ExitModel,
    LayerSkipLoss,
    LayerSkipRecipe,
    TextCorpus,
    check_exits,
    dropout_rates,
    moved,
)
from specdec.training.objective import Teacher, mean
from specdec.training.trainer import Trainer, simulate
from tests.helpers import heads, tiny
from tests.helpers.small import cut_of

LAYERS, EXIT = 4, 2
RECIPE = LayerSkipRecipe(
    2000, batch=2, warmup=5, evaluate_every=10**9, precision="float32", peak_rate=3e-3, exit=EXIT, dropout=0.1
)


def module_of(variant: str = "llama") -> ExitModel:
    """The tiny target of four layers."""
    origin = tiny.reference(variant, LAYERS)
    state = {name: value.clone() for name, value in origin.state_dict().items()}
    module = ExitModel(ModelConfig.from_dict(origin.config.to_dict(), "test"), state["model.embed_tokens.weight"])
    module.start_from(state, range(LAYERS))
    return module


def objective_of(variant: str = "llama", **changes) -> LayerSkipLoss:
    head = tiny.reference(variant, LAYERS).state_dict()["lm_head.weight"]
    return LayerSkipLoss(replace(RECIPE, **changes), Teacher(head, None, torch.float32))


def corpus_of(samples) -> TextCorpus:
    return TextCorpus(heads.target_of(dtype=torch.float32), samples, 2**30)


def trainer_of(folder, samples, **changes) -> Trainer:
    return Trainer(module_of(), objective_of(**changes), corpus_of(samples), corpus_of(samples[:1]), folder)


def texts(count: int, length: int = 24) -> list[Sample]:
    target = heads.target_of(dtype=torch.float32)
    return [heads.written(target, i, length + 3 * i) for i in range(count)]


# -- the module -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["llama", "qwen3"])
def test_every_exit_is_the_one_that_decoding_takes(variant):
    module, target = module_of(variant), heads.target_of(variant, torch.float32)
    head, text = tiny.reference(variant, LAYERS).state_dict()["lm_head.weight"], tiny.prompt_of(20)
    with torch.no_grad():
        found = module.states(torch.tensor([text]), [set(range(1, LAYERS + 1))])[0]
    for layers in range(1, LAYERS + 1):
        logits = target.forward(text, target.new_cache(32), plan=target.full_plan[:layers]).logits
        torch.testing.assert_close(F.linear(found[layers], head), logits, rtol=0, atol=2e-4)


def test_a_text_goes_through_the_layers_that_it_keeps():
    """Two texts of a batch, each without layers of its own; padding is never looked at."""
    module, target = module_of(), heads.target_of(dtype=torch.float32)
    head, pair = (
        tiny.reference("llama", LAYERS).state_dict()["lm_head.weight"],
        [tiny.prompt_of(12), tiny.prompt_of(9, 1)],
    )
    kept = torch.tensor([[True, False, True, True], [True, False, False, True]])
    padded = torch.tensor([pair[0], pair[1] + [0] * 3])
    with torch.no_grad():
        found = module.states(padded, [{LAYERS}, {3, LAYERS}], kept)
    for text, of, row in zip(pair, found, kept, strict=True):
        for layers, states in of.items():
            plan = tuple(step for step, keep in zip(target.full_plan[:layers], row, strict=False) if keep)
            logits = target.forward(text, target.new_cache(32), plan=plan).logits
            torch.testing.assert_close(F.linear(states[: len(text)], head), logits, rtol=0, atol=2e-4)


def test_later_layers_are_dropped_more_often():
    """p_max (exp(l ln 2 / (L - 1)) - 1), as published."""
    expected = [0.2 * (math.exp(layer * math.log(2) / 29) - 1) for layer in range(30)]
    assert dropout_rates(30, 0.2).tolist() == pytest.approx(expected, rel=1e-4)
    assert dropout_rates(30, 0.2)[-1] == pytest.approx(0.2)
    rule, seen = objective_of(dropout=0.4), []
    module, batch = module_of(), objective_of().collate([corpus_of(texts(1)).states(0)])
    states = module.states
    module.states = lambda tokens, exits, kept: seen.append(~kept[0]) or states(tokens, exits, kept)
    for seed in range(400):
        rule.terms(module, batch, [seed])
    shares = torch.stack(seen).float().mean(0)
    assert shares[0] == 0 and ((shares - dropout_rates(LAYERS, 0.4)).abs() < 0.08).all() and shares[-1] > 0.3


@pytest.mark.parametrize(("changes", "said"), [({"exit": 4}, "exit = 4: "), ({"taught": (1, 0)}, "taught = 1, 0: ")])
def test_an_exit_that_leaves_nothing_out_is_refused(changes, said):
    with pytest.raises(UserError, match=said + "must be between 1 and 3 layers"):
        check_exits(replace(RECIPE, **changes), LAYERS)
    check_exits(replace(RECIPE, exit=3, taught=(1, 3)), LAYERS)


@pytest.mark.parametrize(("key", "value"), [("dropout", 1.0), ("dropout", -0.1), ("weight", 0.0)])
def test_values_that_cannot_be_are_refused(key, value):
    with pytest.raises(UserError, match=f"{key} = {value}"):
        replace(RECIPE, **{key: value})


# -- the loss ---------------------------------------------------------------------------------------------------------


def test_the_loss_is_the_one_written_out():
    """(s early + last) / (1 + s), each the mean surprise at the answers' tokens."""
    sample, target = texts(1)[0], heads.target_of()
    logits = [
        target.forward(sample.ids[:-1], target.new_cache(64), plan=target.full_plan[:layers]).logits
        for layers in (3, LAYERS)
    ]
    wanted = torch.tensor(sample.mask[1:])
    early, last = (F.cross_entropy(rows[wanted], torch.tensor(sample.ids[1:])[wanted]) for rows in logits)
    rule = objective_of(dropout=0.0, taught=(3,), weight=0.5)
    found = mean(rule.terms(module_of(), rule.collate([corpus_of([sample]).states(0)]), [5]))
    assert float(found.detach()) == pytest.approx(float(0.5 * early + last) / 1.5, rel=1e-4)


def test_every_taught_exit_is_drawn_and_no_other():
    module, batch = module_of(), objective_of().collate([corpus_of(texts(1)).states(0)])
    states, drawn = module.states, set()
    module.states = lambda tokens, exits, kept: drawn.update(*exits) or states(tokens, exits, kept)
    for taught, expected in (((), {1, 2, 3, 4}), ((1, 3), {1, 3, 4})):
        drawn.clear()
        for seed in range(40):
            objective_of(taught=taught).terms(module, batch, [seed])
        assert drawn == expected


# -- training and decoding --------------------------------------------------------------------------------------------


def decoded(module: ExitModel, prompt, count: int, k: int = 4):
    """The rounds of the exit's draft with the module as its target."""
    target = cut_of(module)
    return speculative(target, Chain(LayerSkip(target, EXIT), build_rule("fixed", k)), Request(prompt, count), k=k)


def test_an_exit_learns_its_text_and_decoding_says_what_the_adapted_target_says(tmp_path):
    samples = texts(2)
    trainer = trainer_of(tmp_path, samples, token_passes=4000, taught=(EXIT,))
    untrained = simulate(trainer.module, trainer.objective, trainer.held_out)
    losses = []
    trainer.run(lambda progress: losses.append(progress.loss))
    steps = [after - before for before, after in zip([0.0, *losses], losses, strict=False) if after > before]
    assert steps[-2] < 0.2 * steps[0]
    learned = simulate(trainer.module, trainer.objective, trainer.held_out)
    assert learned["tokens_per_round"] == 5 > untrained["tokens_per_round"] + 1
    target, prompt = cut_of(trainer.module), samples[0].ids[:6]
    record = decoded(trainer.module, prompt, 18).run()
    assert tuple(record.output_ids) == samples[0].ids[6:] and all(r.accepted == 4 for r in record.rounds[:-1])
    for seed in range(3):  # elsewhere the draft errs, and the text is the adapted target's all the same
        other = tiny.prompt_of(5, seed=20 + seed)
        record = decoded(trainer.module, other, 30).run()
        assert record.output_ids == autoregressive(target, Request(other, 30)).run().output_ids
        assert sum(r.accepted for r in record.rounds) < sum(r.drafted for r in record.rounds)


def test_simulated_tokens_per_round_are_those_of_decoding_where_the_target_writes_the_text(tmp_path):
    trainer = trainer_of(tmp_path, texts(3), token_passes=300)
    trainer.run()
    sample = heads.written(cut_of(trainer.module), 7, 40)
    found = simulate(trainer.module, trainer.objective, corpus_of([sample]))
    counts = [next(iter(decoded(trainer.module, sample.ids[:at], 5))).accepted for at in range(6, 37)]
    assert found["tokens_per_round"] == pytest.approx(1 + sum(counts) / len(counts))
    assert 0 < sum(counts) < 4 * len(counts), "this test wants a draft that is sometimes wrong"


def test_how_far_it_moved_is_nothing_at_first_and_then_what_the_laws_say():
    samples, module, rule = texts(3), module_of(), objective_of()
    target = heads.target_of(dtype=torch.float32)
    held = AnswerCorpus(target, samples, 2**30, torch.float32)
    assert moved(module, rule, held)["agreement"] == 1 and abs(moved(module, rule, held)["divergence"]) < 1e-5
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.layers.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    adapted, same, divergences = cut_of(module), [], []
    for sample in samples:
        p, q = (
            m.forward(sample.ids[:-1], m.new_cache(64)).logits.softmax(-1)[torch.tensor(sample.mask[1:])]
            for m in (target, adapted)
        )
        same += (p.argmax(-1) == q.argmax(-1)).tolist()
        divergences += (p * (p / q).log()).sum(-1).tolist()
    found = moved(module, rule, held, batch=2)
    assert found["agreement"] == pytest.approx(sum(same) / len(same)) and 0 < sum(same) < len(same)
    assert found["divergence"] == pytest.approx(sum(divergences) / len(divergences), rel=1e-3)


class Killed(Exception):
    pass


def test_an_interrupted_training_equals_one_that_was_not(tmp_path):
    """Exits and dropped layers are drawn by seed and update: what was drawn before a stop is not drawn again."""
    samples, changes = texts(5), {"token_passes": 300, "evaluate_every": 100, "save_seconds": 0.0, "dropout": 0.5}
    whole = trainer_of(tmp_path / "whole", samples, **changes)
    whole.run()

    def kill(progress):
        if progress.updates % 3 == 0:
            raise Killed

    for _ in range(100):
        stopped = trainer_of(tmp_path / "stopped", samples, **changes)
        try:
            stopped.run(kill)
            break
        except Killed:
            continue
    for name, value in whole.module.state_dict().items():
        assert torch.equal(stopped.module.state_dict()[name], value), name
    with pytest.raises(UserError, match="that training has exit = 2, not 1"):
        trainer_of(tmp_path / "stopped", samples, **changes, exit=1)
