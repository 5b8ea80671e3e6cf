"""A checkpoint is read whole and right, or refused with one message that says what is wrong."""

import pytest
import torch

from specdec.decode import Request, autoregressive
from specdec.errors import UserError
from specdec.models.config import ModelConfig
from specdec.models.gguf import GGUFFile
from specdec.models.loading import load_model
from tests.helpers import tiny

PROMPT = tiny.prompt_of(12)


def logits_of(loaded, prompt=PROMPT):
    return loaded.model.forward(prompt, loaded.model.new_cache(64)).logits


@pytest.fixture
def folder(tmp_path):
    """A single-file checkpoint that a test may damage."""
    tiny.checkpoint(tmp_path / "model")
    return tmp_path / "model"


def refusal(path, **options) -> str:
    with pytest.raises(UserError) as caught:
        load_model(path, dtype="float32", **options)
    return str(caught.value)


@pytest.mark.parametrize("form", ["single", "shards", "bin"])
@pytest.mark.parametrize("variant", ["llama", "qwen2", "qwen3-tied"])
def test_every_file_form_gives_the_same_model(tmp_path, variant, form):
    theirs = tiny.checkpoint(tmp_path, variant, form=form)
    assert form != "shards" or len(list(tmp_path.glob("model-*.safetensors"))) > 1
    loaded = load_model(tmp_path, dtype="float32")
    torch.testing.assert_close(logits_of(loaded), tiny.logits_of(theirs, PROMPT), rtol=0, atol=1e-4)
    assert loaded.model.vocabulary == len(loaded.tokenizer) == tiny.VOCABULARY


@pytest.mark.parametrize("variant", ["llama", "llama-tied", "qwen2", "qwen3"])
def test_a_gguf_file_gives_the_model_it_was_written_from(tmp_path, variant):
    theirs = tiny.reference(variant)
    tiny.gguf(tmp_path / "model.gguf", theirs)
    loaded = load_model(tmp_path / "model.gguf", dtype="float32")
    torch.testing.assert_close(logits_of(loaded), tiny.logits_of(theirs, PROMPT), rtol=0, atol=1e-4)
    assert loaded.tokenizer.eos_ids == (tiny.EOS,)
    assert loaded.tokenizer.chat([{"role": "user", "content": "the cat"}])[0] == tiny.BOS


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_1", "Q4_0"])
@pytest.mark.parametrize("variant", ["llama", "qwen2"])
def test_a_gguf_file_holds_the_tensors_that_transformers_reads_from_it(tmp_path, variant, kind):
    from transformers import AutoModelForCausalLM

    tiny.gguf(tmp_path / "model.gguf", tiny.reference(variant), kind=kind)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32).state_dict()
    ours = dict(GGUFFile(tmp_path / "model.gguf").tensors())
    assert set(ours) == set(theirs)
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


WIDE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
@pytest.mark.parametrize("variant", ["llama", "llama-tied", "qwen2", "qwen3"])
def test_weights_as_a_gguf_file_has_them_are_the_same_model(tmp_path, variant, kind):
    """Bit for bit, for any width, in the engine and without it."""
    tiny.gguf(tmp_path / "model.gguf", tiny.reference(variant, **WIDE), kind=kind)
    models = [load_model(tmp_path / "model.gguf", weights=weights) for weights in (None, "stored")]
    whole, held = (loaded.model for loaded in models)
    for width in (1, 5, len(PROMPT)):
        logits = [model.forward(PROMPT[:width], model.new_cache(64)).logits for model in (whole, held)]
        assert torch.equal(*logits)
    assert models[0].model_id == models[1].model_id
    if whole.native is not None:
        assert held.formats == {kind.lower()}
        assert held.weight_bytes() < {"Q8_0": 0.56, "Q4_1": 0.36}[kind] * whole.weight_bytes()


@pytest.mark.parametrize("format", ["q8_0", "q4_1"])
def test_a_model_may_be_rounded_to_a_format(tmp_path, format):
    tiny.checkpoint(tmp_path, "llama", **WIDE)
    rounded = load_model(tmp_path, weights=format).model
    whole = load_model(tmp_path).model
    off = rounded.forward(PROMPT, rounded.new_cache(64)).logits - whole.forward(PROMPT, whole.new_cache(64)).logits
    assert 0 < off.std() < {"q8_0": 0.05, "q4_1": 0.5}[format] * whole.forward(PROMPT, whole.new_cache(64)).logits.std()


def test_weights_held_in_what_is_not_there_are_refused(folder, tmp_path):
    with pytest.raises(UserError, match=r"weights: stored keeps the matrices of a GGUF file, and this is none"):
        load_model(folder, weights="stored")
    with pytest.raises(UserError, match='weights "q2_k"'):
        load_model(folder, weights="q2_k")
    tiny.gguf(tmp_path / "plain.gguf", kind="F16")
    with pytest.raises(UserError, match="holds no matrix in Q8_0 or Q4_1"):
        load_model(tmp_path / "plain.gguf", weights="stored")
    with pytest.raises(UserError, match="weights: stored goes with dtype bfloat16, not float32"):
        load_model(tmp_path / "plain.gguf", weights="stored", dtype="float32")


def test_a_tied_checkpoint_may_store_its_head_as_well(tmp_path):
    theirs = tiny.checkpoint(tmp_path, "llama-tied")

    def add_head(weights):
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()

    tiny.edit_weights(tmp_path, add_head)
    loaded = load_model(tmp_path, dtype="float32")
    torch.testing.assert_close(logits_of(loaded), tiny.logits_of(theirs, PROMPT), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_the_dtype_asked_for_is_the_dtype_served(folder, dtype):
    loaded = load_model(folder, dtype=dtype)
    assert loaded.model.dtype == getattr(torch, dtype) == loaded.model.new_cache(8).keys.dtype
    assert torch.isfinite(logits_of(loaded)).all()


def test_an_unknown_dtype_names_those_that_are_known(folder):
    with pytest.raises(UserError, match=r'unknown dtype "bf16".*bfloat16.*float32'):
        load_model(folder, dtype="bf16")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_named(folder):
    assert 'device "cuda"' in refusal(folder, device="cuda")


# -- refused by configuration, before a weight is read ----------------------------------------------------------------

CONFIGURATIONS = {
    "unknown model_type": ({"model_type": "gpt2"}, ["gpt2", "llama", "mistral", "qwen2", "qwen3"]),
    "near miss": ({"model_type": "qwen33"}, ["qwen33", "qwen3"]),
    "sliding window of Mistral": ({"model_type": "mistral", "sliding_window": 8}, ["sliding", "8"]),
    "sliding window switched on": (
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8},
        ["sliding", "8"],
    ),
    "sliding layers": (
        {"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]},
        ["sliding"],
    ),
    "mixture of experts": ({"num_local_experts": 8}, ["mixture of experts", "num_local_experts", "8"]),
    "mixture of experts of Qwen": ({"model_type": "qwen3", "num_experts": 4}, ["num_experts", "4"]),
    "rope type": ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "rope_parameters": None}, ["yarn", "llama3"]),
    "rope type, newer key": ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}}, ["dynamic", "llama3"]),
    "rope type, oldest key": ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": None}, ["linear"]),
    "activation": ({"hidden_act": "gelu"}, ["hidden_act", "gelu", "silu"]),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, ["quantised"]),
    "partial rotary": ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor", "0.5"]),
    "missing key": ({"hidden_size": None}, ["hidden_size", "missing"]),
    "missing context": ({"max_position_embeddings": None}, ["max_position_embeddings", "missing"]),
}


@pytest.mark.parametrize("changes, words", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_a_configuration_that_is_not_covered_is_refused_by_name(folder, changes, words):
    (folder / "model.safetensors").write_bytes(b"")  # never looked at
    tiny.edit_json(folder / "config.json", **changes)
    message = refusal(folder)
    assert str(folder) in message and "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("kind", ["older", "newer"])
def test_both_spellings_of_rotary_settings_mean_the_same(kind):
    raw = tiny.reference("llama3-rope").config.to_dict()
    expected = ModelConfig.from_dict(raw, "test")
    assert expected.rope_scaling is not None and expected.rope_theta == 10000.0
    if kind == "older":
        parameters = dict(raw.pop("rope_parameters"))
        raw["rope_theta"] = parameters.pop("rope_theta")
        raw["rope_scaling"] = parameters
    assert ModelConfig.from_dict(raw, "test") == expected


def test_qwens_window_that_is_switched_off_is_no_window():
    raw = tiny.reference("qwen2").config.to_dict() | {"use_sliding_window": False, "sliding_window": 4096}
    ModelConfig.from_dict(raw, "test")


# -- refused for their files ------------------------------------------------------------------------------------------


def test_a_missing_folder_is_named(tmp_path):
    assert "no such folder or file" in refusal(tmp_path / "nowhere")


def test_a_folder_without_configuration_is_named(folder):
    (folder / "config.json").unlink()
    assert "config.json" in refusal(folder)


def test_a_broken_configuration_is_named(folder):
    (folder / "config.json").write_text("{")
    message = refusal(folder)
    assert "config.json" in message and "JSON" in message


def test_a_folder_without_weights_says_what_was_looked_for(folder):
    (folder / "model.safetensors").unlink()
    message = refusal(folder)
    assert "model.safetensors" in message and "pytorch_model.bin" in message


def test_a_missing_shard_is_named(tmp_path):
    tiny.checkpoint(tmp_path, form="shards")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.unlink()
    assert shard.name in refusal(tmp_path)


@pytest.mark.parametrize("form", ["single", "bin"])
@pytest.mark.parametrize("kept", [0, 4, 0.5, 0.999])
def test_a_truncated_weight_file_is_named(tmp_path, form, kept):
    tiny.checkpoint(tmp_path, form=form)
    file = tmp_path / ("model.safetensors" if form == "single" else "pytorch_model.bin")
    whole = file.read_bytes()
    file.write_bytes(whole[: kept if isinstance(kept, int) else int(kept * len(whole))])
    assert file.name in refusal(tmp_path)


def test_a_pickle_that_runs_code_is_refused_and_not_run(tmp_path):
    tiny.checkpoint(tmp_path, form="bin")

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save({"model.norm.weight": Evil()}, tmp_path / "pytorch_model.bin")
    assert "pytorch_model.bin" in refusal(tmp_path)
    assert not (tmp_path / "ran").exists()


def _drop(name):
    return lambda weights: weights.pop(name)


def _add(name):
    return lambda weights: weights.update({name: torch.zeros(3)})


def _reshape(name, shape):
    return lambda weights: weights.update({name: torch.zeros(shape)})


DAMAGES = {
    "missing": (_drop("model.layers.1.mlp.up_proj.weight"), ["model.layers.1.mlp.up_proj.weight", "missing"]),
    "missing head": (_drop("lm_head.weight"), ["lm_head.weight", "missing"]),
    "extra": (_add("model.layers.0.self_attn.q_proj.bias"), ["model.layers.0.self_attn.q_proj.bias", "llama"]),
    "extra layer": (_add("model.layers.2.mlp.up_proj.weight"), ["model.layers.2.mlp.up_proj.weight"]),
    "misshapen": (_reshape("model.norm.weight", (31,)), ["model.norm.weight", "(31,)", "(32,)"]),
    "misshapen product": (
        _reshape("model.layers.0.self_attn.k_proj.weight", (32, 32)),
        ["model.layers.0.self_attn.k_proj.weight", "(32, 32)", "(16, 32)"],
    ),
    "missing embedding rows": (
        _reshape("model.embed_tokens.weight", (92, 32)),
        ["model.embed_tokens.weight", "(92, 32)", "(97, 32)"],
    ),
}


@pytest.mark.parametrize("change, words", DAMAGES.values(), ids=DAMAGES)
def test_tensors_that_do_not_fit_the_configuration_are_named(folder, change, words):
    tiny.edit_weights(folder, change)
    message = refusal(folder)
    for word in (str(folder), *words):
        assert word in message


def test_old_rotary_buffers_are_not_in_the_way(folder):
    tiny.edit_weights(folder, _add("model.layers.0.self_attn.rotary_emb.inv_freq"))
    load_model(folder, dtype="float32")


def test_a_folder_without_a_tokenizer_is_named(folder):
    for file in folder.glob("tokenizer*"):
        file.unlink()
    message = refusal(folder)
    assert str(folder) in message and "tokenizer" in message


def test_gguf_files_that_are_not_covered_are_refused_by_name(tmp_path):
    tiny.gguf(tmp_path / "scaled.gguf", scaling="yarn")
    assert "rotary scaling" in refusal(tmp_path / "scaled.gguf")
    tiny.gguf(tmp_path / "odd.gguf", extra_tensor="blk.0.attn_sinks.weight")
    assert "blk.0.attn_sinks.weight" in refusal(tmp_path / "odd.gguf")
    tiny.gguf(tmp_path / "whole.gguf")
    whole = (tmp_path / "whole.gguf").read_bytes()
    for kept in (0, 20, len(whole) // 2, len(whole) - 100):
        (tmp_path / "cut.gguf").write_bytes(whole[:kept])
        assert "cut.gguf" in refusal(tmp_path / "cut.gguf")


# -- the vocabulary ---------------------------------------------------------------------------------------------------


def test_padding_the_vocabulary_is_asked_for_never_done_in_silence(tmp_path):
    tiny.checkpoint(tmp_path, vocabulary=97, vocab_size=92)
    message = refusal(tmp_path)
    assert "97" in message and "92" in message and "pad_vocabulary" in message
    loaded = load_model(tmp_path, dtype="float32", pad_vocabulary=True)
    logits = logits_of(loaded, tiny.prompt_of(12, vocabulary=92))
    assert logits.shape[1] == 97
    assert torch.equal(logits[:, 92:], torch.zeros(12, 5))
    theirs = tiny.reference("llama", vocab_size=92)
    plain = tiny.logits_of(theirs, tiny.prompt_of(12, vocabulary=92))
    torch.testing.assert_close(logits[:, :92], plain, rtol=0, atol=1e-4)


def test_ids_beyond_the_tokenizer_are_never_emitted(tmp_path):
    """Embedding rows that only pad the matrix to a round size may hold anything."""
    tiny.checkpoint(tmp_path, vocabulary=90)

    def shout(weights):
        head = weights["lm_head.weight"]
        head[90:] = 100 * torch.sign(torch.randn(7, head.shape[1], generator=torch.Generator().manual_seed(0)))

    tiny.edit_weights(tmp_path, shout)
    loaded = load_model(tmp_path, dtype="float32")
    request = Request(tiny.prompt_of(6, vocabulary=90), max_new_tokens=20)
    record = autoregressive(loaded.model, request).run()
    assert loaded.model.vocabulary == 90 and max(record.output_ids) < 90


def test_the_model_id_changes_with_weights_configuration_and_tokenizer(folder):
    before = load_model(folder, dtype="float32").model_id
    assert load_model(folder, dtype="float64").model_id == before
    seen = {before}

    def nudge(weights):
        weights["model.norm.weight"][0] += 1

    tiny.edit_weights(folder, nudge)
    seen.add(load_model(folder, dtype="float32").model_id)
    tiny.edit_json(folder / "config.json", rms_norm_eps=1e-3)
    seen.add(load_model(folder, dtype="float32").model_id)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    seen.add(load_model(folder, dtype="float32").model_id)
    assert len(seen) == 4


def test_a_hub_id_that_cannot_be_fetched_says_how_to(monkeypatch):
    import huggingface_hub

    def offline(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    assert "hf download someone/some-model" in refusal("someone/some-model")
