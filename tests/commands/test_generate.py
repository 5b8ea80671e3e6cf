"""`generate` with a shape, from the command line to the text."""

import pytest

from specdec.cli import main
from tests.helpers import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny"
    tiny.checkpoint(path, "qwen3")
    return str(path)


def generate(folder, capsys, *flags):
    always = ("--model", folder, "--dtype", "float64", "--threads", "1", "-n", "12")
    code = main(["generate", "the quick brown fox", *always, *flags])
    return code, capsys.readouterr()


@pytest.mark.parametrize("shape", ["static_tree", "sampled_tree", "eagle2", "opt_tree", "coarse_fine"])
def test_a_shape_changes_speed_and_not_the_text(folder, capsys, shape):
    _, plain = generate(folder, capsys, "--draft", "none")
    code, shaped = generate(folder, capsys, "--draft", "layer_skip:1", "--shape", shape, "--nodes", "9", "--show-tree")
    assert code == 0 and shaped.out == plain.out
    assert "root\n├─" in shaped.err and "\n=>  " in shaped.err and "root" not in plain.err


def test_a_rule_that_reads_tokens_gets_the_tokenizer(folder, capsys):
    flags = ("--draft", "layer_skip:1", "--policy", "token_type", "--threshold", "0.5")
    assert generate(folder, capsys, *flags)[0] == 0


def test_a_verifier_can_be_chosen_and_a_wrong_one_is_refused(folder, capsys):
    tree = ("--draft", "layer_skip:1", "--shape", "sampled_tree", "--temperature", "1")
    assert generate(folder, capsys, *tree, "--verifier", "recursive")[0] == 0
    for verifier, words in (("greedy", "exact at temperature 0 only"), ("recursiv", 'did you mean "recursive"')):
        code, shown = generate(folder, capsys, *tree, "--verifier", verifier)
        assert code == 1 and words in shown.err
    code, shown = generate(folder, capsys, "--draft", "layer_skip:1", "--nodes", "0")
    assert code == 1 and "nodes = 0: must be an integer between 1 and 512" in shown.err


def test_a_draft_in_eight_bits_changes_speed_and_not_the_text(folder, capsys):
    _, plain = generate(folder, capsys, "--draft", "none")
    code, drafted = generate(folder, capsys, "--draft", folder, "--draft-weights", "q8_0")
    assert code == 0 and drafted.out == plain.out
    code, refused = generate(folder, capsys, "--draft", "layer_skip:1", "--draft-weights", "q8_0")
    assert code == 1 and refused.err == (
        "error: --draft-weights q8_0: --draft layer_skip:1 has no weights of its own; a head or a model has\n"
    )
    code, refused = generate(folder, capsys, "--weights", "stored")
    assert code == 1 and refused.err == (
        "error: weights: stored goes with dtype bfloat16, not float64: it is what stored numbers stand for\n"
    )
