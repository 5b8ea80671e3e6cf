"""`--static` from the command line: the same text, and a clear refusal of what it does not cover."""

import pytest

from specdec.cli import main
from tests.helpers import tiny


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    for name, layers in (("target", 2), ("draft", 1)):
        tiny.checkpoint(made / name, "qwen3", layers=layers)
    return str(made / "target"), str(made / "draft")


def run(capsys, command, target, *flags):
    code = main([*command, "--model", target, "--dtype", "float32", "--threads", "1", "-n", "12", *flags])
    return code, capsys.readouterr()


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_static_decoding_writes_the_same_text(folders, capsys, temperature):
    target, draft = folders
    generate = ("generate", "the quick brown fox")
    for chosen in ("none", draft):
        flags = ("--draft", chosen, "--temperature", temperature, "-k", "3")
        code, eager = run(capsys, generate, target, *flags)
        assert code == 0
        code, static = run(capsys, generate, target, *flags, "--static")
        assert code == 0 and static.out == eager.out and static.out.strip()
        assert static.err.count("acceptance rate") == eager.err.count("acceptance rate")


def test_bench_times_static_arms_against_a_static_baseline(folders, capsys):
    target, draft = folders
    flags = ("--prompts", "2", "--no-transformers", "--static", "--draft", draft, "-k", "2")
    code, shown = run(capsys, ("bench",), target, *flags)
    assert code == 0 and "static, float32" in shown.out and "K=2" in shown.out and "autoregressive" in shown.out
    assert "outputs are the baseline" not in shown.out, "an arm wrote another text"


@pytest.mark.parametrize(
    "flags, words",
    [
        (("--draft", "ngram"), "draft ngram"),
        (("--draft", "layer_skip:1"), "draft layer_skip"),
        (("--draft", "DRAFT", "--policy", "max_prob", "--threshold", "0.5"), "policy max_prob"),
        (("--draft", "DRAFT", "--shape", "eagle2"), "shape eagle2"),
        (("--draft", "DRAFT", "--verifier", "traversal"), "verifier traversal"),
    ],
)
def test_what_static_decoding_does_not_cover_is_one_sentence(folders, capsys, flags, words):
    target, draft = folders
    flags = [draft if flag == "DRAFT" else flag for flag in flags]
    code, shown = run(capsys, ("generate", "the fox"), target, *flags, "--static")
    assert code == 1 and f"static decoding does not cover {words}; it covers the baseline" in shown.err
