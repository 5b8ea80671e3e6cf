"""A mistake in config.yaml ends in one line that names the key, the value and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdec.errors import UserError
from tests.workflow.conftest import ROOT, put
from workflow.study import schema
from workflow.study.config import load, load_mapping

K = "K is an integer from 1 to 32"
RECIPE = {"method": "eagle3", "at_least": 1.3, "token_passes": 1000}
RECIPES = {"full": RECIPE, "quick": RECIPE}
DISTILLED = dict.fromkeys(RECIPES, {**RECIPE, "method": "distill", "layers": [0, 1]})


def message(raw: dict, path: str, value: object) -> str:
    with pytest.raises(UserError) as caught:
        load_mapping(put(raw, path, value))
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("value", [0, -1, 1.5, 4.0, "4", True, 10**6, None, []])
@pytest.mark.parametrize("place", ["experiments/fixed_k/k", "experiments/dynamic_k/k", "experiments/losslessness/k"])
def test_a_wrong_k_is_named_with_what_is_allowed(raw, place, value):
    text = message(raw, place, [1, value] if place.endswith("fixed_k/k") else value)
    assert K in text
    assert place.replace("/", ".") in text


def test_the_message_shows_the_value_as_yaml_spells_it(raw):
    assert message(raw, "experiments/fixed_k/k", [None]) == f"config: experiments.fixed_k.k[0] is null: {K}"
    assert message(raw, "experiments/fixed_k/k", [1, "4"]) == f'config: experiments.fixed_k.k[1] is "4": {K}'


@pytest.mark.parametrize("value", [1.1, -0.1, "0.3", True, None, float("nan"), float("inf"), 0.1234567])
@pytest.mark.parametrize("rule", ["max_prob", "margin"])
def test_a_threshold_outside_0_to_1_is_refused(raw, rule, value):
    text = message(raw, f"experiments/dynamic_k/thresholds/{rule}", [value])
    assert f"{rule}[0]" in text and "a number from 0 to 1" in text


def test_an_entropy_threshold_is_not_negative_and_may_exceed_1(raw, changed):
    assert "nats" in message(raw, "experiments/dynamic_k/thresholds/entropy", [-0.1])
    config = changed("experiments/dynamic_k/thresholds/entropy", [2.5, 3])
    assert config.experiments.dynamic_k.thresholds.entropy == [2.5, 3.0]


@pytest.mark.parametrize("policy", ["history", "fixed", "ar"])
def test_policies_without_a_threshold_take_none(raw, policy):
    text = message(raw, f"experiments/dynamic_k/thresholds/{policy}", [0.3])
    assert policy in text and "takes no threshold" in text


def test_spellings_of_a_number_are_one(changed):
    config = changed("experiments/dynamic_k/thresholds/max_prob", [0.3, 0.30, "3e-1"])
    assert config.experiments.dynamic_k.thresholds.max_prob == [0.3, 0.3, 0.3]


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("pair", "qwen", '"qwen3"'),
        ("pair", "none", "smollm2, qwen3"),
        ("pair", 3, "pair is 3"),
        ("pair", None, "pair is null"),
        ("study", "fulll", '"full"'),
        ("study", True, "study is true"),
        ("grammar", "x", "grammar: unknown key"),
        ("run/batch_size", 4, "run.batch_size: unknown key (the batch size is 1: the study is about"),
        ("sampling/repetition_penalty", 1.1, "sampling.repetition_penalty: unknown key"),
        ("sampling/top_kk", 5, 'did you mean "top_k"?'),
        ("sampling/top_k", 0, "top_k is an integer from 1"),
        ("sampling/top_p", 0, "top_p is a number above 0"),
        ("sampling/draft_temperature", "hot", "a temperature is a number"),
        ("sampling", None, "sampling is null: a mapping is expected"),
        ("run/dtype", "bf16", '"bfloat16"'),
        ("run/device", "gpu", "cpu, cuda"),
        ("run/threads", 0, "threads is an integer from 1"),
        ("run/repetitions", 0, "run.repetitions is 0"),
        ("studies/default/max_new_tokens", 0, "max_new_tokens is an integer from 1"),
        ("studies/default/temperatures", [], "at least one entry"),
        ("studies/default/seeds", [-1], "a seed is an integer"),
        ("experiments/fixed_k/k", 4, "a list is expected"),
        ("experiments/dynamic_k/rules", ["max_probs"], '"max_prob"'),
        ("experiments/dynamic_k/thresholds/margin", [], "the rule margin needs at least one threshold"),
        ("experiments/dynamic_k/thresholds/marign", [0.3], 'did you mean "margin"?'),
        ("pairs/smollm2/target", "smollm2-135m", '"smollm2-135m-instruct"'),
        ("pairs/smollm2/primary", "layerskip", '"layer_skip"'),
        ("pairs/smollm2/dynamic", ["ngram"], "the dynamic rules read a draft's probabilities"),
        ("pairs/smollm2/also", ["n_gram"], '"ngram"'),
        ("pairs/smollm2/drafts/none", {"kind": "layer_skip", "layers": 2}, "stands for the autoregressive baseline"),
        ("pairs/smollm2/drafts/layer_skip/kind", "layerskip", "language_model, layer_skip, eagle, ngram"),
        ("pairs/smollm2/drafts/layer_skip/layer", 8, '"layers"'),
        ("pairs/smollm2/drafts/layer_skip/layers", 0, "pairs.smollm2.drafts.layer_skip.layers is 0"),
        ("pairs/smollm2/drafts/head", {"kind": "eagle"}, "pairs.smollm2.drafts.head.head is missing"),
        ("pairs/smollm2/drafts/head", {"kind": "eagle", "head": ""}, "pairs.smollm2.drafts.head.head is"),
        ("pairs/smollm2/drafts/ngram/rule", "longst", '"longest"'),
        ("pairs/smollm2/drafts/ngram/min_ngram", 4, "min_ngram must not be above max_ngram"),
        ("pairs/qwen3/drafts/small/model", "qwen3-06b", '"qwen3-0.6b"'),
        ("pairs/qwen3/drafts/small/vocabulary_file", "tokens.txt", "vocabulary_file needs vocabulary"),
        ("pairs/qwen3/drafts/eagle3/vocabulary_file", "tokens.txt", "vocabulary_file needs vocabulary"),
        ("pairs/smollm2/drafts/eagle3/vocabulary", 0, "an integer from 1 to 1000000"),
        ("pairs/smollm2/drafts/small/model", "smollm2-smal", '"smollm2-small"'),
        ("models/smollm2-small/distilled/target", "qwen3-1.7b", "it was cut from qwen3-1.7b, but the pair's target is"),
        ("models/smollm2-small/distilled", {"folder": "x"}, "distilled.target is missing"),
        ("pairs/qwen3/drafts/small/vocabulary", 0, "an integer from 1 to 1000000"),
        ("pairs/qwen3/chat/enable_thinking", "no", "true or false"),
        ("models/qwen3-1.7b", {}, "one of path, hub, wheel or distilled"),
        ("models/smollm2-135m-instruct/wheel/sha256", "abc", "wheel.sha256"),
        ("calibration/smollm3", {}, '"smollm2"'),
        ("calibration/smollm2/smal", {"provenance": "x"}, "unknown draft of smollm2"),
        ("calibration/smollm2/ngram/best_k", 0, K),
        ("calibration/smollm2/ngram/thresholds", {"max_prob": 2}, "a number from 0 to 1"),
        ("draft_source", "shiped", "allowed: shipped, train"),
        ("draft_recipe", "fast", "allowed: full, quick"),
        ("pairs/smollm2/dynamic", ["eagle3", "ngram"], "pairs.smollm2.dynamic is"),
        ("pairs/smollm2/dynamic", ["eagle"], '"eagle3"'),
        ("pairs/smollm2/optional", ["small"], "the primary draft carries the study"),
        ("pairs/qwen3/optional", ["eagle3_publik"], '"eagle3_public"'),
        ("training/smollm3", {"text": {"folder": "x"}}, '"smollm2"'),
        ("training/smollm2/drafts/eagle4", RECIPES, '"eagle3"'),
        ("training/smollm2/drafts/layer_skip", RECIPES, "layer_skip is not trained (its kind is layer_skip)"),
        ("training/smollm2/drafts/small", RECIPES, "is not trained so; allowed: distill"),
        ("training/smollm2/drafts/eagle3", DISTILLED, "is not trained so; allowed: eagle3, eagle1"),
        ("training/smollm2/drafts/small_restricted", DISTILLED, "the recipe of small trains its model already"),
        ("training/smollm2/drafts/eagle3_whole", RECIPES, "the recipe of eagle3 trains its head already"),
        ("training/qwen3/drafts/small", DISTILLED, "its model qwen3-0.6b is not distilled here"),
        ("training/smollm2/drafts/small/full/layers", None, "layers must say which of the target's"),
        ("training/smollm2/drafts/small/full/loss", "kl", "allowed: forward_kl"),
        ("training/smollm2/drafts/small/full/prompt", 64, "prompt is no setting of the method distill"),
        ("training/smollm2/drafts/eagle3/full/layers", [0], "layers is no setting of the method eagle3"),
        ("training/smollm2/text", {}, "either `folder`"),
        ("training/smollm2/drafts/eagle3/full/at_least", 0.5, "tokens per round at K = 4 are a number from 1 to 5"),
        ("training/smollm2/drafts/eagle3/full/noise", 0.1, "noise is no setting of the method eagle3"),
        ("training/smollm2/drafts/eagle3/full/token_passes", 0, "a number of tokens is an integer"),
        ("training/smollm2/drafts/eagle3/full/rate", 0.1, "rate: unknown key"),
        ("prompts/own_kind", 0, "own_kind is 0"),
        ("studies/default/draft_depths", [33], K),
    ],
)
def test_every_mistake_is_answered_by_name(raw, path, value, expected):
    assert expected in message(raw, path, value)


def test_a_missing_section_is_named(raw):
    data = {key: value for key, value in raw.items() if key != "run"}
    with pytest.raises(UserError, match="config: run is missing"):
        load_mapping(data)


def test_further_mistakes_are_counted(raw):
    data = put(put(raw, "experiments/fixed_k/k", [0]), "run/dtype", "bf16")
    with pytest.raises(UserError, match=r"\(and 1 more\)"):
        load_mapping(data)


def test_files_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(UserError, match="no such file"):
        load(tmp_path / "none.yaml")
    (tmp_path / "broken.yaml").write_text("pair: [")
    with pytest.raises(UserError, match="not YAML"):
        load(tmp_path / "broken.yaml")
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(UserError, match="a mapping"):
        load(tmp_path / "list.yaml")


def test_keys_with_a_default_may_be_left_out(raw):
    data = put(raw, "run", {})
    data.pop("calibration")
    config = load_mapping(data)
    assert (config.run.dtype, config.run.threads, config.calibrated("layer_skip")) == ("bfloat16", None, None)


def test_the_users_folder_wins(changed):
    assert changed("pair", "smollm2").target_path() == Path("resources/models/smollm2-135m-instruct")
    config = changed("models/smollm2-135m-instruct/path", "my models/smol")
    assert config.target_path() == Path("my models/smol")
    assert not config.model("smollm2-135m-instruct").made_here


def test_only_calibrated_thresholds_in_the_default_study(changed):
    known = {"smollm2": {"layer_skip": {"thresholds": {"max_prob": 0.45}, "provenance": "elsewhere"}}}
    config = changed("calibration", known)
    assert config.thresholds("layer_skip", "max_prob") == [0.45]
    full = changed("study", "full")
    assert full.thresholds("layer_skip", "max_prob") == full.experiments.dynamic_k.thresholds.max_prob
    assert full.thresholds("layer_skip", "history") == [None]
    uncalibrated = changed("calibration", {})
    assert len(uncalibrated.thresholds("layer_skip", "max_prob")) > 1


def test_the_schema_file_is_the_one_of_the_types():
    written = (ROOT / "workflow" / "schemas" / "config.schema.json").read_text(encoding="utf-8")
    assert written == schema.schema(), "run: python -m workflow.study.schema"
