"""A distilled draft becomes a whole model, which others load, or is refused and nothing is written."""

from __future__ import annotations

import json

import pytest
import torch

from specdec.errors import UserError
from specdec.models import load_model
from specdec.training.assemble import assemble, cut_config, write_draft
from tests.helpers import tiny
from tests.helpers.small import module_of


@pytest.mark.parametrize("variant", ["llama", "qwen3-tied"])
def test_transformers_loads_an_assembled_model_and_computes_what_we_do(tmp_path, variant):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tiny.checkpoint(tmp_path / "target", variant, layers=4)
    module = module_of(variant)
    write_draft(
        tmp_path / "draft",
        cut_config(json.loads((tmp_path / "target" / "config.json").read_text()), 2),
        module.weights(),
    )
    size = (tmp_path / "draft" / "model.safetensors").stat().st_size
    assert size < 2 * sum(p.numel() for p in module.parameters()) + 4000, "nothing of the target's is stored"
    assemble(tmp_path / "draft", tmp_path / "target", tmp_path / "whole")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "whole", dtype=torch.float32)
    assert theirs.config.num_hidden_layers == 2
    loaded = load_model(tmp_path / "whole", dtype="float32")
    text = tiny.prompt_of(20)
    ours = loaded.model.forward(text, loaded.model.new_cache(32)).logits
    torch.testing.assert_close(ours, tiny.logits_of(theirs, text), rtol=1e-4, atol=1e-4)
    target = load_model(tmp_path / "target", dtype="float32")
    assert loaded.tokenizer.fingerprint == target.tokenizer.fingerprint
    assert loaded.tokenizer.eos_ids == target.tokenizer.eos_ids
    assert AutoTokenizer.from_pretrained(tmp_path / "whole").chat_template == tiny.CHAT_TEMPLATE


def test_a_draft_of_another_target_and_a_folder_of_something_else_are_refused(tmp_path):
    tiny.checkpoint(tmp_path / "target", layers=4)
    raw, weights = cut_config(tiny.reference("llama", 4).config.to_dict(), 2), module_of().weights()
    write_draft(tmp_path / "other", raw | {"vocab_size": 50}, weights)
    with pytest.raises(UserError, match="vocab_size = 50, but that of .* is 97"):
        assemble(tmp_path / "other", tmp_path / "target", tmp_path / "out")
    write_draft(tmp_path / "few", raw | {"num_hidden_layers": 3}, weights)
    with pytest.raises(UserError, match=r"tensor model.layers.2.*is missing"):
        assemble(tmp_path / "few", tmp_path / "target", tmp_path / "out")
    write_draft(tmp_path / "draft", raw, weights)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="something else than a model is there"):
        assemble(tmp_path / "draft", tmp_path / "target", tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine" and not (tmp_path / "out").exists()
