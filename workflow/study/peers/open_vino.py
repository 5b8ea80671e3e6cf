"""OpenVINO GenAI: plain, and with its prompt lookup.

It reads GGUF files, though not in bf16: weights are the target's own, brought to float16 by llama.cpp, which
therefore has to be there too.  Arithmetic is in bf16 where the processor has it, as in the other arms.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from specdec.errors import UserError
from workflow.study.config import LanguageModelDraft, NgramDraft
from workflow.study.peers import gguf_files
from workflow.study.peers.base import AR, MODES, Arm, Setting, Timed, TokenBytes, arrivals
from workflow.study.peers.llamacpp import requantised

NAME = "openvino"
PRECISION = "float16"


def arms(setting: Setting) -> Iterator[Arm]:
    """Raises `ImportError` where it or llama.cpp is absent."""
    import openvino_genai  # noqa: F401

    config, k = setting.config, setting.k
    name, threads = config.pair_in_force().target, config.threads()
    path = _half(gguf_files.shipped(config, name))
    plain = Model(path, threads)
    yield Arm(
        NAME,
        AR,
        None,
        PRECISION,
        plain.generate,
        token_bytes=TokenBytes(path.stat().st_size, setting.row_bytes),
    )
    for draft, spec in config.plain_drafts().items():
        if isinstance(spec, NgramDraft):
            settings = {"num_assistant_tokens": k, "max_ngram_size": spec.max_ngram}
            looking = Model(path, threads, settings, {"prompt_lookup": True})
            yield Arm(NAME, MODES[spec.kind], draft, PRECISION, looking.generate)
        elif isinstance(spec, LanguageModelDraft) and spec.vocabulary is None:
            note = "missing: this tool does not read a draft from a GGUF file"
            yield Arm(NAME, MODES[spec.kind], draft, PRECISION, None, note)


def _half(source: Path) -> Path:
    """The same weights in float16."""
    import llama_cpp

    return requantised(source, source.with_name("f16.gguf"), llama_cpp.LLAMA_FTYPE_MOSTLY_F16)


class Model:
    """A pipeline with the settings of its draft."""

    def __init__(self, path: Path, threads: int, settings: dict | None = None, options: dict | None = None):
        import openvino_genai as genai

        try:
            self._pipeline = genai.LLMPipeline(str(path), "CPU", INFERENCE_NUM_THREADS=threads, **(options or {}))
        except RuntimeError as error:
            raise UserError(f"OpenVINO does not read {path.name}: {str(error).strip().splitlines()[-1]}") from error
        self._settings = settings or {}

    def generate(self, ids: Sequence[int], tokens: int) -> Timed:
        """Greedy; the end of text is a token like any other."""
        import openvino
        import openvino_genai as genai

        config = genai.GenerationConfig()
        config.max_new_tokens, config.do_sample, config.ignore_eos = tokens, False, True
        for name, value in self._settings.items():
            setattr(config, name, value)
        times: list[tuple[float, int]] = []

        class Arrivals(genai.StreamerBase):
            def write(self, token):
                times.append((time.perf_counter(), len(token) if isinstance(token, list) else 1))
                return genai.StreamingStatus.RUNNING

            def end(self):
                pass

        prompt = openvino.Tensor(np.array([list(ids)], dtype=np.int64))
        found = self._pipeline.generate(prompt, config, Arrivals())
        return arrivals(times, list(found.tokens[0]))
