"""The loop: propose, score, verify, commit.  It alone owns the state of a generation.

The root is the last committed token: known, but not yet in the target's cache.  The target is prefilled with all of the
prompt but its last token (nothing is emitted by that), so that round 1 is a round like any other, for every drafter and
for the autoregressive baseline, which is this same loop with a drafter that proposes nothing.

After every round the target's cache holds exactly prompt + emitted - 1 rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from specdec.drafters.base import Budget, Context, Drafter, Nothing, tentative_rows
from specdec.errors import UserError
from specdec.measure.clock import Clock, clock_for
from specdec.models.kvcache import KVCache
from specdec.models.transformer import Output, Transformer
from specdec.records import GenerationRecord, RoundRecord
from specdec.sampling import GREEDY, RandomStream, Sampling, Stream
from specdec.tree import Draft
from specdec.verifiers import TargetRows, Verifier, build_verifier

END_OF_TEXT, LENGTH, CONTEXT, STOP_STRING = "end_of_text", "length", "context", "stop_string"

ONE_TEXT = "the batch size is 1, since one text decodes at a time here; run several processes for several texts"
"""Why there is no batch."""


@dataclass(frozen=True)
class Request:
    """What to generate.  `stop`, given the ids emitted so far, returns how many of them to keep, or None to go on."""

    prompt: Sequence[int]
    max_new_tokens: int
    sampling: Sampling = GREEDY
    seed: int = 0
    prompt_id: str = ""
    eos_ids: frozenset[int] = frozenset()
    stop: Callable[[Sequence[int]], int | None] | None = None
    stream: Callable[[str], Stream] | None = field(default=None, compare=False)
    """Random stream by purpose; None: independent streams keyed by seed, prompt id and purpose."""

    def open_stream(self, purpose: str) -> Stream:
        return self.stream(purpose) if self.stream else RandomStream(self.seed, self.prompt_id, purpose)


class Generation:
    """One generation: iterate over its rounds as they happen; `record` grows with them.

    Subclasses say how the prompt is read and how a round runs.
    """

    cache: KVCache
    """The target's."""

    def __init__(self, target: Transformer, request: Request, k: int, clock: Clock):
        self._target, self._request, self._k, self._clock = target, request, k, clock
        self.record = GenerationRecord(prompt_tokens=len(request.prompt))
        self.limit, self._limit_reason = _limit(request, target)
        self._emitted: list[int] = []
        self.draft, self.verdict = Draft(), None
        """The last round's, to look at."""

    def run(self) -> GenerationRecord:
        """All rounds, without looking at them."""
        for _ in self:
            pass
        return self.record

    def __iter__(self) -> Iterator[RoundRecord]:
        self._prefill()
        while True:
            record = self._round()
            self.record.rounds.append(record)
            yield record
            if record.stop_reason:
                return

    def _prefill(self) -> None:
        raise NotImplementedError

    def _round(self) -> RoundRecord:
        raise NotImplementedError

    @property
    def _root(self) -> int:
        return self._emitted[-1] if self._emitted else self._request.prompt[-1]

    def _cut(self, draft: Draft, verdict) -> tuple[list[int], str, str | None]:
        """What the round adds to the text, where its last token came from, and why the text ends, if it does."""
        tokens = [*(draft.tokens[node] for node in verdict.path), verdict.next_token]
        keep, reason = len(tokens), None
        for i, token in enumerate(tokens):
            if token in self._request.eos_ids:
                keep, reason = i + 1, END_OF_TEXT
                break
        if self._request.stop is not None:
            at = self._request.stop([*self._emitted, *tokens[:keep]])
            if at is not None:
                keep, reason = max(1, at - len(self._emitted)), STOP_STRING
        if reason is None and len(self._emitted) + keep >= self.limit:
            reason = self._limit_reason
        return tokens[:keep], verdict.source if keep == len(tokens) else "cut", reason

    def _recorded(
        self, tokens: list[int], source: str, reason: str | None, requested: int, begin: float, marks: tuple
    ) -> RoundRecord:
        """The round just committed; `marks` stand before the draft, between draft and target, and behind the target."""
        clock, draft, path = self._clock, self.draft, self.verdict.path
        if reason:
            clock.synchronize()
        draft_s, target_s = clock.between(*marks[:2]), clock.between(*marks[1:])
        return RoundRecord(
            tokens=tuple(tokens),
            requested=requested,
            drafted=len(draft),
            accepted=min(len(path), len(tokens)),
            source=source,
            stopped=draft.stopped,
            draft_s=draft_s,
            target_s=target_s,
            other_s=max(0.0, clock.now() - begin - draft_s - target_s),
            stop_reason=reason,
            confidence=draft.confidence,
            path=path,
        )


class Eager(Generation):
    """Any drafter, any verifier: every move is a call, and the host decides between them."""

    def __init__(
        self,
        target: Transformer,
        drafter: Drafter,
        verifier: Verifier,
        request: Request,
        k: int,
        clock: Clock,
        nodes: int | None = None,
    ):
        if nodes is not None and nodes < 1:
            raise UserError(f"nodes = {nodes}: must be an integer of 1 or more")
        super().__init__(target, request, k, clock)
        self._drafter, self._verifier, self._nodes = drafter, verifier, nodes
        verifier.check_sampling(request.sampling)
        self._rows = tentative_rows(drafter, k, k if nodes is None else nodes)
        self.cache = target.new_cache(len(request.prompt) + self.limit + self._rows)
        self._stream = request.open_stream("verify")

    def _prefill(self) -> None:
        request, clock = self._request, self._clock
        context = Context(
            sampling=request.sampling,
            stream=request.open_stream("draft"),
            target=self._target,
            cache=self.cache,
            eos_ids=request.eos_ids,
            capacity=self.cache.capacity,
            rows=self._rows,
        )
        clock.synchronize()
        first = clock.mark()
        features = None
        if len(request.prompt) > 1:
            taps = self._drafter.taps
            features = self._target.forward(request.prompt[:-1], self.cache, taps=taps, logits=False).features
        second = clock.mark()
        self._drafter.start(request.prompt, features, context)
        third = clock.mark()
        self.record.prefill_target_s = clock.between(first, second)
        self.record.prefill_draft_s = clock.between(second, third)

    def _round(self) -> RoundRecord:
        clock, base = self._clock, self.cache.length
        remaining = self.limit - len(self._emitted)
        begin, first = clock.now(), clock.mark()
        # One token follows whatever is accepted, so that nothing deeper than the remaining ones but one can stay.
        depth = min(self._k, remaining - 1)
        budget = Budget(depth, depth) if self._nodes is None else Budget(min(depth, self._nodes), self._nodes)
        draft = self._drafter.propose(budget) if depth > 0 else Draft(stopped="depth")
        self._check(draft, budget)
        second = clock.mark()
        scored = self._score(self._root, draft, base)
        third = clock.mark()
        verdict = self._verifier.verify(draft, TargetRows(scored.logits, self._request.sampling), self._stream)
        self.draft, self.verdict = draft, verdict
        tokens, source, reason = self._cut(draft, verdict)
        rows = [0, *(node + 1 for node in verdict.path)][: len(tokens)]
        self._emitted += tokens
        self.cache.keep(base, rows)
        features = None if scored.features is None else scored.features[rows]
        self._drafter.commit(tokens, features, scored)
        return self._recorded(tokens, source, reason, max(budget.depth, 0), begin, (first, second, third))

    def _score(self, root: int, draft: Draft, base: int) -> Output:
        """One target pass over the rows [root, node 0, ...]."""
        tokens, taps = [root, *draft.tokens], self._drafter.taps
        if draft.early is not None:
            return self._target.resume(tokens, self.cache, draft.early.layers, draft.early.hidden)
        if draft.is_chain:
            return self._target.forward(tokens, self.cache, taps=taps)
        return self._target.forward(tokens, self.cache, positions=draft.positions(base), mask=draft.mask(), taps=taps)

    def _check(self, draft: Draft, budget: Budget) -> None:
        if draft.depth > budget.depth or len(draft) > budget.nodes:
            raise ValueError(
                f"{type(self._drafter).__name__} drafted {len(draft)} nodes, {draft.depth} deep, beyond {budget}"
            )
        self._verifier.check_draft(draft)


def _limit(request: Request, target: Transformer) -> tuple[int, str]:
    """How many tokens may be emitted, and the reason when that many have been."""
    prompt, context = request.prompt, target.config.max_positions
    if not prompt:
        raise UserError("the prompt is empty: it must have at least one token")
    if isinstance(prompt[0], Sequence):
        raise UserError(f"the prompt holds {len(prompt)} texts: {ONE_TEXT}")
    bad = next((token for token in prompt if not 0 <= token < target.vocabulary), None)
    if bad is not None:
        raise UserError(f"the prompt holds id {bad}; the model's ids go from 0 to {target.vocabulary - 1}")
    wanted = request.max_new_tokens
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise UserError(f"max_new_tokens = {wanted}: must be an integer of 1 or more")
    room = context - len(prompt)
    if room < 1:
        raise UserError(
            f"the prompt has {len(prompt)} tokens; the model's context holds {context}, one of them to emit"
        )
    return (request.max_new_tokens, LENGTH) if request.max_new_tokens <= room else (room, CONTEXT)


def speculative(
    target: Transformer,
    drafter: Drafter,
    request: Request,
    *,
    k: int,
    nodes: int | None = None,
    verifier: Verifier | None = None,
    clock: Clock | None = None,
) -> Generation:
    """Speculative decoding: at most `k` levels and `nodes` nodes drafted a round; by default as many nodes as levels.

    Emits exactly what the target alone would: its greedy tokens at temperature 0, its law above.  Iterate over the
    result for one `RoundRecord` a round, or call `run()`.
    """
    chosen = verifier or build_verifier("greedy" if request.sampling.greedy else "rejection")
    return Eager(target, drafter, chosen, request, k, clock or clock_for(target.device), nodes)


def autoregressive(target: Transformer, request: Request, *, clock: Clock | None = None) -> Generation:
    """The baseline: the same loop, nothing proposed."""
    return speculative(target, Nothing(), request, k=0, clock=clock)
