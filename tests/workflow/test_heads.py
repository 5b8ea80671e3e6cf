"""Trained drafts in the study: which take part, where they are read from, what stops before a job, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from specdec.errors import UserError
from specdec.records import write_table
from specdec.training.conversation import Template
from specdec.training.corpus import Sample
from specdec.training.synthesise import SCHEMA
from tests.helpers import tiny
from tests.workflow import synthetic
from tests.workflow.conftest import ROOT, put
from workflow.study import heads, own_kind
from workflow.study.cells import Cell
from workflow.study.config import load_mapping
from workflow.study.config.training import Written
from workflow.study.experiments import cells_of
from workflow.study.plan import Plan
from workflow.study.prompts import read

RECIPE = {"method": "eagle3", "at_least": 1.3, "token_passes": 1000}


@pytest.fixture
def there(tmp_path, monkeypatch, config) -> Path:
    """An empty study folder with the heads of the default pair."""
    monkeypatch.chdir(tmp_path)
    synthetic.write_heads(tmp_path, config)
    (tmp_path / "prompts").symlink_to(ROOT / "prompts")
    return tmp_path


# -- where a head is read from --------------------------------------------------------------------


def test_a_shipped_head_and_a_trained_one_lie_apart(raw, changed):
    assert changed("pair", "smollm2").head_path("eagle3") == Path("checkpoints/smollm2/eagle3")
    trained = changed("draft_source", "train")
    assert trained.head_path("eagle3") == Path("resources/drafts/smollm2/eagle3")
    assert trained.drafter_spec("eagle3") == {"kind": "eagle", "head": "resources/drafts/smollm2/eagle3"}
    public = load_mapping(put(raw | {"pair": "qwen3"}, "draft_source", "train"))
    assert public.head_path("eagle3_public") == Path("resources/drafts/qwen3/eagle3_public"), "it has no recipe"
    assert public.head_path("layer_skip") is None and public.drafter_spec("layer_skip")["layers"] == 22


def test_a_recipe_is_chosen_by_its_size(raw, changed):
    full, quick = changed("draft_source", "train"), load_mapping(raw | {"draft_recipe": "quick"})
    assert full.recipe("eagle3").token_passes > 10 * quick.recipe("eagle3").token_passes
    assert quick.recipe("eagle3").at_least == 1.3


# -- what is missing ------------------------------------------------------------------------------


def test_a_missing_head_stops_its_cells_with_the_command_that_makes_it(raw, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = Plan(raw, tmp_path)
    cells = [Cell("smollm2", draft, "fixed", 4) for draft in ("layer_skip", "eagle1", "eagle3", "eagle1")]
    first, second = plan.missing_weights(cells)
    assert "the head of draft eagle1 is not in checkpoints/smollm2/eagle1" in first
    assert "--config pair=smollm2 draft_source=train -- resources/drafts/smollm2/eagle3/training.json" in second
    assert second.endswith("&& cp -r resources/drafts/smollm2/eagle3 'checkpoints/smollm2/eagle3'")
    assert plan.missing_weights(cells[:1]) == [], "only what is to be decoded is asked for"
    assert Plan(raw | {"draft_source": "train"}, tmp_path).missing_weights(cells) == []


def test_optional_drafts_are_left_out_and_said_to_be(raw, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = Plan(raw | {"pair": "qwen3"}, tmp_path)
    assert {cell.draft for cell in cells_of(plan.config, "drafts")} == {"none", "small", "layer_skip", "ngram"}
    assert {cell.draft for cell in cells_of(plan.config, "dynamic_k")} == {"none", "small"}
    said = plan.left_out()
    assert "draft eagle3_public is left out: the head of draft eagle3_public is not in" in said
    assert "hf download AngelSlim/Qwen3-1.7B_eagle3 --local-dir 'resources/drafts/qwen3/eagle3_public'" in said
    assert "draft_source=train -- resources/drafts/qwen3/eagle3/training.json" in said
    assert "prompts of the drafts' own kind are left out: no training text in resources/text/qwen3" in said
    folder = tmp_path / "resources/drafts/qwen3/eagle3"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert "eagle3" in {cell.draft for cell in cells_of(plan.config, "dynamic_k")}
    assert "draft eagle3 is left out" not in plan.left_out()


@pytest.fixture
def optional(raw, tmp_path, monkeypatch) -> dict:
    """The head carries the study, in a folder that holds it and its training text alone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoints/smollm2").mkdir(parents=True)
    for name in ("checkpoints/smollm2/text", "checkpoints/smollm2/eagle3"):
        (tmp_path / name).symlink_to(ROOT / name)
    study = {"primary": "eagle3", "also": ["small"], "dynamic": ["eagle3", "small"], "trees": None}
    study |= {"optional": ["eagle1", "small", "small_restricted"]}
    return put(raw, "pairs/smollm2", raw["pairs"]["smollm2"] | study)


def drafts_of(plan: Plan, experiment: str) -> set[tuple[str, int]]:
    cells = cells_of(plan.config, experiment)
    return {(cell.draft, cell.k) for cell in cells if cell.policy == "fixed" and cell.prompt_set == "project"}


STAMP = "resources/assembled/smollm2/shipped/smollm2-small/specdec.json"


@pytest.mark.parametrize("study", ["default", "full"])
def test_the_small_model_joins_every_table_once_it_is_there(optional, tmp_path, study):
    without = Plan(optional | {"study": study}, tmp_path)
    said = without.left_out()
    assert "draft small is left out: the distilled model of draft small is not in checkpoints/smollm2/small" in said
    assert (
        "draft_source=train -- resources/drafts/smollm2/small/training.json && cp -r resources/drafts/smollm2" in said
    )
    tables = ("fixed_k", "dynamic_k", "drafts", "losslessness")
    assert not any("small" in draft for name in tables for draft, _ in drafts_of(without, name))
    assert not any("-small" in path for path in without.measure_inputs(None))
    (tmp_path / "checkpoints/smollm2/small").mkdir()
    (tmp_path / "checkpoints/smollm2/small/config.json").write_text("{}")
    plan = Plan(optional | {"study": study}, tmp_path)
    assert "draft small" not in plan.left_out()
    everywhere = {("small", k) for k in (1, 2, 4, 8)}
    assert all(everywhere <= drafts_of(plan, name) for name in tables)
    restricted = {("small_restricted", k) for k in ((2, 4) if study == "default" else (1, 2, 4, 8))}
    assert {found for found in drafts_of(plan, "drafts") if found[0] == "small_restricted"} == restricted
    assert {cell.policy for cell in cells_of(plan.config, "dynamic_k") if cell.draft == "small"} >= {
        "max_prob",
        "history",
    }
    assert {STAMP, "resources/vocabulary/smollm2.txt"} <= set(plan.measure_inputs(None))


def test_a_cut_head_has_the_weights_of_the_whole_one_and_a_list_of_tokens(raw, there):
    plan = Plan(raw, there)
    whole, cut = (Wildcards(cell=f"{draft}-fixed-k4-t0-s0") for draft in ("eagle3_whole", "eagle3"))
    target, listed = "resources/models/smollm2-135m-instruct/specdec.json", "resources/vocabulary/smollm2.txt"
    assert (plan.decode_inputs(whole)["made"], plan.decode_inputs(cut)["made"]) == ([target], [target, listed])
    assert plan.decode_values(cut)["head"] == plan.decode_values(whole)["head"]
    trained = Plan(raw | {"draft_source": "train"}, there)
    record = "resources/drafts/smollm2/eagle3/training.json"
    assert all(record in trained.decode_inputs(cell)["made"] for cell in (whole, cut)), "one training for both"


def test_the_small_model_can_carry_the_study(optional):
    edit = {"primary": "small", "also": ["eagle3"], "dynamic": ["small", "eagle3"], "optional": ["eagle1"]}
    optional["pairs"]["smollm2"] |= edit
    Path("checkpoints/smollm2/small").mkdir()
    Path("checkpoints/smollm2/small/config.json").write_text("{}")
    config = load_mapping(optional)
    assert (config.studied(), config.dynamic()) == (["small", "eagle3"], ["small", "eagle3"])
    assert {cell.draft for cell in cells_of(config, "trees")} == {"none", "small"}


def test_cells_of_a_distilled_draft_depend_on_its_weights_and_its_tokens(raw, there):
    plan, whole, cut = Plan(raw, there), *(Wildcards(cell=f"{d}-fixed-k4-t0-s0") for d in ("small", "small_restricted"))
    target = "resources/models/smollm2-135m-instruct/specdec.json"
    assert plan.decode_inputs(whole)["made"] == [target, STAMP]
    assert plan.decode_inputs(cut)["made"] == [target, STAMP, "resources/vocabulary/smollm2.txt"]
    before = plan.decode_values(whole)
    assert "vocabulary" not in before and plan.decode_values(cut)["vocabulary"] == {"text": plan.text_values()}
    (there / "checkpoints/smollm2/small/model.safetensors").write_bytes(b"y")
    assert Plan(raw, there).decode_values(whole)["head"] != before["head"]
    trained = Plan(raw | {"draft_source": "train"}, there)
    record, stamp = "resources/drafts/smollm2/small/training.json", STAMP.replace("shipped", "trained")
    for cell in (whole, cut):
        assert trained.decode_inputs(cell)["made"][1:3] == [stamp, record], "both have the weights of one training"
    assert trained.assemble_inputs(Wildcards(model="smollm2-small")) == [target, record]
    assert plan.assemble_inputs(Wildcards(model="smollm2-small")) == [target]
    assert trained.decode_values(whole)["head"] == trained.decode_values(cut)["head"]


def test_losses_of_the_configuration_are_those_of_the_training():
    from typing import get_args

    from specdec.training.distill import LOSSES
    from workflow.study.config.training import Loss

    assert set(get_args(Loss)) == set(LOSSES)


def test_text_that_is_not_there_stops_a_training(raw, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_mapping(raw | {"draft_source": "train"})
    assert "no training text in checkpoints/smollm2/text" in config.missing_text()


# -- what a cell depends on -----------------------------------------------------------------------


class Wildcards:
    def __init__(self, **values):
        self.__dict__.update(values)


def test_a_cell_depends_on_its_head(raw, there):
    cell = Wildcards(cell="eagle3_whole-fixed-k4-t0-s0")
    before = Plan(raw, there).decode_values(cell)["head"]
    (there / "checkpoints/smollm2/eagle3/model.safetensors").write_bytes(b"y")
    shipped = Plan(raw, there)
    assert shipped.decode_values(cell)["head"] != before
    assert shipped.decode_inputs(cell)["made"] == ["resources/models/smollm2-135m-instruct/specdec.json"]
    trained = Plan(raw | {"draft_source": "train"}, there)
    assert trained.decode_inputs(cell)["made"][-1] == "resources/drafts/smollm2/eagle3/training.json"
    quick = Plan(raw | {"draft_source": "train", "draft_recipe": "quick"}, there)
    assert trained.decode_values(cell)["head"] != quick.decode_values(cell)["head"]
    own = Wildcards(cell="ngram-fixed-k4-t0-s0-prompts_own_kind")
    assert shipped.decode_inputs(own)["made"][-1] == "resources/prompts/smollm2/own_kind.jsonl"


def test_tables_depend_on_the_records_there_are(raw, there):
    plan, table = Plan(raw, there), Wildcards(table="training")
    shipped = [f"checkpoints/smollm2/{draft}/training.json" for draft in ("small", "eagle3", "eagle1")]
    assert plan.table_inputs(table) == shipped, "two drafts have the weights of `small`; its record stands once"
    for name in ("ablations", "layerskip"):
        assert plan.table_inputs(Wildcards(table=f"training_{name}"))[-1] == f"checkpoints/smollm2/{name}.json"
    (there / "checkpoints/smollm2/eagle1/training.json").unlink()
    assert plan.table_inputs(table) == shipped[:2]


# -- making a head --------------------------------------------------------------------------------


def fake_training(monkeypatch, reached: float) -> list[list[str]]:
    """A stand-in for `specdec.training` that writes a head which reaches so many tokens per round."""
    calls = []

    def run(arguments):
        calls.append(arguments)
        folder = Path(arguments[2])
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("model.safetensors", "config.json"):
            (folder / name).write_text(name)
        (folder / "training.json").write_text(json.dumps({"held_out": {"tokens_per_round": reached}}))

    monkeypatch.setattr(heads, "run", run)
    return calls


def test_a_head_below_its_gate_is_refused_and_one_above_is_used(raw, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_mapping(put(raw, "training/smollm2/drafts/eagle3/full", RECIPE | {"batch": 2, "peak_rate": 1e-3}))
    out = Path("resources/drafts/smollm2/eagle3")
    calls = fake_training(monkeypatch, 1.29)
    with pytest.raises(UserError, match=r"eagle3: after its training it reaches 1\.290 .*\.full\.at_least = 1\.3"):
        heads.make_head(config, "eagle3", {"a": 1}, out)
    assert not out.exists()
    fake_training(monkeypatch, 1.3)
    heads.make_head(config, "eagle3", {"a": 1}, out)
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors", "training.json"]
    (asked,) = calls
    assert asked[:2] == ["eagle3", "checkpoints/smollm2/text"]
    assert asked[3:9] == ["--token-passes", "1000", "--batch", "2", "--peak-rate", "0.001"]
    assert "--at-least" not in asked


def test_a_second_training_goes_on_from_the_first_and_its_head_is_the_one_that_is_used(raw, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    then = {"grow": True, "token_passes": 500, "batch": 8}
    recipe = RECIPE | {"batch": 2, "peak_rate": 1e-3, "then": then}
    config = load_mapping(put(raw, "training/smollm2/drafts/eagle3/full", recipe))
    calls = fake_training(monkeypatch, 1.5)
    heads.make_head(config, "eagle3", {"a": 1}, Path("out"))
    first, second = calls
    assert "--then" not in first and "--grow" not in first and first[3:7] == ["--token-passes", "1000", "--batch", "2"]
    assert second[2] == f"{first[2]}/then" and second[second.index("--start") + 1] == first[2] and "--grow" in second
    assert second[3:9] == ["--token-passes", "500", "--batch", "8", "--peak-rate", "0.001"]
    assert (Path("out") / "model.safetensors").read_bytes() == (Path(second[2]) / "model.safetensors").read_bytes()


def test_a_training_has_its_own_folder_for_all_it_depends_on():
    folders = {heads.working_folder("p", "d", {"recipe": value, "code": "x"}) for value in (1, 2)}
    assert len(folders) == 2
    assert heads.working_folder("p", "d", {"b": 1, "a": 2}) == heads.working_folder("p", "d", {"a": 2, "b": 1})


def test_every_recipe_is_understood_by_the_command(raw):
    from specdec.training.__main__ import parser

    for pair in raw["training"]:
        for size in ("full", "quick"):
            config = load_mapping(raw | {"pair": pair, "draft_recipe": size})
            for draft in raw["training"][pair]["drafts"]:
                recipe = config.recipe(draft)
                words = [recipe.method, "text", "out", *heads.options(recipe, heads.OURS), *heads.target(config)]
                flags = parser().parse_args(words)
                assert flags.token_passes == recipe.token_passes and flags.peak_rate == recipe.peak_rate
        if written := config.training[pair].text.written:
            parser().parse_args(["synthesise", "out", *heads.options(written, set()), *heads.target(config)])


@pytest.mark.parametrize(("asked", "word"), [(True, True), (False, False), (None, False)])
def test_a_yes_is_an_option_without_a_value(asked, word):
    written = Written(answer_tokens=100, cut_requests=asked, user_temperature=1.3)
    words = heads.options(written, set())
    assert ("--cut-requests" in words) == word
    assert [w for w in words if w != "--cut-requests"] == ["--answer-tokens", "100", "--user-temperature", "1.3"]


def test_a_text_that_cannot_be_written_ends_the_job():
    with pytest.raises(SystemExit) as caught:
        heads.run(["eagle3", "no text here", "out", "--model", "no model", "--token-passes", "1"])
    assert caught.value.code == 1


def write_text(folder: Path, conversations: int, size: int = 10) -> None:
    def row(index: int) -> dict:
        dropped = "loop" if index % 5 == 1 else None
        ids = [] if dropped else [9] * (4 + size)
        mask = [] if dropped else [False] * 4 + [True] * size
        return {"index": index, "ids": ids, "loss_mask": mask, "source": "self", "seed": 0, "sampled": False} | {
            "dropped": dropped
        }

    folder.mkdir()
    rows = [row(index) for index in range(conversations)]
    for part, chosen in enumerate((rows[::2], rows[1::2])):
        write_table(folder / f"part-{part:05d}.parquet", pa.Table.from_pylist(chosen, schema=SCHEMA))
    (folder / "settings.json").write_text("{}")


def test_a_part_of_a_text_is_its_first_conversations(tmp_path):
    import pyarrow.parquet as pq

    write_text(tmp_path / "text", 20)
    out = heads.first_part(tmp_path / "text", tmp_path / "some" / "part", 45)
    rows = pq.read_table(out / "part-00000.parquet").to_pylist()
    assert [row["index"] for row in rows] == [0, 1, 2, 3, 4, 5], "five kept ones, and the one dropped between"
    assert (out / "settings.json").is_file()
    with pytest.raises(UserError, match="holds 160 answer tokens, but the recipe asks for 161"):
        heads.first_part(tmp_path / "text", tmp_path / "more", 161)


# -- prompts of the drafts' own kind --------------------------------------------------------------


def test_own_prompts_are_requests_of_held_out_conversations(tmp_path):
    from specdec.models.tokenizer import Tokenizer

    tiny.tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": tiny.END}))
    tokenizer = Tokenizer.load(tmp_path / "model")
    template = Template.of(tokenizer)
    rows = []
    for index in range(0, 330, 3):
        asked = tokenizer.inner.encode(f"the cat {index}", add_special_tokens=False)
        prompt = [*template.opening, *asked, *template.to_answer]
        rows.append({"index": index, "ids": [*prompt, 9, 9, tiny.END], "loss_mask": [False] * len(prompt) + [True] * 3})
        rows[-1] |= {"source": "self", "seed": 0, "sampled": index == 66, "dropped": None}
    (tmp_path / "text").mkdir()
    write_table(tmp_path / "text" / "part-00000.parquet", pa.Table.from_pylist(rows, schema=SCHEMA))

    def asked_for(count: int, seed: int = 0) -> dict[str, tuple]:
        options = {"count": count, "seed": seed, "thinking": None}
        own_kind.write_prompts(tmp_path / "text", tokenizer, tmp_path / "own.jsonl", **options)
        return {prompt.prompt_id: prompt.turns for prompt in read(tmp_path / "own.jsonl")}

    everything = asked_for(100)
    held = [index for index in range(0, 330, 33) if index != 66]
    assert everything == {f"own_kind_{index}": (f"the cat {index}",) for index in held} | everything
    assert len(everything) == len(held), "no conversation that is trained on, and none answered by sampling"
    few = asked_for(4)
    assert len(few) == 4 and list(few) == list(everything)[:4] != sorted(few)
    assert list(asked_for(4, seed=1)) != list(few)


def test_a_text_of_another_template_is_refused(tmp_path):
    template = Template((1, 2), (3,), None)
    sample = Sample(33, (1, 9, 7, 3, 5, 5), (False,) * 4 + (True,) * 2)
    with pytest.raises(UserError, match="conversation 33 does not begin with the target's chat template"):
        own_kind.request_of(sample, template, tmp_path)
    assert own_kind.request_of(Sample(33, (1, 2, 7, 3, 5), (False,) * 4 + (True,)), template, tmp_path) == (7,)
