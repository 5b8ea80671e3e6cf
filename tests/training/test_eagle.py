"""Training-time test: who sees what, what is predicted, and that padding changes nothing."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from specdec.errors import UserError
from specdec.training.corpus import Sample, frequent_tokens, hold_out
from specdec.training.eagle import StepAttention, collate
from specdec.training.eagle_losses import Eagle1Loss, Eagle1Recipe, Eagle3Loss, Eagle3Recipe
from specdec.training.objective import Teacher, mean
from tests.helpers import heads, tiny

# Three positions, three steps.  A row is a query (step, position), a column a key; x where the query may look.
SEEN = """
        00 01 02   10 11 12   20 21 22
    00   x  .  .    .  .  .    .  .  .
    01   x  x  .    .  .  .    .  .  .
    02   x  x  x    .  .  .    .  .  .
    10   x  .  .    x  .  .    .  .  .
    11   x  x  .    .  x  .    .  .  .
    12   x  x  x    .  .  x    .  .  .
    20   x  .  .    x  .  .    x  .  .
    21   x  x  .    .  x  .    .  x  .
    22   x  x  x    .  .  x    .  .  x
"""


def test_attention_across_steps_is_the_masked_attention_written_down_above():
    rows = [line.split()[1:] for line in SEEN.strip().splitlines()[1:]]
    seen = torch.tensor([[mark == "x" for mark in row] for row in rows])
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 9, 4, 8, generator=generator, dtype=torch.float64)
    k, v = (torch.randn(2, 9, 2, 8, generator=generator, dtype=torch.float64) for _ in "kv")
    attention = StepAttention(3)
    ours = torch.cat([attention(0, *(x[:, 3 * i : 3 * i + 3] for x in (q, k, v))) for i in range(3)], dim=1)
    scores = torch.einsum("bthd,bshd->bhts", q, k.repeat_interleave(2, 2)) / math.sqrt(8)
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
    dense = torch.einsum("bhts,bshd->bthd", weights, v.repeat_interleave(2, 2))
    torch.testing.assert_close(ours, dense, rtol=0, atol=1e-6)  # the softmax is in float32


def test_rows_before_the_first_that_is_wanted_give_keys_and_values_alone():
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 3, 5, 4, 8, generator=generator)
    k, v = (torch.randn(2, 3, 5, 2, 8, generator=generator) for _ in "kv")
    whole, cut = StepAttention(5), StepAttention(5, first=2)
    for i in range(3):
        every = slice(2 if i else 0, None)
        expected = whole(0, q[:, i], k[:, i], v[:, i])[:, 2:]
        torch.testing.assert_close(cut(0, q[:, i, every], k[:, i, every], v[:, i, every]), expected, rtol=0, atol=1e-6)


SAMPLE = Sample(7, tuple(range(10, 22)), (False,) * 5 + (True,) * 7)


def states(prompt: int = 64, sample: Sample = SAMPLE, **changes):
    config = heads.config_of(**changes)
    return heads.corpus_of(config, [sample], prompt=prompt).states(0)


def test_a_state_meets_the_token_it_predicted_and_is_trained_on_the_one_behind_it():
    config, target = heads.config_of(), heads.target_of(dtype=torch.float32)
    whole = target.forward(SAMPLE.ids, target.new_cache(32), taps=(*config.taps, 4))
    batch, steps = collate([states()], 3), 3
    for t in range(batch.length):
        torch.testing.assert_close(batch.features[0, t], whole.features[t, : 3 * 32], rtol=0, atol=1e-5)
        for k in range(steps):
            if t + 2 + k < len(SAMPLE.ids):
                assert batch.tokens[0, t + k] == SAMPLE.ids[t + 1 + k]
                assert batch.tokens[0, t + k + 1] == SAMPLE.ids[t + 2 + k]
                torch.testing.assert_close(batch.last[0, t + k], whole.features[t + 1 + k, 96:], rtol=0, atol=1e-5)
                assert bool(batch.loss[0, t + k]) == SAMPLE.mask[t + 2 + k]
            else:
                assert not batch.loss[0, t + k], "nothing is known behind the end of the text"
    law = target.head(batch.last[0, : batch.length]).argmax(-1)
    assert law.tolist() == whole.logits[1 : 1 + batch.length].argmax(-1).tolist()


def test_the_teacher_recomputes_the_targets_law_from_the_law_ofthat_are_kept():
    target, used = heads.target_of(dtype=torch.float32), heads.vocabulary_of(40)
    logits = target.forward(SAMPLE.ids, target.new_cache(32)).logits[1:-1]
    teacher = Teacher(tiny.reference("llama", 4).state_dict()["lm_head.weight"], used, torch.float32)
    kept = states().last[1:]
    torch.testing.assert_close(teacher.log_law(kept), logits[:, used].log_softmax(-1), rtol=0, atol=1e-4)
    torch.testing.assert_close(teacher.mass(kept), logits.softmax(-1)[:, used].sum(-1), rtol=0, atol=1e-4)
    assert torch.equal(teacher.inverse[used], torch.arange(40)) and int((teacher.inverse >= 0).sum()) == 40


@pytest.mark.parametrize("prompt", [1, 2, 4, 64])
def test_a_prompt_is_cut_without_losing_an_answer_token_or_moving_a_state(prompt):
    cut, whole = states(prompt), states()
    shift = whole.length - cut.length
    assert shift == max(0, 4 - prompt)
    assert torch.equal(cut.ids, whole.ids[shift:]) and torch.equal(cut.features, whole.features[shift:])
    assert int(cut.mask[2:].sum()) == sum(SAMPLE.mask)


def test_what_a_corpus_holds_may_reach_autograd_and_owns_its_memory():
    held = states()
    for tensor in (held.features, held.last, held.ids, held.mask):
        assert not tensor.is_inference() and tensor.untyped_storage().nbytes() == tensor.nbytes


def objective(version: int, used=None, **changes):
    teacher = Teacher(tiny.reference("llama", 4).state_dict()["lm_head.weight"], used, torch.float32)
    if version == 3:
        return Eagle3Loss(Eagle3Recipe(1, precision="float32", **changes), teacher)
    return Eagle1Loss(Eagle1Recipe(1, precision="float32", noise=0.0, **changes), teacher)


def loss_of(version: int, items, **changes) -> torch.Tensor:
    size = changes.pop("size", None)
    used = heads.vocabulary_of(size) if size else None
    module = heads.module_of(heads.config_of(version, size if version == 3 else None))
    rule = objective(version, used, **changes)
    value = mean(rule.terms(module, collate(items, rule.steps), range(len(items))))
    value.backward()
    return torch.cat([value.detach()[None], *(p.grad.flatten() for p in module.parameters())])


@pytest.mark.parametrize(("version", "changes"), [(1, {}), (3, {}), (3, {"acceptance": 0.5}), (3, {"size": 30})])
def test_padding_changes_neither_a_samples_loss_nor_its_gradient(version, changes):
    """Beside a longer sample without answers, the short one is padded and alone in the loss."""
    short = states(version=version)
    longer = Sample(8, tuple(tiny.prompt_of(30)), (False,) * 29 + (True,))
    silent = states(version=version, sample=longer)
    silent.mask[:] = False
    alone, padded = loss_of(version, [short], **changes), loss_of(version, [short, silent], **changes)
    torch.testing.assert_close(padded, alone, rtol=1e-4, atol=1e-6)


def test_the_loss_of_each_step_is_the_cross_entropy_written_out_and_later_steps_weigh_less():
    used = heads.vocabulary_of(40)
    module, rule = heads.module_of(heads.config_of(3, 40)), objective(3, used)
    batch = collate([states()], 4)
    head = tiny.reference("llama", 4).state_dict()["lm_head.weight"]
    expected = []
    for k, hidden in enumerate(module.unroll(batch, 4)):
        terms = []
        for t in range(batch.first, batch.length):
            at = t + 2 + k
            if at < len(SAMPLE.ids) and SAMPLE.mask[at] and SAMPLE.ids[at] in used.tolist():
                p = F.linear(batch.last[0, t + k], head[used]).softmax(-1)
                terms.append(-(p * module.layer().logits(hidden[0, t - batch.first]).log_softmax(-1)).sum())
        expected.append(torch.stack(terms).mean())
    terms = rule.terms(module, batch, [0])
    found = torch.stack([term.total / term.count for term in terms])
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=1e-6)
    total = sum(0.8**k * loss for k, loss in enumerate(expected))
    torch.testing.assert_close(mean(terms), total, rtol=1e-5, atol=1e-6)


def test_the_acceptance_loss_counts_the_mass_outside_the_draft_vocabulary_as_lost():
    used = heads.vocabulary_of(40)
    module, rule = heads.module_of(heads.config_of(3, 40)), objective(3, used, acceptance=1.0, steps=1)
    batch = collate([states()], 1)
    head = tiny.reference("llama", 4).state_dict()["lm_head.weight"]
    hidden = next(module.unroll(batch, 1))
    terms = []
    for t in range(batch.first, batch.length):
        if SAMPLE.mask[t + 2] and SAMPLE.ids[t + 2] in used.tolist():
            p = F.linear(batch.last[0, t], head).softmax(-1)
            q = torch.zeros(len(p)).index_copy(0, used, module.layer().logits(hidden[0, t - batch.first]).softmax(-1))
            terms.append(1 - torch.minimum(p, q).sum())
    torch.testing.assert_close(mean(rule.terms(module, batch, [0])), torch.stack(terms).mean(), rtol=1e-5, atol=1e-6)


def test_a_sampled_vocabulary_holds_what_is_asked_and_likely_and_the_loss_is_the_cross_entropy_on_it():
    used = heads.vocabulary_of(60)
    module, rule = heads.module_of(heads.config_of(3, 60)), objective(3, used, steps=1, sampled=55)
    batch = collate([states()], 1)
    head = tiny.reference("llama", 4).state_dict()["lm_head.weight"]
    law_of, own = batch.last[batch.loss], rule.teacher.inverse[batch.tokens[:, 1:][batch.loss]]
    looked = rule.teacher.looked_at(law_of, own, 55, 0)
    law = F.linear(batch.last[batch.loss], head[used])
    asked = {used.tolist().index(token) for token in SAMPLE.ids[5:] if token in used.tolist()}
    assert len(looked) == 55 and asked <= set(looked.tolist())
    assert set(law.topk(8, dim=-1).indices.flatten().tolist()) <= set(looked.tolist())
    assert torch.equal(looked, rule.teacher.looked_at(law_of, own, 55, 0))
    assert not torch.equal(looked, rule.teacher.looked_at(law_of, own, 55, 1))
    hidden, terms = next(module.unroll(batch, 1))[0], []
    for t in range(batch.first, batch.length):
        if SAMPLE.mask[t + 2] and SAMPLE.ids[t + 2] in used.tolist():
            p = F.linear(batch.last[0, t], head[used][looked]).softmax(-1)
            terms.append(-(p * module.layer().logits(hidden[t - batch.first])[looked].log_softmax(-1)).sum())
    torch.testing.assert_close(mean(rule.terms(module, batch, [0])), torch.stack(terms).mean(), rtol=1e-5, atol=1e-6)
    assert rule.teacher.looked_at(law_of, own, 60, 0) is None, "all of them"


def test_the_loss_of_eagle_1_is_the_regression_and_a_tenth_of_the_cross_entropy():
    module, rule = heads.module_of(heads.config_of(1)), objective(1)
    batch = collate([states(version=1)], 1)
    head = tiny.reference("llama", 4).state_dict()["lm_head.weight"]
    hidden = next(module.unroll(batch, 1))[0]
    wanted = batch.loss[0, : batch.length]
    guess, truth = hidden[wanted[batch.first :]], batch.last[0, : batch.length][wanted]
    p, log_q = F.linear(truth, head).softmax(-1), F.linear(guess, head).log_softmax(-1)
    expected = F.smooth_l1_loss(guess, truth) - 0.1 * (p * log_q).sum(-1).mean()
    torch.testing.assert_close(mean(rule.terms(module, batch, [0])), expected, rtol=1e-5, atol=1e-5)
    assert not module.target_head.requires_grad and "target_head" not in module.state_dict()


def test_noise_moves_the_law_ofthat_are_fed_and_nothing_else():
    module, batch = heads.module_of(heads.config_of(1)), collate([states(version=1)], 1)
    teacher = objective(1).teacher
    noisy = Eagle1Loss(Eagle1Recipe(1, noise=0.5), teacher)
    first, again, other = (float(mean(noisy.terms(module, batch, [seed])).detach()) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("variant", ["llama", "qwen3", "llama-tied"])
def test_a_module_begins_with_the_targets_last_layer_and_head(variant):
    from specdec.training.eagle import EagleModule

    weights, used = dict(tiny.reference(variant, 4).state_dict()), heads.vocabulary_of(30)
    origin = heads.target_of(variant).config
    bare = EagleModule(heads.config_of(3, 30, variant, own_head=False), weights["model.embed_tokens.weight"])
    bare.start_from(origin, weights, used)
    assert "head" not in bare.products
    for config, words in ((heads.config_of(3, 30, variant), used), (heads.config_of(3, None, variant), None)):
        module = EagleModule(config, weights["model.embed_tokens.weight"])
        module.start_from(origin, weights, words)
        name = "model.embed_tokens.weight" if origin.tied else "lm_head.weight"
        assert torch.equal(module.products["head"].weight, weights[name][slice(None) if words is None else words])
        assert torch.equal(module.products["down"].weight, weights["model.layers.3.mlp.down_proj.weight"])
    EagleModule(heads.config_of(1, None, variant), weights["model.embed_tokens.weight"]).start_from(
        origin, weights, None
    )


def test_the_draft_vocabulary_is_the_most_frequent_answer_tokens_in_order():
    samples = [Sample(0, (9, 9, 9, 5, 5, 7, 3), (False,) * 3 + (True,) * 4)]
    assert frequent_tokens(samples, 1, 20).tolist() == [5]
    assert frequent_tokens(samples, 3, 20).tolist() == [3, 5, 7]
    assert frequent_tokens(samples, 5, 20).tolist() == [0, 1, 3, 5, 7], "the lowest other ids fill up"
    assert frequent_tokens(samples, 20, 20).tolist() == list(range(20))
    for size in (0, 21):
        with pytest.raises(UserError, match=f"draft vocabulary {size}: must be between 1 and the target's 20"):
            frequent_tokens(samples, size, 20)


def test_held_out_text_is_answered_greedily_and_never_trained_on():
    samples = [Sample(i, (1, 2, 3), (False, False, True), sampled=i % 2 == 0) for i in range(100)]
    train, held = hold_out(samples, 0.04)
    assert [s.index for s in held] == [25, 75] and not {s.index for s in train} & {0, 25, 50, 75}
    with pytest.raises(UserError, match="are too few"):
        hold_out(samples[1:10])
