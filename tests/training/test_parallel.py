"""Parts of a batch add up to the batch, and processes that share them follow the curve of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from specdec.errors import UserError
from specdec.records import write_table
from specdec.training.__main__ import main
from specdec.training.distill import LOSSES
from specdec.training.objective import Term, mean
from specdec.training.parallel import Group, joined
from specdec.training.synthesise import SCHEMA
from specdec.training.trainer import Trainer
from tests.helpers import heads, small, tiny
from tests.training import test_eagle, test_layerskip

ROOT = Path(__file__).resolve().parents[2]


def test_a_mean_of_sums_is_taken_over_the_counts_of_all_parts():
    terms = [Term(torch.tensor(6.0), 3), Term(torch.tensor(4.0), 0, 0.5), Term(torch.tensor(1.0), 1, 2.0)]
    assert float(mean(terms)) == 2 + 2 + 2
    assert float(mean(terms, [6, 8, 4])) == 1 + 0.25 + 0.5


def objectives():
    used = heads.vocabulary_of(30)
    yield "eagle3", heads.module_of(heads.config_of(3, 30)), test_eagle.objective(3, used, acceptance=0.4), heads
    yield "eagle1", heads.module_of(heads.config_of(1)), test_eagle.objective(1), heads
    for loss in LOSSES:
        yield loss, small.module_of(), small.objective_of(used, loss=loss), small
    yield "layerskip", test_layerskip.module_of(), test_layerskip.objective_of(dropout=0.6), test_layerskip


@pytest.mark.parametrize("name", ["eagle3", "eagle1", *LOSSES, "layerskip"])
def test_the_sums_and_gradients_of_two_parts_are_those_of_the_whole_batch(name):
    """Noise included: a sample draws the same wherever it stands."""
    module, rule, kind = next((m, r, k) for n, m, r, k in objectives() if n == name)
    if name == "eagle1":
        rule.recipe = replace(rule.recipe, noise=0.3)
    target = heads.target_of(dtype=torch.float32)
    samples = [heads.written(target, i, 14 + 4 * i) for i in range(4)]
    corpus = kind.corpus_of(module.config, samples) if kind is heads else kind.corpus_of(samples)
    states = [corpus.states(i) for i in range(4)]

    def terms(chosen, silent=False):
        batch = rule.collate([states[i] for i in chosen])
        return rule.terms(module, batch.silent() if silent else batch, [100 + i for i in chosen])

    def summed(parts, counts):
        module.zero_grad()
        sum(mean(part, counts) for part in parts).backward()
        return torch.cat([p.grad.flatten() for p in module.parameters()])

    whole = terms(range(4))
    parts = [terms([0, 2]), terms([1, 3]), terms([0], silent=True)]
    counts = [int(term.count) for term in whole]
    assert counts == [sum(int(part[i].count) for part in parts) for i in range(len(whole))] and all(counts)
    for i, term in enumerate(whole):
        torch.testing.assert_close(sum(part[i].total for part in parts), term.total, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(summed(parts, counts), summed([whole], counts), rtol=1e-3, atol=1e-5)


def test_every_sample_of_a_batch_belongs_to_one_process():
    groups = [Group(rank=rank, size=3) for rank in range(3)]
    for size in range(8):
        batch = list(range(size))
        assert sorted(i for group in groups for i in group.part(batch)) == batch
    assert [group.first for group in groups] == [True, False, False]


class TwoAsOne(Group):
    """The second of two processes, whose partner has nothing to add."""

    def sum(self, tensor):
        return tensor

    def sum_gradients(self, parameters):
        pass


def test_a_process_without_a_part_keeps_step_and_writes_nothing(tmp_path):
    """A batch of one conversation leaves the second of two processes with nothing."""
    target = heads.target_of(dtype=torch.float32)
    samples = [heads.written(target, i, 20) for i in range(2)]
    config = heads.config_of()
    corpus = heads.corpus_of(config, samples)
    trainer = Trainer(
        heads.module_of(config), test_eagle.objective(3), corpus, corpus, tmp_path / "none", TwoAsOne(rank=1, size=2)
    )
    before = {name: value.clone() for name, value in trainer.module.state_dict().items()}
    assert trainer._update([1]) == (0.0, 0)
    trainer.save()
    assert not list((tmp_path / "none").iterdir())
    for name, value in trainer.module.state_dict().items():
        assert torch.equal(value, before[name]), "no gradient, no step"


def test_a_device_that_is_not_there_is_said():
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(UserError, match='device "cuda" is not there'), joined("cuda"):
        pass


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[Path, Path]:
    """A tiny target's folder and text that it wrote."""
    folder = tmp_path_factory.mktemp("parallel")
    tiny.checkpoint(folder / "target", layers=4)
    target = heads.target_of(dtype=torch.float32)
    rows = []
    for index in range(41):  # one in 33 is held out
        sample = heads.written(target, index, 16 + index % 9)
        row = {"index": index, "ids": list(sample.ids), "loss_mask": list(sample.mask)}
        rows.append(row | {"source": "self", "seed": 0, "sampled": False, "dropped": None})
    write_table(folder / "text" / "part-00000.parquet", pa.Table.from_pylist(rows, schema=SCHEMA))
    return folder / "target", folder / "text"


def test_two_processes_follow_the_curve_of_one(written, tmp_path):
    """As a user starts them; batches of five, so that the parts differ in size."""
    target, text = written
    asked = ["--model", str(target), "--dtype", "float32", "--threads", "1", "--precision", "float32"]
    asked += ["--token-passes", "1500", "--evaluate-every", "200", "--batch", "5", "--warmup", "2"]
    asked += ["--vocabulary", "60", "--steps", "2", "--acceptance", "0.3"]
    assert main(["eagle3", str(text), str(tmp_path / "one"), *asked]) == 0
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, "-m", "specdec.training", "eagle3", str(text), str(tmp_path / "two"), *asked],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    one, two = (json.loads((tmp_path / name / "training.json").read_text()) for name in ("one", "two"))
    assert (one["processes"], two["processes"]) == (1, 2)
    assert len(one["history"]) == len(two["history"]) >= 7 and one["updates"] == two["updates"]
    for ours, theirs in zip(one["history"], two["history"], strict=True):
        assert ours["passes"] == theirs["passes"]
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
    losses = [row["loss"] for row in one["history"]]
    assert losses[-1] < 0.9 * losses[0], "this test wants a curve"
    log = pq.read_table(tmp_path / "two" / "training" / "log.parquet").to_pylist()
    assert log == two["history"]
