"""A head's file is read whole and right, whoever wrote it, or refused with one message that says what is wrong."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec.errors import UserError
from specdec.models.config import Llama3Scaling
from specdec.models.eagle_files import read_head, write_head
from tests.helpers import heads, tiny

SIZE = 30
USED = heads.vocabulary_of(SIZE)


def target_config(variant: str = "llama"):
    return heads.target_of(variant).config


def rounded(weights):
    return {name: value.to(torch.bfloat16) for name, value in weights.items()}


def same(found, expected):
    assert set(found) == set(expected)
    for name in expected:
        torch.testing.assert_close(found[name].float(), expected[name].float(), rtol=0, atol=0, msg=name)


@pytest.fixture
def folder(tmp_path):
    """A written EAGLE-3 head that a test may damage."""
    config = heads.config_of(3, SIZE, trained_depth=4)
    write_head(tmp_path, config, heads.weights_of(config), USED, tiny.VOCABULARY)
    return tmp_path


def change(folder, edit=None, **settings):
    if edit:
        tensors = load_file(folder / "model.safetensors")
        edit(tensors)
        save_file(tensors, folder / "model.safetensors")
    tiny.edit_json(folder / "config.json", **settings)


def refusal(folder, variant="llama") -> str:
    with pytest.raises(UserError) as caught:
        read_head(folder, target_config(variant))
    assert str(folder) in str(caught.value)
    return str(caught.value)


SCALING = Llama3Scaling(8.0, 1.0, 4.0, 32)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"taps": (0, 1, 4)},
        {"norm_before_residual": True},
        {"rope_scaling": SCALING},
        {"layers": 3},
        {"rope_theta": 123.0, "heads": 8, "head_dim": 16, "kv_heads": 4, "intermediate_size": 48, "eps": 1e-3},
    ],
)
def test_what_is_written_is_read(tmp_path, changes):
    config = heads.config_of(3, SIZE, trained_depth=4, **changes)
    weights = heads.weights_of(config)
    write_head(tmp_path, config, weights, USED, tiny.VOCABULARY)
    found, tensors, used = read_head(tmp_path, target_config())
    assert found == config and torch.equal(used, USED)
    same(tensors, rounded(weights))


@pytest.mark.parametrize("bias", [False, True])
def test_an_eagle_1_head_is_written_and_read_with_and_without_its_bias(tmp_path, bias):
    config = heads.config_of(1, trained_depth=1)
    weights = heads.weights_of(config) | ({"fc.bias": torch.randn(config.hidden_size)} if bias else {})
    write_head(tmp_path, config, weights, None, tiny.VOCABULARY)
    found, tensors, used = read_head(tmp_path, target_config())
    assert found == config and used is None
    same(tensors, rounded(weights))
    assert json.loads((tmp_path / "config.json").read_text())["bias"] is bias
    assert "layers.0.self_attn.q_proj.weight" in load_file(tmp_path / "model.safetensors")


def test_a_head_over_the_whole_vocabulary_needs_no_map(tmp_path):
    config = heads.config_of(3)
    write_head(tmp_path, config, heads.weights_of(config), None, tiny.VOCABULARY)
    found, _, used = read_head(tmp_path, target_config())
    assert used is None and found.draft_vocabulary == tiny.VOCABULARY


@pytest.mark.parametrize("size", [None, SIZE])
def test_a_head_that_decides_by_the_targets_rows_stores_none(tmp_path, size):
    config = heads.config_of(3, size, own_head=False)
    write_head(tmp_path, config, heads.weights_of(config), USED if size else None, tiny.VOCABULARY)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    found, tensors, used = read_head(tmp_path, target_config())
    assert found == config and (torch.equal(used, USED) if size else used is None)
    same(tensors, rounded(heads.weights_of(config)))
    if size is None:  # a null is how sglang says it
        raw = json.loads((tmp_path / "config.json").read_text())
        assert raw.pop("target_lm_head") and raw["draft_vocab_size"] is None
        (tmp_path / "config.json").write_text(json.dumps(raw))
        assert not read_head(tmp_path, target_config())[0].own_head
        change(tmp_path, draft_vocab_size=tiny.VOCABULARY)
        assert "tensor lm_head.weight is missing" in refusal(tmp_path)


def test_rows_beside_the_word_that_the_targets_are_taken_are_refused(folder):
    change(folder, target_lm_head=True)
    assert "tensor lm_head.weight is not part of an EAGLE-3 head" in refusal(folder)


def test_the_map_holds_offsets_and_its_mask_names_the_same_tokens(folder):
    stored = load_file(folder / "model.safetensors")
    assert torch.equal(torch.arange(SIZE) + stored["d2t"], USED)
    assert torch.equal(stored["t2d"].nonzero().flatten(), USED) and stored["t2d"].shape == (tiny.VOCABULARY,)


# -- dialects ---------------------------------------------------------------------------------------------------------


def test_safeailab_a_pickle_with_a_flat_config_and_default_taps(folder):
    config, weights, _ = read_head(folder, target_config())
    stored = load_file(folder / "model.safetensors")
    halves = {name: value.half() if value.is_floating_point() else value for name, value in stored.items()}
    torch.save(halves, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    change(folder, eagle_config=None, trained_depth=None, norm_before_residual=None, head_dim=None)
    found, tensors, used = read_head(folder, target_config())
    assert found == replace(config, trained_depth=0) and torch.equal(used, USED)
    same(tensors, {name: value.half() for name, value in weights.items()})


def test_specforge_its_layer_numbers_are_outputs_one_less_than_ours(folder):
    change(folder, eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}, norm_output=True)
    assert read_head(folder, target_config())[0].taps == (1, 2, 3)


def test_speculators_a_nested_config_layer_prefix_embedding_and_layer_inputs(folder):
    config, weights, _ = read_head(folder, target_config())
    raw = json.loads((folder / "config.json").read_text())
    embedding = torch.randn(tiny.VOCABULARY, config.hidden_size).to(torch.bfloat16)

    def rename(tensors):
        for name in [n for n in tensors if n.startswith("midlayer.")]:
            tensors[name.replace("midlayer.", "layers.0.")] = tensors.pop(name)
        tensors["embed_tokens.weight"] = embedding

    change(folder, rename)
    keys = ("num_attention_heads", "num_key_value_heads", "rms_norm_eps", "max_position_embeddings", "hidden_size")
    nested = {
        "speculators_model_type": "eagle3",
        "draft_vocab_size": SIZE,
        "norm_before_residual": True,
        "norm_before_fc": False,
        "norm_output": False,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 4],
        "transformer_layer_config": {key: raw[key] for key in keys}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}, "vocab_size": tiny.VOCABULARY},
    }
    (folder / "config.json").write_text(json.dumps(nested))
    found, tensors, _ = read_head(folder, target_config())
    expected = replace(config, norm_before_residual=True, taps=(1, 2, 4), rope_theta=77.0, trained_depth=0)
    assert found == expected
    same(tensors, weights | {"embedding": embedding})


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["fc.weight", "lm_head.weight", "norm.weight", "midlayer.mlp.up_proj.weight", "midlayer.self_attn.q_proj.weight"],
)
def test_a_missing_tensor_is_named(folder, name):
    change(folder, lambda tensors: tensors.pop(name))
    assert f"tensor {name} is missing" in refusal(folder)


@pytest.mark.parametrize("name", ["midlayer.self_attn.q_proj.bias", "layers.2.mlp.up_proj.weight", "input_norm.weight"])
def test_a_tensor_too_many_is_named(folder, name):
    change(folder, lambda tensors: tensors.update({name: torch.zeros(4)}))
    assert f"tensor {name} is not part of an EAGLE-3 head (1 in all)" in refusal(folder)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("fc.weight", (32, 64), "(32, 96)"),
        ("midlayer.self_attn.k_proj.weight", (8, 64), "(16, 64)"),
        ("midlayer.mlp.down_proj.weight", (32, 63), "(32, 64)"),
        ("norm.weight", (31,), "(32,)"),
        ("d2t", (29,), "(30,)"),
        ("t2d", (96,), "(97,)"),
    ],
)
def test_a_misshapen_tensor_is_named_with_both_shapes(folder, name, shape, expected):
    change(folder, lambda tensors: tensors.update({name: torch.zeros(shape, dtype=tensors[name].dtype)}))
    assert f"tensor {name} has shape {shape}, expected {expected}" in refusal(folder)


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda t: t["d2t"].zero_(), "d2t is all zero: the map was never set"),
        (lambda t: t["d2t"].fill_(90), "d2t does not map 30 draft tokens to different ids"),
        (lambda t: t["d2t"].sub_(50), "d2t does not map 30 draft tokens to different ids"),
        (lambda t: t["t2d"].logical_not_(), "t2d and d2t name different tokens"),
        (lambda t: t.pop("d2t"), "30 draft tokens but no d2t"),
    ],
)
def test_a_wrong_map_is_refused(folder, edit, text):
    change(folder, lambda tensors: (edit(tensors), None)[1])
    assert text in refusal(folder)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"norm_before_fc": True}, "norm_before_fc = True"),
        ({"fc_norm": True}, "fc_norm = True"),
        ({"norm_output": False}, "norm_output = False"),
        ({"hidden_act": "gelu"}, 'hidden_act = "gelu"'),
        ({"rope_scaling": {"rope_type": "yarn"}}, 'rope_type = "yarn"'),
        ({"draft_vocab_size": 32000}, "draft_vocab_size = 32000"),
        ({"head_dim": 64}, "head_dim = 64"),
        ({"hidden_size": 33}, "hidden_size = 33"),
        ({"num_attention_heads": None}, "config.json has no num_attention_heads"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 7]}}, "it taps layers [2, 3, 8], but the target"),
    ],
)
def test_a_setting_that_is_not_covered_is_named(folder, settings, text):
    change(folder, **settings)
    assert text in refusal(folder)


def test_folders_that_hold_no_head_are_refused(tmp_path):
    assert "there is no config.json" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "not valid JSON" in refusal(tmp_path)
    tiny.checkpoint(tmp_path / "model")
    with pytest.raises(UserError, match="not part of an EAGLE|missing"):
        read_head(tmp_path / "model", target_config())


def test_the_head_of_another_target_is_refused(folder):
    wide = tiny.transformer("llama", layers=4, hidden_size=64).config
    with pytest.raises(UserError, match="tensor fc.weight has shape|no embedding"):
        read_head(folder, wide)
