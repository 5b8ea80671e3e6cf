"""From a trained head of one layer to one of two that copies, in a folder of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from specdec.errors import UserError
from specdec.models import ModelConfig, rotary
from specdec.models.eagle import EagleConfig
from specdec.models.eagle_files import read_head, write_head
from specdec.models.transformer import Transformer
from specdec.training.copying.circuits import grow
from specdec.training.copying.guard import Guard
from specdec.training.copying.matching import learn
from specdec.training.copying.stream import Sizes, Stream, normed, survey
from specdec.training.corpus import HeadCorpus, Sample, answer_counts
from specdec.training.eagle import EagleModule
from specdec.training.task import record_in

SURVEYED = 100
"""Conversations that the stream is measured on."""
SHORTEST, LONGEST = 60, 420
"""Texts that codes are learned from, in tokens."""
UPDATES = 4000


def grown_head(
    source: Path,
    out: Path,
    target: Transformer,
    origin: ModelConfig,
    embedding: Tensor,
    head: Tensor,
    samples: Sequence[Sample],
    *,
    updates: int = UPDATES,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write to `out` the head in `source` with a layer and circuits more, its record, and what guards the circuits.

    `embedding` [V, h] and `head` [V, h] are the target's.  Raises `UserError` for a head that has no room for them.
    """
    begun = time.monotonic()
    config, weights, used = read_head(source, origin)
    _refuse(config, source, origin)
    module = module_of(config, weights, embedding, head, used)
    ids = torch.arange(config.draft_vocabulary) if used is None else used
    counted = answer_counts(samples)
    stream = survey(module, _states(target, config, samples), ids, torch.tensor([counted[i] for i in ids.tolist()]))
    sizes = Sizes(config.hidden_size, config.head_dim)
    match = learn(
        _texts(samples),
        codes_of_all(module, stream),
        sizes.matched,
        slow_frequencies(config),
        updates=updates,
        report=lambda done: report(done, updates),
    )
    made, tensors = grow(config, weights, stream, match)
    write_head(out, made, tensors, used, origin.vocab_size)
    Guard(stream.codes, stream.votes).write(out)
    record = {
        "updates": updates,
        "sharpness": match.sharpness,
        "sink": match.sink,
        "surveyed": min(SURVEYED, len(samples)),
        "seconds": round(time.monotonic() - begun, 1),
    } | asdict(sizes)
    known = record_in(source) or {}
    (out / "training.json").write_text(json.dumps(known | {"grown": record}, indent=2) + "\n", "utf-8")


def module_of(
    config: EagleConfig, weights: dict[str, Tensor], embedding: Tensor, head: Tensor, used: Tensor | None
) -> EagleModule:
    """A head's weights as a module; `head` [V, h] is the target's."""
    frozen = None if config.own_head else head if used is None else head[used]
    module = EagleModule(config, embedding, frozen)
    module.load_state_dict(
        {f"products.{name}.weight": weights[name].float() for name in config.shapes()}
        | {f"norms.{name}": weights[name].float() for name in config.norms()}
    )
    return module


@torch.no_grad()
def codes_of_all(module: EagleModule, stream: Stream) -> Tensor:
    """[V, c]"""
    return stream.codes_of(normed(module, module.embedding))


def slow_frequencies(config: EagleConfig) -> Tensor:
    """Of the pairs that compare codes: all but the fast ones, which turn too far over a text, and the sink's."""
    last = config.head_dim // 2 - 1
    return rotary.frequencies(config)[last - Sizes(config.hidden_size, config.head_dim).matched // 2 : last]


def _refuse(config: EagleConfig, source: Path, origin: ModelConfig) -> None:
    if config.version != 3 or config.layers != 1:
        raise UserError(f"draft head {source}: only an EAGLE-3 head of one layer can be grown by circuits that copy")
    if config.hidden_size != origin.hidden_size:
        raise UserError(f"draft head {source}: it is {config.hidden_size} wide, the target {origin.hidden_size}")
    sizes = Sizes(config.hidden_size, config.head_dim)
    needed = sizes.reserved + sizes.code
    if config.head_dim % 4 or config.head_dim < 8 or needed > config.hidden_size // 2 or sizes.code < 2:
        raise UserError(
            f"draft head {source}: {config.hidden_size} wide with attention heads of {config.head_dim}, it has no room "
            f"for circuits that copy ({needed} directions)"
        )
    if config.intermediate_size < sizes.reserved:
        raise UserError(
            f"draft head {source}: its MLP of {config.intermediate_size} has no room for {sizes.reserved} neurons"
        )


def _states(target: Transformer, config: EagleConfig, samples: Sequence[Sample]) -> list:
    chosen = sorted(samples, key=lambda sample: (len(sample.ids) < SHORTEST, sample.index))[:SURVEYED]
    corpus = HeadCorpus(target, chosen, config.taps, max(len(sample.ids) for sample in chosen), 0)
    return [corpus.states(i) for i in range(len(corpus))]


def _texts(samples: Sequence[Sample]) -> list[tuple[int, ...]]:
    enough = [sample.ids[:LONGEST] for sample in samples if len(sample.ids) >= SHORTEST]
    return enough or [sample.ids for sample in samples if len(sample.ids) > 3]
