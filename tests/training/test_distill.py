"""A small language model that learns: the forward that decodes, losses as written down, a folder that others load."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from specdec.decode import Request, speculative
from specdec.drafters import Chain, LanguageModel
from specdec.errors import UserError
from specdec.growth import build_rule
from specdec.models import load_model
from specdec.models.loading import read_weights
from specdec.training.assemble import assemble, cut_config, write_draft
from specdec.training.corpus import Sample
from specdec.training.distill import LOSSES, DistillRecipe, Laws
from specdec.training.objective import Teacher, in_parts, mean
from specdec.training.small import check_layers
from specdec.training.trainer import Trainer, simulate
from tests.helpers import heads, tiny
from tests.helpers.small import corpus_of, cut_of, module_of, objective_of

VARIANTS = ["llama", "mistral", "qwen2", "qwen3", "llama-biases", "llama3-rope", "qwen3-biases", "llama-ungrouped"]
SAMPLE = Sample(7, tuple(range(10, 22)), (False,) * 5 + (True,) * 7)


# -- the module -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_and_decoding_run_the_same_forward(variant):
    module, texts = module_of(variant), [tiny.prompt_of(n, seed=n) for n in (30, 11)]
    padded = torch.zeros(2, 30, dtype=torch.long)
    for i, text in enumerate(texts):
        padded[i, : len(text)] = torch.tensor(text)
    with torch.no_grad():
        hidden = module(padded)
    decoding, head = cut_of(module, variant), tiny.reference(variant, 4).state_dict()["lm_head.weight"]
    for i, text in enumerate(texts):
        logits = decoding.forward(text, decoding.new_cache(32)).logits
        torch.testing.assert_close(F.linear(hidden[i, : len(text)], head), logits, rtol=0, atol=2e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_its_tensors_are_the_targets_under_their_names(variant):
    ours, theirs = module_of(variant, (1, 2)).weights(), tiny.reference(variant, 4).state_dict()
    assert torch.equal(ours["model.norm.weight"], theirs["model.norm.weight"])
    for i, layer in enumerate((1, 2)):
        names = [name for name in theirs if name.startswith(f"model.layers.{layer}.")]
        assert names
        for name in names:
            assert torch.equal(ours.pop(name.replace(f"layers.{layer}.", f"layers.{i}.")), theirs[name]), name
    assert list(ours) == ["model.norm.weight"]


@pytest.mark.parametrize("layers", [(), (1, 0), (0, 0), (0, 4), (-1, 2)])
def test_layers_that_cannot_be_cut_out_are_refused_with_the_range(layers):
    with pytest.raises(UserError, match=r"layers = \[.*\]: must be ascending numbers between 0 and 3"):
        check_layers(layers, 4)


# -- the losses -------------------------------------------------------------------------------------------------------


def written_out(name: str, p, q, inside, label) -> torch.Tensor:
    """The loss at one position; p over the whole vocabulary, q over the draft vocabulary `inside`."""
    narrow = p[inside] / p[inside].sum()
    alpha = torch.minimum(p[inside], q).sum()
    forward = sum(a * math.log(a / b) for a, b in zip(narrow.tolist(), q.tolist(), strict=True))
    weight = math.exp(-3 * float(alpha))
    return {
        "forward_kl": forward,
        "reverse_kl": sum(b * math.log(b / a) for a, b in zip(narrow.tolist(), q.tolist(), strict=True)),
        "total_variation": float(1 - alpha),
        "one_hot": -math.log(float(q[inside.tolist().index(label)])),
        "acceptance": weight * forward + (1 - weight) * float(1 - alpha),
    }[name]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("size", [None, 40])
def test_each_loss_is_the_one_written_out(name, size):
    used = None if size is None else heads.vocabulary_of(size)
    inside = torch.arange(tiny.VOCABULARY) if used is None else used
    module, rule = module_of(), objective_of(used, loss=name)
    batch = rule.collate([corpus_of([SAMPLE]).states(0)])
    target, small = heads.target_of(), cut_of(module, dtype=torch.float64)
    p = target.forward(SAMPLE.ids, target.new_cache(32)).logits.softmax(-1)
    q = small.forward(SAMPLE.ids, small.new_cache(32)).logits[:, inside].softmax(-1)
    expected = [
        written_out(name, p[t], q[t], inside, SAMPLE.ids[t + 1])
        for t in range(len(SAMPLE.ids) - 1)
        if SAMPLE.mask[t + 1] and SAMPLE.ids[t + 1] in inside.tolist()
    ]
    assert len(expected) == 7 if size is None else 0 < len(expected) < 7
    found = mean(rule.terms(module, batch, [0]))
    assert float(found.detach()) == pytest.approx(sum(expected) / len(expected), rel=1e-4, abs=1e-5)


def test_a_draft_that_is_the_target_loses_nothing_but_the_tokens_surprise():
    module = module_of(layers=(0, 1, 2, 3))
    for name in LOSSES:
        rule = objective_of(loss=name)
        value = float(mean(rule.terms(module, rule.collate([corpus_of([SAMPLE]).states(0)]), [0])).detach())
        assert value > 0.1 if name == "one_hot" else abs(value) < 1e-4


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_in_parts_are_those_of_the_whole(name):
    module, rule = module_of(), objective_of(loss=name)
    batch = rule.collate([corpus_of([SAMPLE]).states(0)])

    def gradient(rows: int):
        module.zero_grad()
        import specdec.training.distill as where

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(where, "in_parts", lambda states, part: in_parts(states, part, rows))
            mean(rule.terms(module, batch, [0])).backward()
        return torch.cat([p.grad.flatten() for p in module.parameters()])

    whole = gradient(100)
    assert float(whole.norm()) > 0
    torch.testing.assert_close(gradient(2), whole, rtol=1e-4, atol=1e-6)
    module.zero_grad()
    hidden = module(batch.tokens[:, :-1])[batch.loss]
    in_parts(hidden, lambda states, where: (states**2).sum(), 3).backward()
    parts = torch.cat([p.grad.flatten() for p in module.parameters()])
    module.zero_grad()
    (module(batch.tokens[:, :-1])[batch.loss] ** 2).sum().backward()
    plain = torch.cat([p.grad.flatten() for p in module.parameters()])
    torch.testing.assert_close(parts, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["forward_kl", "reverse_kl", "one_hot"])
def test_a_sampled_vocabulary_gives_the_loss_on_the_tokens_looked_at(name):
    used = heads.vocabulary_of(60)
    module, rule = module_of(), objective_of(used, loss=name, sampled=40)
    batch = rule.collate([corpus_of([SAMPLE]).states(0)])
    label = rule.teacher.inverse[batch.tokens[:, 1:][batch.loss]]
    inside = label >= 0
    looked = rule.teacher.looked_at(batch.last[inside], label[inside], 40, 3)
    rows = rule.teacher.rows[looked]
    log_q, log_p = (
        F.linear(x, rows).log_softmax(-1)
        for x in (module(batch.tokens[:, :-1])[batch.loss][inside], batch.last[inside])
    )
    expected = {
        "forward_kl": (log_p.exp() * (log_p - log_q)).sum(),
        "reverse_kl": (log_q.exp() * (log_q - log_p)).sum(),
        "one_hot": -sum(row[looked.tolist().index(int(x))] for row, x in zip(log_q, label[inside], strict=True)),
    }
    term = rule.terms(module, batch, [3])[0]
    assert len(looked) == 40 and term.count == int(inside.sum()) > 0
    torch.testing.assert_close(term.total, expected[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["total_variation", "acceptance"])
def test_a_loss_of_the_whole_law_refuses_to_look_at_a_part(name):
    with pytest.raises(UserError, match=rf"sampled = 40: must be 0, since the loss {name} needs"):
        DistillRecipe(token_passes=1, loss=name, sampled=40)


def test_the_weight_between_divergence_and_acceptance_is_no_way_to_learn():
    """It follows alpha, but no gradient flows through it: a draft must not gain by being weighed otherwise."""
    generator, head = torch.Generator().manual_seed(0), torch.randn(20, 8)
    teacher, states = Teacher(head, None, torch.float32), torch.randn(3, 8, generator=generator)
    logits = torch.randn(3, 20, generator=generator)

    def gradient(rule):
        q = logits.clone().requires_grad_()
        rule(Laws(q.log_softmax(-1), torch.zeros(3, dtype=torch.long), teacher, states)).sum().backward()
        return q.grad

    alpha = 1 - LOSSES["total_variation"](Laws(logits.log_softmax(-1), None, teacher, states))
    weight = torch.exp(-3 * alpha)[:, None]
    expected = weight * gradient(LOSSES["forward_kl"]) + (1 - weight) * gradient(LOSSES["total_variation"])
    torch.testing.assert_close(gradient(LOSSES["acceptance"]), expected, rtol=1e-5, atol=1e-6)


def test_padding_changes_neither_a_samples_loss_nor_its_gradient():
    module, rule = module_of(), objective_of()
    longer = Sample(8, tuple(tiny.prompt_of(30)), (False,) * 29 + (True,))
    states = [corpus_of([sample]).states(0) for sample in (SAMPLE, longer)]

    def terms(items):
        module.zero_grad()
        term = rule.terms(module, rule.collate(items), [0])[0]
        term.total.backward()
        return torch.cat([term.total.detach()[None], *(p.grad.flatten() for p in module.parameters())])

    torch.testing.assert_close(terms(states), terms(states[:1]) + terms(states[1:]), rtol=1e-4, atol=1e-4)


def test_only_answers_are_learned_from_and_the_rest_is_read():
    held = corpus_of([SAMPLE])
    states, rule = held.states(0), objective_of()
    batch = rule.collate([states])
    assert batch.loss.sum() == 7 and len(batch.last) == 7 and batch.tokens.tolist() == [list(SAMPLE.ids)]
    assert held.needed == states.bytes and not states.last.is_inference()
    target = heads.target_of(dtype=torch.float32)
    whole = target.forward(SAMPLE.ids, target.new_cache(32), taps=(4,)).features
    torch.testing.assert_close(batch.last, whole[4:11], rtol=0, atol=1e-5)


# -- training and decoding --------------------------------------------------------------------------------------------


def trainer_of(folder, samples, recipe: DistillRecipe, used=None, variant: str = "llama") -> Trainer:
    rule = objective_of(used, variant, **{k: getattr(recipe, k) for k in recipe.__dataclass_fields__})
    return Trainer(module_of(variant), rule, corpus_of(samples, variant), corpus_of(samples[:1], variant), folder)


RECIPE = DistillRecipe(26 * 120, batch=1, warmup=5, evaluate_every=10**9, precision="float32", peak_rate=3e-3)


@pytest.mark.parametrize("variant", ["llama", "qwen3"])
def test_a_draft_that_knows_a_text_by_heart_has_every_draft_of_it_accepted(tmp_path, variant):
    """Through its folder, assembled and loaded: any difference between training and decoding shows here."""
    tiny.checkpoint(tmp_path / "target", variant, layers=4)
    target = heads.target_of(variant, torch.float32)
    sample = heads.written(target, 1, 32)
    trainer = trainer_of(tmp_path / "training", [sample], replace(RECIPE, loss="one_hot"), variant=variant)
    trainer.run()
    assert trainer.progress.history[-1]["acceptance_at_1"] == 1.0
    raw = cut_config(json.loads((tmp_path / "target" / "config.json").read_text()), 2)
    write_draft(tmp_path / "draft", raw, trainer.module.weights())
    assemble(tmp_path / "draft", tmp_path / "target", tmp_path / "whole")
    small = load_model(tmp_path / "whole", dtype="float32").model
    record = speculative(
        target, Chain(LanguageModel(small), build_rule("fixed", 4)), Request(sample.ids[:6], 26), k=4
    ).run()
    assert tuple(record.output_ids) == sample.ids[6:]
    assert all(r.accepted == r.drafted > 0 for r in record.rounds[:-1])


def test_simulated_tokens_per_round_are_those_of_decoding_from_every_position(tmp_path):
    target = heads.target_of(dtype=torch.float32)
    sample = heads.written(target, 2, 40)
    other = heads.written(target, 1)
    trainer = trainer_of(tmp_path, [sample, other], replace(RECIPE, token_passes=300))
    trainer.run()
    found = simulate(trainer.module, trainer.objective, corpus_of([sample]))
    draft = Chain(LanguageModel(cut_of(trainer.module)), build_rule("fixed", 4))
    counts = []
    for at in range(6, 37):  # text up to `at` is committed; four answer tokens follow
        first = next(iter(speculative(target, draft, Request(sample.ids[:at], 5), k=4)))
        counts.append(first.accepted)
    assert found["tokens_per_round"] == pytest.approx(1 + sum(counts) / len(counts))
    assert 0 < sum(counts) < 4 * len(counts), "this test wants a draft that is sometimes wrong"


class Killed(Exception):
    pass


def test_an_interrupted_training_equals_one_that_was_not(tmp_path):
    target = heads.target_of(dtype=torch.float32)
    samples = [heads.written(target, i, 20 + 3 * i) for i in range(5)]
    recipe = replace(RECIPE, token_passes=300, batch=2, evaluate_every=100, save_seconds=0.0)
    whole = trainer_of(tmp_path / "whole", samples, recipe)
    whole.run()

    def kill(progress):
        if progress.updates % 3 == 0:
            raise Killed

    for _ in range(100):
        stopped = trainer_of(tmp_path / "stopped", samples, recipe)
        try:
            stopped.run(kill)
            break
        except Killed:
            continue
    for name, value in whole.module.state_dict().items():
        assert torch.equal(stopped.module.state_dict()[name], value), name
    with pytest.raises(UserError, match="that training has loss = forward_kl, not one_hot"):
        trainer_of(tmp_path / "stopped", samples, replace(recipe, loss="one_hot"))


def test_a_sample_whose_mask_is_all_zero_and_a_state_that_is_not_a_number_stop_the_training_by_name(tmp_path):
    target = heads.target_of(dtype=torch.float32)
    samples = [heads.written(target, i, 20) for i in (4, 5)]
    trainer = trainer_of(tmp_path / "a", samples, RECIPE)
    trainer.corpus.states(1).loss[:] = False
    with pytest.raises(UserError, match="conversation 5 has no answer token"):
        trainer.run()
    trainer = trainer_of(tmp_path / "b", samples, replace(RECIPE, batch=2))
    trainer.corpus.states(1).last[:] = float("nan")
    with pytest.raises(UserError, match=r"the loss is nan at update 0, conversations \[(4, 5|5, 4)\]"):
        trainer.run()


def test_a_draft_that_is_written_and_read_again_is_as_good(tmp_path):
    target = heads.target_of(dtype=torch.float32)
    trainer = trainer_of(tmp_path / "training", [heads.written(target, i, 30) for i in range(3)], RECIPE)
    trainer.run()
    measured, _ = trainer.finish()
    tiny.checkpoint(tmp_path / "target", layers=4)
    write_draft(
        tmp_path / "draft", cut_config(tiny.reference("llama", 4).config.to_dict(), 2), trainer.module.weights()
    )
    assemble(tmp_path / "draft", tmp_path / "target", tmp_path / "whole")
    _, weights = read_weights(tmp_path / "whole")
    again = module_of()
    again.start_from(weights, (0, 1))
    assert simulate(again, trainer.objective, trainer.held_out) == measured
