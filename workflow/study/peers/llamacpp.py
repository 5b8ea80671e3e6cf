"""llama.cpp through `llama-cpp-python`: plain, with its prompt lookup, and with a second model as the draft.

Weights are the target's own GGUF file, brought to bf16 by llama.cpp itself; the file as shipped is one more row.  Its
wrapper verifies drafts in Python, one sampled token at a time: what these rows show is what a user of the package gets.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np

from specdec.errors import UserError
from workflow.study.config import LanguageModelDraft, NgramDraft, StudyConfig
from workflow.study.peers import gguf_files
from workflow.study.peers.base import AR, MODES, Arm, Setting, Timed, TokenBytes, arrivals

NAME = "llama.cpp"
PRECISION = "bfloat16"


def arms(setting: Setting) -> Iterator[Arm]:
    """Raises `ImportError` where the package is absent."""
    import llama_cpp

    config, k, context = setting.config, setting.k, setting.context
    name, threads = config.pair_in_force().target, config.threads()
    shipped = gguf_files.shipped(config, name)
    full = requantised(shipped, shipped.with_name("bf16.gguf"), llama_cpp.LLAMA_FTYPE_MOSTLY_BF16)

    def token_bytes(path: Path):
        return TokenBytes(path.stat().st_size, setting.row_bytes)

    plain = Model(full, threads, context)
    yield Arm(NAME, AR, None, PRECISION, plain.generate, token_bytes=token_bytes(full))
    small = Model(shipped, threads, context)
    yield Arm(NAME, AR, None, kind_of(shipped), small.generate, token_bytes=token_bytes(shipped))
    for draft, spec in config.plain_drafts().items():
        if isinstance(spec, NgramDraft):
            from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

            guess = LlamaPromptLookupDecoding(max_ngram_size=spec.max_ngram, num_pred_tokens=k)
        elif isinstance(spec, LanguageModelDraft) and spec.vocabulary is None:
            try:
                guess = _second(config, spec, shipped, threads, context, k)
            except UserError as error:
                yield Arm(NAME, MODES[spec.kind], draft, PRECISION, None, f"missing: {error}")
                continue
        else:
            continue
        yield Arm(NAME, MODES[spec.kind], draft, PRECISION, Model(full, threads, context, guess).generate)


def kind_of(path: Path) -> str:
    """What a GGUF file calls its own precision: SmolLM2-135M-Instruct.Q4_1.gguf -> q4_1."""
    return path.stem.rpartition(".")[2].lower()


@cache
def _silent():
    """A log callback that says nothing, kept alive; the library prints a line for every tensor."""
    import llama_cpp

    return llama_cpp.llama_log_callback(lambda level, text, data: None)


def requantised(source: Path, path: Path, kind: int) -> Path:
    """A copy of a GGUF file in another precision, by llama.cpp's own call, which is asked to accept quantised input."""
    import llama_cpp

    if path.is_file() and path.stat().st_mtime >= source.stat().st_mtime:
        return path
    llama_cpp.llama_log_set(_silent(), None)
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype, settings.allow_requantize = kind, True
    # every matrix, the embedding and head among them
    settings.pure = True
    temporary = path.with_suffix(".part")
    code = llama_cpp.llama_model_quantize(str(source).encode(), str(temporary).encode(), ctypes.byref(settings))
    if code != 0:
        raise UserError(f"llama.cpp could not convert {source.name} (code {code})")
    temporary.replace(path)
    return path


class Model:
    """A loaded GGUF file; `guess` is the wrapper's draft model."""

    def __init__(self, path: Path, threads: int, context: int, guess=None):
        from llama_cpp import Llama

        self._model = Llama(
            str(path),
            n_ctx=context,
            n_threads=threads,
            n_threads_batch=threads,
            # a draft is verified from the logits of every row
            logits_all=guess is not None,
            draft_model=guess,
            verbose=False,
        )

    def generate(self, ids: Sequence[int], tokens: int) -> Timed:
        """Greedy, endless: the wrapper stops for nobody."""
        self._model.reset()  # else a prompt that is there already would not be read again
        found, times = [], []
        for token in islice(self._model.generate(list(ids), temp=0.0), tokens):
            found.append(token)
            times.append((time.perf_counter(), 1))
        return arrivals(times, found)

    def continued(self, ids: Sequence[int], tokens: int) -> list[int]:
        """The same without forgetting: only what is new since the last call is read."""
        return list(islice(self._model.generate(list(ids), temp=0.0), tokens))


def _second(config: StudyConfig, spec: LanguageModelDraft, like: Path, threads: int, context: int, k: int):
    """A draft model for the wrapper: the same small model as in the other arms."""
    from llama_cpp.llama_speculative import LlamaDraftModel

    checkpoint = config.model_path(spec.model)
    if not (checkpoint / "config.json").is_file():
        raise UserError(f"no config.json in {checkpoint}")
    model = Model(gguf_files.written(checkpoint, like, spec.model), threads, context)

    class Second(LlamaDraftModel):
        def __call__(self, input_ids, /, **_):
            return np.asarray(model.continued(input_ids.tolist(), k), dtype=np.intc)

    return Second()
