"""A training does what decoding needs, goes on where it was stopped, and stops where nothing can be learned."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
import torch

from specdec.decode import Request, speculative
from specdec.drafters import Chain, Eagle
from specdec.errors import UserError
from specdec.growth import build_rule
from specdec.models.eagle_files import read_head, write_head
from specdec.records import write_table
from specdec.training.corpus import HeadCorpus, Sample, read_text
from specdec.training.eagle_losses import Eagle1Loss, Eagle1Recipe, Eagle3Loss, Eagle3Recipe
from specdec.training.objective import Teacher
from specdec.training.synthesise import SCHEMA
from specdec.training.trainer import Trainer, simulate
from tests.helpers import heads, tiny

RECIPE = Eagle3Recipe(600, batch=2, warmup=2, evaluate_every=200, precision="float32", save_seconds=0.0, steps=2)


def trainer_of(folder, recipe=RECIPE, samples=None, size=None, version=3, seed=0, **changes):
    target = heads.target_of(dtype=torch.float32)
    samples = samples or [heads.written(target, i, 24 + 3 * i) for i in range(5)]
    used = heads.vocabulary_of(size) if size else None
    config = heads.config_of(version, size, **changes)
    module = heads.module_of(config, seed=seed)
    teacher = Teacher(tiny.reference("llama", 4).state_dict()["lm_head.weight"], used, torch.float32)
    objective = Eagle3Loss(recipe, teacher) if version == 3 else Eagle1Loss(recipe, teacher)
    corpus = heads.corpus_of(config, samples)
    return Trainer(module, objective, corpus, heads.corpus_of(config, samples[:2]), folder)


@pytest.mark.parametrize("version", [3, 1])
def test_a_head_that_knows_a_text_by_heart_has_every_draft_of_it_accepted(tmp_path, version):
    """Any difference between training and decoding shows here."""
    target = heads.target_of(dtype=torch.float32)
    sample = heads.written(target, 1, 32)
    shared = {"batch": 1, "warmup": 5, "evaluate_every": 10**9, "precision": "float32", "peak_rate": 5e-3}
    recipe = Eagle3Recipe(26 * 250, **shared) if version == 3 else Eagle1Recipe(26 * 900, noise=0.0, **shared)
    trainer = trainer_of(tmp_path, recipe, [sample, replace(sample, index=2)], version=version)
    trainer.corpus.samples.pop()
    trainer.run()
    assert trainer.progress.history[-1]["acceptance_at_1"] == 1.0
    config, weights = trainer.module.config, trainer.module.weights()
    depth = 4 if version == 3 else 1
    write_head(tmp_path / "head", config, weights, None, tiny.VOCABULARY)
    for draft in (Eagle(config, weights, target), Eagle.load(tmp_path / "head", target)):
        request = Request(sample.ids[:6], 26)
        record = speculative(target, Chain(draft, build_rule("fixed", depth)), request, k=depth).run()
        assert tuple(record.output_ids) == sample.ids[6:]
        assert all(r.accepted == r.drafted > 0 for r in record.rounds[:-1])


class Killed(Exception):
    pass


@pytest.mark.parametrize("version", [3, 1])
@pytest.mark.parametrize("after", [1, 4, 5])
def test_an_interrupted_training_equals_one_that_was_not(tmp_path, version, after):
    recipe = RECIPE if version == 3 else Eagle1Recipe(
        600, batch=2, warmup=2, evaluate_every=200, precision="float32", save_seconds=0.0
    )  # fmt: skip
    whole = trainer_of(tmp_path / "whole", recipe, version=version)
    whole.run()

    def kill(progress):
        if progress.updates % after == 0:
            raise Killed

    for _ in range(100):
        stopped = trainer_of(tmp_path / "stopped", recipe, version=version, seed=9)  # another start: it is read anew
        if not stopped.progress.updates:
            heads.fill(stopped.module, heads.weights_of(stopped.module.config))
        try:
            stopped.run(kill)
            break
        except Killed:
            continue
    for name, value in whole.module.state_dict().items():
        assert torch.equal(stopped.module.state_dict()[name], value), name
    kept = [{k: v for k, v in row.items() if k != "seconds"} for row in whole.progress.history]
    assert [{k: v for k, v in row.items() if k != "seconds"} for row in stopped.progress.history] == kept
    assert len(kept) == 3 and stopped.progress.passes == whole.progress.passes >= 600


def test_a_corpus_larger_than_its_memory_trains_to_the_same_weights(tmp_path):
    roomy, tight = trainer_of(tmp_path / "a"), trainer_of(tmp_path / "b")
    tight.corpus.budget = roomy.corpus.states(0).bytes + 1
    roomy.run()
    tight.run()
    assert len(tight.corpus._held) == 1 and len(roomy.corpus._held) == 5
    for name, value in roomy.module.state_dict().items():
        assert torch.equal(tight.module.state_dict()[name], value)


@pytest.mark.parametrize(
    ("changes", "key"),
    [({"recipe": replace(RECIPE, peak_rate=1e-4)}, "peak_rate"), ({"size": 30}, "head"), ({"taps": (0, 1, 2)}, "head")],
)
def test_a_folder_of_another_training_is_refused_by_what_differs(tmp_path, changes, key):
    trainer_of(tmp_path).save()
    with pytest.raises(UserError, match=f"that training has {key} = "):
        trainer_of(tmp_path, **changes)
    trainer_of(tmp_path, replace(RECIPE, evaluate_every=7))


def test_another_text_or_another_map_of_the_same_size_is_refused(tmp_path):
    target = heads.target_of(dtype=torch.float32)
    trainer_of(tmp_path / "text").save()
    with pytest.raises(UserError, match="that training has text = "):
        trainer_of(tmp_path / "text", samples=[heads.written(target, i, 20) for i in range(5)])
    first = trainer_of(tmp_path / "map", size=30)
    first.save()
    first.objective.teacher = Teacher(torch.randn(97, 32), heads.vocabulary_of(30, seed=4), torch.float32)
    with pytest.raises(UserError, match="that training has draft_vocabulary = "):
        first._resume()


def test_a_text_without_answer_tokens_is_refused_by_its_conversation(tmp_path):
    row = {"ids": [1, 2, 3, 4], "source": "self", "seed": 0, "sampled": False, "dropped": None}
    rows = [row | {"index": 0, "loss_mask": [False, False, True, True]}, row | {"index": 41, "loss_mask": [False] * 4}]
    write_table(tmp_path / "part-00000.parquet", pa.Table.from_pylist(rows, schema=SCHEMA))
    with pytest.raises(UserError, match="conversation 41 has no answer token"):
        read_text(tmp_path)
    with pytest.raises(UserError, match="no training text there"):
        read_text(tmp_path / "none")


def test_a_sample_whose_mask_is_all_zero_stops_the_training_by_name(tmp_path):
    trainer = trainer_of(tmp_path)
    trainer.corpus.states(3).mask[:] = False
    with pytest.raises(UserError, match="conversation 3 has no answer token"):
        trainer.run()


def test_a_state_that_is_not_a_number_stops_the_training_by_name(tmp_path):
    target = heads.target_of(dtype=torch.float32)
    broken = tiny.convert(tiny.reference("llama", 4), torch.float32)
    broken._embedding = broken._embedding.clone()
    broken._embedding[90] = float("nan")
    samples = [Sample(i, tuple(tiny.prompt_of(8, i, 80)), (False,) * 4 + (True,) * 4) for i in range(3)]
    samples.append(Sample(77, (5, 90, 6, 7), (False, False, True, True)))
    corpus = HeadCorpus(broken, samples, (1, 2, 3), 64, 10**6)
    corpus.states(0)
    with pytest.raises(UserError, match="conversation 77: the target's states are not finite"):
        corpus.states(3)
    trainer = trainer_of(tmp_path, samples=[heads.written(target, i, 20) for i in (4, 5)])
    trainer.corpus.states(1).last[:] = float("nan")
    with pytest.raises(UserError, match=r"the loss is nan at update 0, conversations \[(4, 5|5, 4)\]"):
        trainer.run()


@pytest.mark.parametrize("size", [None, 60])
def test_a_head_that_is_written_and_read_again_is_as_good(tmp_path, size):
    trainer = trainer_of(tmp_path, replace(RECIPE, precision="bfloat16"), size=size)
    trainer.run()
    measured, _ = trainer.finish()
    used = heads.vocabulary_of(size) if size else None
    write_head(tmp_path / "head", trainer.module.config, trainer.module.weights(), used, tiny.VOCABULARY)
    config, weights, again = read_head(tmp_path / "head", heads.target_of().config)
    assert config == trainer.module.config and (again is None if used is None else torch.equal(again, used))
    module = heads.module_of(config, seed=8)
    heads.fill(module, weights)
    assert simulate(module, trainer.objective, trainer.held_out) == measured


def test_simulated_tokens_per_round_are_those_of_decoding_from_every_position(tmp_path):
    target = heads.target_of(dtype=torch.float32)
    sample = heads.written(target, 2, 40)
    trainer = trainer_of(
        tmp_path, replace(RECIPE, token_passes=2500, peak_rate=3e-3), [sample, heads.written(target, 1)]
    )
    trainer.run()
    module, corpus = trainer.module, heads.corpus_of(trainer.module.config, [sample])
    found = simulate(module, trainer.objective, corpus)
    draft = Chain(Eagle(module.config, module.weights(), target), build_rule("fixed", 4))
    counts = []
    for at in range(6, 37):  # text up to `at` is committed; four answer tokens follow
        request = Request(sample.ids[:at], 5)
        first = next(iter(speculative(target, draft, request, k=4)))
        counts.append(first.accepted)
    assert found["tokens_per_round"] == pytest.approx(1 + sum(counts) / len(counts))
    assert 0 < sum(counts) < 4 * len(counts), "this test wants a head that is sometimes wrong"


def test_answers_too_short_to_measure_on_are_said(tmp_path):
    target = heads.target_of(dtype=torch.float32)
    trainer = trainer_of(tmp_path, samples=[heads.written(target, i, 9) for i in range(3)])
    with pytest.raises(UserError, match="no held-out answer is longer than 4 tokens"):
        simulate(trainer.module, trainer.objective, trainer.held_out)
