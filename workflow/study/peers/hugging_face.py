"""Transformers' own `generate`: plain, with an assistant model, with prompt lookup, and with an early exit of the
target.

Greedy, with the end of text switched off, so that every prompt gives the same number of tokens as in the other arms.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from specdec.models.loading import dtype_of
from workflow.study.config import LanguageModelDraft, LayerSkipDraft, NgramDraft, StudyConfig
from workflow.study.peers.base import AR, MODES, Arm, Setting, Timed, TokenBytes, arrivals

NAME = "transformers"
PRECISION = None


def arms(setting: Setting) -> Iterator[Arm]:
    """Those that the pair has a counterpart for."""
    config, precision, k = setting.config, setting.config.run.dtype, setting.k
    torch.set_num_threads(config.threads())
    target = load(config, config.target_path())
    yield Arm(
        NAME,
        AR,
        None,
        precision,
        lambda ids, tokens: generate(target, ids, tokens),
        token_bytes=TokenBytes(setting.weight_bytes, setting.row_bytes),
    )
    for name, spec in config.plain_drafts().items():
        if isinstance(spec, LanguageModelDraft) and spec.vocabulary is not None:
            continue  # a head cut to some ids is known to no other tool; the whole draft is an arm already
        if isinstance(spec, LanguageModelDraft):
            path = config.model_path(spec.model)
            if not (path / "config.json").is_file():
                yield Arm(NAME, MODES[spec.kind], name, precision, None, f"missing: no config.json in {path}")
                continue
            own = {"assistant_model": load(config, path)}
            yield Arm(NAME, MODES[spec.kind], name, precision, _with(target, own), "its own schedule of depths")
            options = {"assistant_model": assistant(load(config, path), k)}
        elif isinstance(spec, NgramDraft):
            options = {"prompt_lookup_num_tokens": k, "max_matching_ngram_size": spec.max_ngram}
        elif isinstance(spec, LayerSkipDraft) and not (spec.skip_attention or spec.skip_mlp):
            # the assistant is the target itself, whose own settings then say how it drafts
            options = {"assistant_early_exit": spec.layers} | fixed(k)
        else:
            continue
        yield Arm(NAME, MODES[spec.kind], name, precision, _with(target, options))


def _with(target, options: dict) -> Callable[[Sequence[int], int], Timed]:
    return lambda ids, tokens: generate(target, ids, tokens, **options)


def load(config: StudyConfig, path: Path):
    """Transformers' model, endless and greedy."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype_of(config.run.dtype)).to(config.run.device).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def fixed(k: int) -> dict:
    """Settings of an assistant that drafts exactly K tokens."""
    return {
        "num_assistant_tokens": k,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }


def assistant(model, k: int):
    for name, value in fixed(k).items():
        setattr(model.generation_config, name, value)
    return model


class _Arrivals:
    """A streamer that notes when how many ids arrived; the first call brings the prompt."""

    def __init__(self):
        self.times: list[tuple[float, int]] = []
        self._prompt = True

    def put(self, value: torch.Tensor) -> None:
        if self._prompt:
            self._prompt = False
            return
        self.times.append((time.perf_counter(), value.numel()))

    def end(self) -> None:
        pass


def generate(model, ids: Sequence[int], tokens: int, **options) -> Timed:
    prompt, streamer = torch.tensor([list(ids)], device=model.device), _Arrivals()
    with torch.inference_mode():
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=tokens,
            streamer=streamer,
            **options,
        )
    return arrivals(streamer.times, output[0, len(ids) :].tolist())
