"""From nothing to a head that decodes: the commands, on a tiny target, each stopped and started again."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

from specdec import cli
from specdec.models import load_model
from specdec.models.eagle_files import read_head
from specdec.training import collect, commands, train
from specdec.training.__main__ import main
from specdec.training.copying.build import grown_head
from specdec.training.copying.guard import Guard, circuit_masks
from specdec.training.corpus import answer_counts, frequent_tokens, hold_out, read_text
from specdec.training.distill import LOSSES
from tests.helpers import tiny

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = ROOT / "prompts" / "chat.jsonl"
SHORT = ["--rows", "8", "--max-user", "12", "--max-answer", "16", "--capacity", "120"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("target")
    tiny.checkpoint(folder, "llama", layers=4)
    # a random model would rarely write its end of text
    tiny.edit_json(folder / "generation_config.json", eos_token_id=[tiny.EOS, tiny.END, *range(20, 28)])
    return str(folder)


def flags(model: str) -> list[str]:
    return ["--model", model, "--dtype", "float32", "--threads", "1"]


@pytest.fixture(scope="module")
def text(model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    asked = ["synthesise", str(folder), *flags(model), *SHORT, "--answer-tokens", "1200", "--exclude", str(PROMPTS)]
    assert main([*asked, "--sampled-share", "0.1"]) == 0
    return folder


@pytest.mark.parametrize(
    ("method", "own"), [("eagle3", ["--vocabulary", "60", "--steps", "2", "--acceptance", "0.3"]), ("eagle1", [])]
)
def test_a_head_is_trained_written_with_its_record_and_decodes(model, text, tmp_path, method, own, capsys):
    out, rest = tmp_path / "head", ["--token-passes", "1500", "--evaluate-every", "600", "--batch", "4", *own]
    assert main([method, str(text), str(out), *flags(model), *rest]) == 0
    record = json.loads((out / "training.json").read_text())
    assert record["method"] == method and record["token_passes"] >= 1500 and record["recipe"]["seed"] == 0
    assert record["text"]["answer_tokens"] >= 1000 and record["text"]["settings"]["."]["sampled_share"] == 0.1
    assert record["text"]["conversations"] > 20 and record["text"]["sources"].keys() == {"self"}
    assert len(record["history"]) == 3 and record["history"][-1]["passes"] == record["token_passes"]
    assert record["held_out"]["tokens_per_round"] >= 1 and record["seconds"] > 0
    assert record["hardware"]["cores"] and "commit" in record["code"] and record["environment"]["torch"]
    assert str(tmp_path) not in json.dumps(record) and model not in json.dumps(record), "no path of this machine"
    assert main([method, str(text), str(out), *flags(model), *rest]) == 0, "finished: measured and written again"
    assert json.loads((out / "training.json").read_text())["history"] == record["history"]
    capsys.readouterr()
    answers = []
    for draft in ("none", f"eagle:{out}"):
        spoken = ["generate", "the cat", *flags(model), "--draft", draft, "-k", "1", "-n", "12"]
        assert cli.main(spoken) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]


def test_what_the_ablations_vary_is_asked_for_and_recorded(model, text, tmp_path):
    """One tap of the last layer instead of fusion, one step instead of training-time test, a start from nothing."""
    out, rest = tmp_path / "head", ["--token-passes", "300", "--evaluate-every", "100"]
    rest += ["--taps", "3", "--steps", "1", "--start", "random", "--decay", "0.5", "--vocabulary", "full"]
    assert main(["eagle3", str(text), str(out), *flags(model), *rest]) == 0
    record = json.loads((out / "training.json").read_text())
    recipe, head = record["recipe"], record["head"]
    assert (recipe["steps"], recipe["start"], recipe["decay"], head["trained_depth"]) == (1, "random", 0.5, 1)
    assert head["taps"] == [3] and head["draft_vocabulary"] == tiny.VOCABULARY
    config, weights, used = read_head(out, load_model(model).model.config)
    assert config.taps == (3,) and used is None and config.shapes()["fc"] == (32, 32)
    assert record["parameters"] == sum(value.numel() for value in weights.values())
    log = pq.read_table(out / "training" / "log.parquet").to_pylist()
    assert log == record["history"] and log[0].keys() >= {"loss", "tokens_per_round", "acceptance_at_1", "seconds"}
    assert cli.main(["generate", "the cat", *flags(model), "--draft", f"eagle:{out}", "-k", "2", "-n", "8"]) == 0


def test_a_head_goes_on_from_another_and_takes_the_targets_rows(model, text, tmp_path, capsys):
    rest = [*flags(model), "--evaluate-every", "100", "--vocabulary", "60"]
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    assert main(["eagle3", str(text), first, *rest, "--token-passes", "300"]) == 0
    more = ["--token-passes", "10", "--peak-rate", "0", "--matrix-rate", "0"]
    more += ["--start", first, "--head", "target", "--sampled", "40"]
    assert main(["eagle3", str(text), second, *rest, *more]) == 0
    target = load_model(model).model.config
    (_, before, _), (config, weights, _) = read_head(Path(first), target), read_head(Path(second), target)
    assert not config.own_head and before.keys() - weights.keys() == {"head"}
    assert all((weights[name] == before[name]).all() for name in weights), "nothing was learned at rate 0"
    record = json.loads(Path(second, "training.json").read_text())
    assert record["recipe"]["start"] == "first" and record["before"]["recipe"]["token_passes"] == 300
    assert cli.main(["generate", "the cat", *flags(model), "--draft", f"eagle:{second}", "-k", "2", "-n", "8"]) == 0
    capsys.readouterr()
    assert main(["eagle3", str(text), third, *rest, "--token-passes", "10", "--start", second]) == 1
    assert f"start = {second}: its head is none, but (60, 32) is to be trained" in capsys.readouterr().err
    assert main(["eagle3", str(text), third, *rest, "--token-passes", "10", "--start", "nowhere"]) == 1
    assert '"nowhere"' in (said := capsys.readouterr().err) and "last_layer" in said
    assert main(["eagle3", str(text), third, *rest, "--token-passes", "10", "--sampled", "9", "--acceptance", "1"]) == 1
    assert "sampled = 9" in capsys.readouterr().err


def test_texts_in_folders_of_one_are_one_text(model, text, tmp_path):
    for name, seed in (("a", "3"), ("b", "4")):
        asked = ["synthesise", str(tmp_path / name), *flags(model), *SHORT, "--answer-tokens", "600", "--seed", seed]
        assert (
            main([*asked, "--openers", "passages", "--opener-share", "1", "--max-user", "40", "--sampled-share", "0"])
            == 0
        )
    found = [len(read_text(tmp_path / name)) for name in ("a", "b")]
    assert len(read_text(tmp_path)) == sum(found) == len({sample.name for sample in read_text(tmp_path)})
    assert min(found) > 0
    assert main(["eagle1", str(tmp_path), str(tmp_path / "head"), *flags(model), "--token-passes", "10"]) == 0
    record = json.loads((tmp_path / "head" / "training.json").read_text())
    openers = {name: kept["openers"] for name, kept in record["text"]["settings"].items()}
    assert openers == {"a": "passages", "b": "passages"}


def test_a_start_from_the_last_layer_and_a_random_one_differ(model, text, tmp_path, monkeypatch):
    from specdec.training.eagle import EagleModule

    starts, begin = [], EagleModule.start_from
    monkeypatch.setattr(EagleModule, "start_from", lambda self, *rest: starts.append(1) or begin(self, *rest))
    for method in ("eagle3", "eagle1"):
        for start in ("last_layer", "random"):
            rest = [*flags(model), "--token-passes", "10", "--start", start]
            rest += ["--vocabulary", "60"] if method == "eagle3" else []
            assert main([method, str(text), str(tmp_path / method / start), *rest]) == 0
            assert json.loads((tmp_path / method / start / "training.json").read_text())["recipe"]["start"] == start
    assert len(starts) == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--taps", "1,9"], "taps = [1, 9]: each must be between 0 (embedding) and 4 (final norm)"),
        (["--steps", "0"], "steps = 0: must be 1 or more"),
        (["--vocabulary", "1000"], "draft vocabulary 1000: must be between 1 and the target's 97"),
    ],
)
def test_options_that_cannot_be_are_refused(model, text, tmp_path, wrong, said, capsys):
    asked = ["eagle3", str(text), str(tmp_path), *flags(model), "--token-passes", "10", "--vocabulary", "60"]
    assert main([*asked, *wrong]) == 1
    assert said in capsys.readouterr().err


def test_a_small_model_is_distilled_assembled_and_decodes(model, text, tmp_path, capsys):
    out, rest = tmp_path / "small", ["--token-passes", "1500", "--evaluate-every", "600", "--batch", "4"]
    rest += ["--layers", "0,1,3", "--loss", "acceptance", "--vocabulary", "60"]
    assert main(["distill", str(text), str(out), *flags(model), *rest]) == 0
    record = json.loads((out / "training.json").read_text())
    assert record["method"] == "distill" and record["recipe"]["layers"] == [0, 1, 3]
    assert record["recipe"]["loss"] == "acceptance" and record["model"]["loss_vocabulary"] == 60
    assert record["model"]["layers"] == 3 and record["text"]["answer_tokens"] >= 1000
    assert len(record["history"]) == 3 and str(tmp_path) not in json.dumps(record) and model not in json.dumps(record)
    assert main(["distill", str(text), str(out), *flags(model), *rest]) == 0, "finished: measured and written again"
    assert json.loads((out / "training.json").read_text())["history"] == record["history"]
    assert main(["distill", str(text), str(out), *flags(model), *rest, "--loss", "one_hot"]) == 1
    assert "that training has loss = acceptance, not one_hot" in capsys.readouterr().err
    whole = tmp_path / "whole"
    assert main(["assemble", str(out), str(whole), "--model", model]) == 0
    capsys.readouterr()
    answers = []
    for draft in ("none", str(whole)):
        assert cli.main(["generate", "the cat", *flags(model), "--draft", draft, "-k", "3", "-n", "12"]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]


def test_a_small_model_goes_on_from_another(model, text, tmp_path, capsys):
    rest = [*flags(model), "--layers", "0,3", "--vocabulary", "60"]
    first, second = (str(tmp_path / name) for name in ("first", "second"))
    assert main(["distill", str(text), first, *rest, "--token-passes", "300"]) == 0
    more = ["--token-passes", "10", "--peak-rate", "0", "--matrix-rate", "0", "--sampled", "40", "--start", first]
    assert main(["distill", str(text), second, *rest, *more]) == 0
    before, weights = (load_file(Path(folder, "model.safetensors")) for folder in (first, second))
    assert before.keys() == weights.keys()
    assert all((weights[name] == before[name]).all() for name in weights), "nothing was learned at rate 0"
    record = json.loads(Path(second, "training.json").read_text())
    assert record["recipe"]["start"] == "first" and record["before"]["recipe"]["token_passes"] == 300
    capsys.readouterr()
    third = ["distill", str(text), str(tmp_path / "third"), *rest, "--token-passes", "10"]
    assert main([*third, "--layers", "0,1,3", "--start", first]) == 1
    assert f"start = {first}: its model.layers.2.self_attn.q_proj.weight is none" in capsys.readouterr().err
    assert main([*third, "--start", "nowhere"]) == 1
    assert "start" in capsys.readouterr().err


@pytest.mark.parametrize("method", [["distill", "--layers", "0,3"], ["eagle3", "--vocabulary", "60", "--steps", "2"]])
def test_requests_are_learned_as_well_where_asked_for(model, text, tmp_path, method):
    records = []
    for learn in ("answers", "everything"):
        out = tmp_path / learn
        rest = ["--token-passes", "600", "--learn", learn]
        assert main([method[0], str(text), str(out), *flags(model), *method[1:], *rest]) == 0
        records.append(json.loads((out / "training.json").read_text()))
    train, held = hold_out(read_text(text))
    opening = next(i for i, ids in enumerate(zip(*(sample.ids for sample in train), strict=False)) if len({*ids}) > 1)
    assert [record["text"]["answer_tokens"] for record in records] == [sum(sum(s.mask) for s in train)] * 2
    assert records[0]["text"]["learned_tokens"] == records[0]["text"]["answer_tokens"]
    assert records[1]["text"]["learned_tokens"] == sum(len(s.ids) - opening for s in train)
    assert records[0]["updates"] > records[1]["updates"], "a pass is a token that is learned"
    assert records[0]["text"]["held_out"] == records[1]["text"]["held_out"] == len(held)


def test_every_loss_of_a_small_model_is_a_row_of_one_group(model, text, tmp_path):
    """The law of the target or its token, and what lies between: trained as they are, gathered as they lie."""
    for loss in LOSSES:
        rest = ["--layers", "0,3", "--token-passes", "200", "--vocabulary", "60", "--loss", loss]
        assert main(["distill", str(text), str(tmp_path / "losses" / loss), *flags(model), *rest]) == 0
    gathered = [str(tmp_path / "out.json"), "--group", str(tmp_path / "losses"), "forward_kl"]
    assert collect.main(gathered) == 0
    rows = collect.read_rows(tmp_path / "out.json")
    changes = {row["name"]: row["changes"] for row in rows}
    assert changes == {loss: {"loss": loss} if loss != "forward_kl" else {} for loss in LOSSES}
    assert rows[0]["name"] == "forward_kl" and {row["method"] for row in rows} == {"distill"}


def test_a_target_that_learned_to_speak_early_is_a_whole_model_and_its_own_draft(model, text, tmp_path, capsys):
    from transformers import AutoModelForCausalLM

    out, rest = tmp_path / "adapted", ["--token-passes", "1500", "--evaluate-every", "600", "--batch", "4"]
    rest += [
        "--exit",
        "2",
        "--taught",
        "2,3",
        "--dropout",
        "0.2",
        "--peak-rate",
        "0.005",
        "--warmup",
        "2",
        "--held-out",
        "2",
    ]
    assert main(["layerskip", str(text), str(out), *flags(model), *rest]) == 0
    record = json.loads((out / "training.json").read_text())
    assert record["method"] == "layerskip" and record["recipe"]["exit"] == 2 and record["recipe"]["taught"] == [2, 3]
    assert record["model"]["layers"] == 4 and record["text"]["held_out"] == 2
    assert len(record["history"]) == 3 and record["recipe"]["optimiser"] == "adamw"
    assert record["untrained"].keys() == record["held_out"].keys() and record["untrained"] != record["held_out"]
    assert 0 < record["moved"]["agreement"] < 1 and record["moved"]["divergence"] > 0
    assert str(tmp_path) not in json.dumps(record) and model not in json.dumps(record)
    assert main(["layerskip", str(text), str(out), *flags(model), *rest]) == 0, "finished: measured and written again"
    again = json.loads((out / "training.json").read_text())
    assert all(again[key] == record[key] for key in ("history", "untrained", "moved", "held_out"))
    theirs = AutoModelForCausalLM.from_pretrained(out, dtype="float32")
    adapted, prompt = load_model(out, dtype="float32"), tiny.prompt_of(20)
    ours = adapted.model.forward(prompt, adapted.model.new_cache(32)).logits
    assert (ours - tiny.logits_of(theirs, prompt)).abs().max() < 1e-3
    assert adapted.tokenizer.fingerprint == load_model(model).tokenizer.fingerprint
    capsys.readouterr()
    answers = []
    for draft in ("none", "layer_skip:2"):
        assert cli.main(["generate", "the cat", *flags(str(out)), "--draft", draft, "-k", "3", "-n", "12"]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]
    assert main(["layerskip", str(text), str(tmp_path / "b"), *flags(model), *rest, "--exit", "4"]) == 1
    assert "exit = 4: must be between 1 and 3 layers" in capsys.readouterr().err


def test_frequent_tokens_are_listed_most_frequent_first(text, tmp_path):
    file = tmp_path / "made" / "tokens.txt"
    assert main(["vocabulary", str(text), str(file)]) == 0
    ids = [int(line) for line in file.read_text().splitlines()]
    train, _ = hold_out(read_text(text))
    assert len(ids) == len(set(ids)) == len(answer_counts(train)) < tiny.VOCABULARY
    for size in (1, 7, len(ids)):
        assert sorted(ids[:size]) == frequent_tokens(train, size, tiny.VOCABULARY).tolist()


def test_a_second_model_decodes_with_a_head_cut_to_frequent_tokens(model, text, tmp_path, capsys):
    file = tmp_path / "tokens.txt"
    assert main(["vocabulary", str(text), str(file)]) == 0
    capsys.readouterr()
    answers = []
    for draft in ("none", f"{model}@{file}:20"):
        assert cli.main(["generate", "the cat", *flags(model), "--draft", draft, "-k", "3", "-n", "12"]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]
    assert cli.main(["generate", "the cat", *flags(model), "--draft", f"{model}@{file}:5000", "-n", "2"]) == 1
    assert "vocabulary = 5000: must be between 1 and the" in capsys.readouterr().err


def test_spinning_is_kept_short_before_torch_is_there():
    """In a process of its own: what OpenMP reads, it reads once, when torch brings it in."""
    code = (
        "import os, sys, runpy; os.environ.pop('GOMP_SPINCOUNT', None); assert 'torch' not in sys.modules\n"
        "class Watch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            print(os.environ.get('GOMP_SPINCOUNT')); raise SystemExit(0)\n"
        "sys.meta_path.insert(0, Watch()); runpy.run_module('specdec.training', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "1000", done.stderr


def test_a_stopped_training_says_so_and_goes_on(model, text, tmp_path, monkeypatch, capsys):
    rest = [*flags(model), "--vocabulary", "60", "--token-passes", "400"]
    run = train.Trainer.run

    def stop(self, report):
        run(self, report)
        raise KeyboardInterrupt

    monkeypatch.setattr(train.Trainer, "run", stop)
    assert main(["eagle3", str(text), str(tmp_path), *rest]) == 130
    assert "the same command goes on from here" in capsys.readouterr().err
    assert not (tmp_path / "training.json").exists()
    monkeypatch.setattr(train.Trainer, "run", run)
    assert main(["eagle3", str(text), str(tmp_path), *rest]) == 0
    assert main(["eagle3", str(text), str(tmp_path), *rest, "--peak-rate", "0.5"]) == 1
    assert "that training has peak_rate = 0.002, not 0.5" in capsys.readouterr().err


def test_given_conversations_are_read_and_bad_files_named(model, tmp_path, capsys):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"turns": ["the cat", "and a dog"]}\n\n{"turns": ["the fox"]}\n')
    out = tmp_path / "out"
    asked = ["synthesise", str(out), *flags(model), *SHORT, "--answer-tokens", "100", "--conversations"]
    assert main([*asked, str(file)]) == 0
    assert "kept: " in capsys.readouterr().err
    for content, error in [
        ("{", "neither JSON lines nor a JSON array"),
        ('{"turns": []}', "no conversation with a user's turn"),
    ]:
        file.write_text(content)
        assert main([*asked, str(file)]) == 1
        assert error in capsys.readouterr().err


def test_a_disk_that_is_too_small_is_said_before_the_start(model, tmp_path, monkeypatch, capsys):
    from types import SimpleNamespace

    monkeypatch.setattr(commands.shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))
    asked = ["synthesise", str(tmp_path / "out"), *flags(model), *SHORT, "--answer-tokens", "1000000"]
    assert main(asked) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "of disk" in said and "1 MiB are free there, 11 are needed" in said
    assert not list((tmp_path / "out").iterdir())


def test_text_of_another_tokenizer_is_refused(model, text, tmp_path, capsys):
    other = tmp_path / "text"
    other.mkdir()
    for part in text.glob("*.parquet"):
        (other / part.name).write_bytes(part.read_bytes())
    tiny.edit_json(other / "settings.json", tokenizer="0123")
    assert main(["eagle3", str(other), str(tmp_path / "head"), *flags(model), "--token-passes", "10"]) == 1
    assert "its text was written with another tokenizer" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--draft", "eagle"], ["--draft", "eagle:"], ["--draft", "eagle:none"]])
def test_a_head_that_is_not_there_is_named(model, arguments, capsys):
    assert cli.main(["generate", "the cat", *flags(model), *arguments]) == 1
    assert "eagle:FOLDER" in (said := capsys.readouterr().err) or "no config.json" in said


def test_a_head_grows_and_learns_to_copy_with_its_circuits_kept(model, text, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("specdec.training.head_task.grown_head", partial(grown_head, updates=40))
    rest = [*flags(model), "--evaluate-every", "100", "--vocabulary", "60"]
    first, second = str(tmp_path / "first"), tmp_path / "second"
    assert main(["eagle3", str(text), first, *rest, "--token-passes", "60"]) == 0
    more = ["eagle3", str(text), str(second), *rest, "--token-passes", "200", "--matrix-rate", "0.02", "--grow"]
    assert main([*more, "--start", first]) == 0
    target = load_model(model).model.config
    config, weights, _ = read_head(second, target)
    begun, before, _ = read_head(second / "training" / "grown", target)
    assert config.layers == begun.layers == 2 and config.heads > begun_heads(first, target)
    for name, mask in circuit_masks(config).items():
        scaled = ("qkv_1", "o_1")  # where the sink and the vote are set anew in the end
        if name not in scaled:
            assert (weights[name][mask] == before[name][mask]).all(), name
        assert (weights[name] != before[name]).any(), name
    assert Guard.read(second) is not None and Guard.read(Path(first)) is None
    record = json.loads((second / "training.json").read_text())
    assert record["settled"].keys() == {"sink", "vote"} and record["head"]["layers"] == 2
    assert record["recipe"]["start"] == "first" and record["before"]["grown"]["updates"] > 0
    assert record["before"]["recipe"]["token_passes"] == 60
    made = (second / "training" / "grown" / "model.safetensors").stat().st_mtime_ns
    assert main([*more, "--start", first]) == 0, "finished: measured and written again"
    assert (second / "training" / "grown" / "model.safetensors").stat().st_mtime_ns == made, "built once"
    capsys.readouterr()
    assert main([*more[:2], str(tmp_path / "third"), *more[3:]]) == 1
    assert "start must be the folder of one" in capsys.readouterr().err
    assert main([*more[:2], str(tmp_path / "third"), *more[3:], "--start", first, "--optimiser", "adamw"]) == 1
    assert "trained by muon alone" in capsys.readouterr().err
    assert cli.main(["generate", "the cat", *flags(model), "--draft", f"eagle:{second}", "-k", "3", "-n", "9"]) == 0


def begun_heads(folder: str, target) -> int:
    return read_head(Path(folder), target)[0].heads
