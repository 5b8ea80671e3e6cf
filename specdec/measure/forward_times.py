"""How long a pass of the target, and a step of a draft, takes by width and context length.

The one idea: a call is set up outside the clock exactly as the loop would find it, runs as the loop would run it, and
is undone.  What a cache holds does not change how long it takes to read, so that long contexts need no prefill of the
target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

import torch

from specdec.drafters.base import Budget, Context, Drafter, DraftModel
from specdec.measure.clock import Clock
from specdec.models.kvcache import KVCache
from specdec.models.transformer import Output, Transformer
from specdec.sampling import GREEDY, RandomStream

Call = Callable[[], float]

FEW = 50
"""Ids that made-up texts are drawn from: few enough that a look-up finds matches."""


def filled_cache(model: Transformer, context: int, spare: int) -> KVCache:
    """A cache that holds `context` rows of made-up keys and values, with room for `spare` more."""
    cache = model.new_cache(context + spare)
    generator = torch.Generator(device=model.device).manual_seed(0)
    for side in (cache.keys, cache.values):
        side[:, :, :context] = torch.randn(side[:, :, :context].shape, generator=generator, device=model.device).to(
            model.dtype
        )
    cache.length = context
    return cache


def tokens_of(count: int, vocabulary: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(min(FEW, vocabulary), (count,), generator=generator).tolist()


def target_call(model: Transformer, cache: KVCache, context: int, width: int, clock: Clock) -> Call:
    """A pass over `width` rows of a chain with all their logits: an AR step at width 1, verification beyond."""
    tokens = tokens_of(width, model.vocabulary)

    def call() -> float:
        cache.truncate(context)
        return seconds(clock, lambda: model.forward(tokens, cache))

    return call


class StartedDraft:
    """A draft model that has read a made-up text and can be brought to the start of a round again and again.

    A model holds one text at a time, so that it is a copy over the same weights that reads this one.
    """

    def __init__(self, model: DraftModel, target: Transformer, context: int, rounds: int, spare: int):
        self.model, self.target = copy(model), target
        size = len(model.taps) * target.config.hidden_size
        self._feature = torch.ones(1, size, dtype=target.accumulator, device=target.device) if size else None
        prompt = tokens_of(context + 1, target.vocabulary)
        features = None if self._feature is None else self._feature.expand(context, -1).contiguous()
        cache = filled_cache(target, context, rounds + spare)
        self.model.start(prompt, features, _context(target, cache, spare))
        self.model.root()
        self.model.rollback()

    def begin(self) -> None:
        """One token more was committed: the next `root` has something to feed."""
        self.model.commit([0], self._feature, Output(None, None))


def draft_call(draft: StartedDraft, width: int, clock: Clock) -> Call:
    """A step of a draft model.  Width 1 is the round's first step, which feeds the newest token; wider ones score so
    many guesses behind it, a level of a tree."""
    model = draft.model
    tokens = tokens_of(width, draft.target.vocabulary)

    def call() -> float:
        draft.begin()
        if width == 1:
            spent = seconds(clock, model.root)
        else:
            model.root()
            spent = seconds(clock, lambda: model.step(tokens, [-1] * width))
        model.rollback()
        return spent

    return call


def whole_call(drafter: Drafter, target: Transformer, context: int, width: int, clock: Clock) -> Call:
    """A drafter that proposes in one go, asked for `width` tokens; a copy of it, for it holds one text at a time."""
    drafter = copy(drafter)
    drafter.start(tokens_of(context, target.vocabulary), None, _context(target, target.new_cache(1), width))
    return lambda: seconds(clock, lambda: drafter.propose(Budget(width, width)))


def seconds(clock: Clock, work: Callable[[], object]) -> float:
    """Of the work, devices waited for at both ends."""
    clock.synchronize()
    begin = clock.now()
    work()
    clock.synchronize()
    return clock.now() - begin


def _context(target: Transformer, cache: KVCache, rows: int) -> Context:
    stream = RandomStream(0, "timing", "draft")
    return Context(GREEDY, stream, target, cache, capacity=cache.capacity, rows=rows)


def fitting(model: Transformer, contexts: Sequence[int], spare: int) -> list[int]:
    """Those context lengths that the model's positions allow, with room for `spare` rows behind."""
    return [length for length in contexts if length + spare <= model.config.max_positions]
