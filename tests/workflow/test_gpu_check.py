"""`env/gpu-check`: rehearsed on the CPU, with what it says when something is wrong or no GPU is there."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
import torch

from specdec.measure.bandwidth import device_bandwidth
from specdec.static import StaticDecoder
from tests.workflow.conftest import ROOT
from workflow.study import gpu_check


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    """One rehearsal: its exit code and its file."""
    output = tmp_path_factory.mktemp("gpu") / "deep" / "check.json"
    code = gpu_check.main(["--rehearse", "--output", str(output)])
    return code, json.loads(output.read_text("utf-8"))


def test_a_rehearsal_passes_and_says_that_it_is_one(rehearsed):
    code, found = rehearsed
    assert code == 0 and found["passed"] and found["rehearsal"]
    assert found["machine"]["device"] == "cpu" and found["machine"]["accelerator"] is None
    assert not found["speed"]["captured"]


def test_texts_are_compared_greedily_and_by_rejection_with_and_without_a_draft(rehearsed):
    found = rehearsed[1]["equality"]
    for name in ("greedy_k0", "greedy_k4", "rejection_k0", "rejection_k4"):
        assert found[name]["same"] == found[name]["texts"] == 2
    assert found["greedy_k4"]["accepted"] > 0 and found["rejection_k4"]["accepted"] > 0


def test_every_way_to_decode_is_timed_and_held_against_the_bandwidth(rehearsed):
    found = rehearsed[1]["speed"]
    assert set(found["ms_per_round"]) == {"ar_eager", "ar_static", "ar_static_padded", "chain_eager", "chain_static"}
    for name in ("ar_eager", "ar_static", "ar_static_padded"):
        ms = found["ms_per_round"][name]["ms"]
        assert found[name]["tokens_per_s"] == pytest.approx(1000 / ms)
        share = found["read_bytes"] / (ms / 1000) / found["read_bytes_per_s"]
        assert found[name]["bandwidth_utilisation"] == pytest.approx(share)
    for way in ("static", "eager"):
        price = found["ms_per_round"][f"chain_{way}"]["ms"] / found["ms_per_round"][f"ar_{way}"]["ms"]
        assert found[f"chain_{way}"]["price"] == pytest.approx(price)


def test_the_shapes_on_a_gpu_are_the_published_ones():
    scale, rehearsal = gpu_check.scales()
    assert (scale.device, scale.dtype) == ("cuda", "bfloat16") and rehearsal.device == "cpu"
    assert [(c.hidden_size, c.layers, c.vocab_size) for c in (scale.target, scale.draft)] == [
        (2048, 28, 151_936),
        (1024, 28, 151_936),
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path, capsys):
    output = tmp_path / "check.json"
    assert gpu_check.main(["--output", str(output)]) == gpu_check.NO_DEVICE == 3
    assert "sees no CUDA device" in capsys.readouterr().err and not output.exists()


def test_a_text_that_differs_is_a_failed_check(monkeypatch):
    """A static loop that goes wrong is seen."""

    class Wrong(StaticDecoder):
        def generation(self, request, clock=None):
            made = super().generation(request, clock)
            made._request = replace(request, stop=lambda ids: 3 if len(ids) >= 3 else None)
            return made

    monkeypatch.setattr(gpu_check, "StaticDecoder", Wrong)
    found = gpu_check.equality(replace(gpu_check.scales()[1], texts=1))
    assert not found["passed"] and found["greedy_k0"]["same"] == 0


def test_a_check_that_fails_stops_no_other_and_none_begins_too_late(monkeypatch):
    def broken(scale):
        raise RuntimeError("CUDA error: out of patience\nmore")

    ticks = iter([0, 0, 10, 10, 400, 400, 400])
    monkeypatch.setattr(gpu_check, "CHECKS", {"a": broken, "b": lambda s: {"passed": True}, "c": broken})
    found = gpu_check.run(gpu_check.scales()[1], True, now=lambda: next(ticks))
    assert found["a"] == {"passed": False, "error": "RuntimeError: CUDA error: out of patience", "seconds": 10}
    assert found["b"]["passed"] and found["c"]["error"].startswith("not begun: 400 s") and not found["passed"]


def test_the_command_can_be_run():
    assert os.access(ROOT / "env" / "gpu-check", os.X_OK)
    assert "python -m workflow.study.gpu_check" in (ROOT / "env" / "gpu-check").read_text("utf-8")


def test_an_accelerators_bandwidth_is_bytes_over_the_fastest_pass():
    found = device_bandwidth(torch.device("cpu"), size=2**20, passes=3)
    assert found.method == "torch" and found.bytes_per_s > 0
