"""The search for blocks that a draft can do without: its sets, its score, and that it finds what there is to find."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from specdec.drafters import LayerSkip
from specdec.errors import UserError
from tests.helpers import tiny
from tests.workflow.conftest import ROOT
from workflow.study import search_layers
from workflow.study.search_layers import BlockCosts, Skips, objective_of, search, starts

LAYERS = 3
COSTS = BlockCosts(attention=1.0, mlp=2.0, rest=1.0, passes={1: 10.0, 2: 11.0, 3: 12.0})


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    tiny.checkpoint(folder / "target", "qwen3", layers=LAYERS, max_position_embeddings=512)
    words = ("fox", "dog", "cat", "mat")
    questions = [{"question_id": word, "category": "words", "turns": [f"say {word}"]} for word in words]
    (folder / "few.jsonl").write_text("\n".join(map(json.dumps, questions)), "utf-8")
    raw = yaml.safe_load((ROOT / "config.yaml").read_text("utf-8"))
    raw["pair"] = "qwen3"
    raw["models"]["qwen3-1.7b"]["path"] = str(folder / "target")
    raw["pairs"]["qwen3"] |= {"extra_prompt_files": []}
    raw["pairs"]["qwen3"]["drafts"]["layer_skip"] = {"kind": "layer_skip", "layers": 2}
    raw["prompts"] |= {"files": [str(folder / "few.jsonl")], "calibration_per_category": 2}
    raw["run"] |= {"dtype": "float32", "threads": 1}
    (folder / "config.yaml").write_text(yaml.safe_dump(raw), "utf-8")
    return folder


@pytest.fixture(scope="module")
def objective(project):
    from workflow.study.config import load

    found = objective_of(load(project / "config.yaml"), "layer_skip", 2, 12, None)
    assert len(found.prompts) == 2 and found.costs.passes.keys() == {1, 2, 3} and found.costs.rest > 0
    found.costs = COSTS
    return found


def test_a_set_is_a_mark_a_block_and_back():
    skips = Skips((0, 2), (1,))
    assert skips.marks(3) == [1, 0, 1, 0, 1, 0] and Skips.of(skips.marks(3)) == skips
    for layers in (1, 2, 3, 30):
        for first in starts(layers):
            assert Skips.of(first.marks(layers)) == first


def test_a_price_counts_the_blocks_that_are_left():
    plan = [(0, True, True), (1, True, False), (2, False, True)]
    assert COSTS.step(plan) == pytest.approx((1 + 2 * 1 + 2 * 2) / 10)
    assert COSTS.price(plan, 2) == pytest.approx(2 * 0.7 + 1.2) and COSTS.price(plan, 0) == 1


def test_an_exits_layers_are_scored_for_one_row_alone():
    """Two layers are 6 of a pass's 10 parts; at three rows a pass costs a fifth more, but not in those layers."""
    plan = ((0, True, True), (1, True, True))
    assert COSTS.price(plan, 2) == pytest.approx(2 * 0.7 + 1.2 - 0.6 * 0.2) and COSTS.price(plan, 0) == 1


@pytest.mark.parametrize("skips", [Skips((1,)), Skips((), (0, 2)), Skips((0, 1, 2), (0, 1, 2))])
def test_a_score_is_tokens_over_the_price_of_their_rounds(objective, skips):
    model, tokens, price = LayerSkip(objective.bench.target.model, **dict(skips.options)), 0, 0.0
    for i, ids in enumerate(objective.prompts):
        from specdec.drafters import Chain
        from specdec.growth import build_rule

        record = objective.bench.generation_with(Chain(model, build_rule("fixed", 2)), 2, ids, f"search-{i}").run()
        answer = objective.bench.generation("ar", ids, f"search-{i}").run()
        assert record.output_ids == answer.output_ids
        tokens += len(record.output_ids)
        price += sum(COSTS.step(model.plan) * r.drafted + (1, 1.1, 1.2)[r.drafted] for r in record.rounds)
    assert objective(skips) == pytest.approx(tokens / price)
    assert objective.seen[skips] == objective(skips), "decoded once"


def test_some_of_the_prompts_are_spread_over_all(project, monkeypatch):
    """They stand by category: the first ones would be of one kind."""
    from workflow.study.config import load

    encoded = []
    monkeypatch.setattr(search_layers, "calibration_slice", lambda config: list("aaaabbbbcccc"))
    monkeypatch.setattr(search_layers, "encode", lambda bench, prompt, turns: encoded.append(prompt) or [1, 2])
    monkeypatch.setattr(search_layers, "block_costs", lambda *rest: COSTS)
    objective_of(load(project / "config.yaml"), "layer_skip", 2, 4, 3)
    assert encoded == ["a", "b", "c"]
    for count in (0, 13):
        with pytest.raises(UserError, match=f"--prompts {count}: must be between 1 and the 12 calibration prompts"):
            objective_of(load(project / "config.yaml"), "layer_skip", 2, 4, count)


def test_the_whole_target_is_no_draft(objective):
    assert objective(Skips()) == 0


def test_without_optuna_the_search_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"needs the package optuna, .* env/run pip install -r requirements.txt"):
        search(lambda skips: 0.0, 2, 1)


def test_the_search_finds_what_pays_and_tries_what_is_known_first(capsys):
    pytest.importorskip("optuna")
    worth = {("attention", 0): -1.0, ("attention", 1): 0.5, ("mlp", 0): 0.3, ("mlp", 1): -0.2}
    tried = []

    def score(skips: Skips) -> float:
        tried.append(skips)
        parts = {"attention": skips.attention, "mlp": skips.mlp}
        return 1 + sum(worth[kind, layer] for kind, chosen in parts.items() for layer in chosen)

    first = [Skips((0,)), Skips((0, 1), (1,)), Skips((0,))]
    best, value = search(score, 2, 14, seed=1, first=first)
    assert tried[:2] == [first[0], first[1]] and tried[2] != first[0] and len(tried) == 14
    assert best == Skips((1,), (0,)) and value == pytest.approx(1.8)


def test_the_command_prints_an_entry_that_the_configuration_takes(project, monkeypatch, capsys):
    found = Skips((1,), (0, 2))
    asked = []
    monkeypatch.setattr(search_layers, "search", lambda *rest: asked.append(rest) or (found, 1.25))
    monkeypatch.chdir(project)
    assert search_layers.main(["--tokens", "4", "--prompts", "1", "--trials", "3", "--k", "1"]) == 0
    printed = capsys.readouterr()
    (entry,) = yaml.safe_load(printed.out).values()
    assert entry == {"kind": "layer_skip", "skip_attention": [1], "skip_mlp": [0, 2]}
    assert "modelled decode speedup 1.250" in printed.err and "skip_mlp=(0, 2)" in printed.err
    objective, layers, trials, seed, first = asked[0]
    assert (layers, trials, seed, first[0]) == (LAYERS, 3, 0, Skips((2,), (2,))), "the exit that is configured"
    assert LayerSkip(objective.bench.target.model, **{k: v for k, v in entry.items() if k != "kind"}).plan
