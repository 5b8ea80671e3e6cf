"""The host's half of static decoding: what a round is given, what it brought, and when the text ends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from specdec.decode import Generation, Request
from specdec.drafters.base import Drafter, Nothing
from specdec.drafters.language_model import LanguageModel
from specdec.errors import UserError
from specdec.growth.chain import Chain
from specdec.growth.depth import Fixed
from specdec.measure.clock import Clock, clock_for
from specdec.models.transformer import Transformer
from specdec.records import RoundRecord
from specdec.sampling import GREEDY, Sampling, Stream
from specdec.static.rounds import StaticRounds
from specdec.tree import POINT, WITHOUT_REPLACEMENT, Draft
from specdec.verifiers import Verdict

COVERED = "the baseline, and chains of a fixed depth by a second model, verified greedily or by rejection"


def check_static(kind: str | None, policy: str, shape: str, verifier: str | None, sampling: Sampling) -> None:
    """Refuse what static decoding does not cover, in one sentence; `kind` None is the baseline."""
    usual = "greedy" if sampling.greedy else "rejection"
    wrong = None
    if kind not in (None, "language_model"):
        wrong = f"draft {kind}"
    elif shape != "chain":
        wrong = f"shape {shape}"
    elif policy != "fixed":
        wrong = f"policy {policy}"
    elif verifier not in (None, usual):
        wrong = f"verifier {verifier}"
    if wrong:
        raise UserError(f"static decoding does not cover {wrong}; it covers {COVERED}: leave it off to run eagerly")


class StaticDecoder:
    """Buffers, and on a GPU captured graphs, for any number of texts up to `capacity` tokens, prompt included.

    `drafter` is that of the eager loop: `Nothing`, or a chain of fixed depth by a `LanguageModel`.  `width` pads the
    target's pass to so many rows: a baseline as wide as verification runs the same kernels, bit for bit.
    """

    def __init__(
        self,
        target: Transformer,
        drafter: Drafter,
        *,
        k: int,
        capacity: int,
        sampling: Sampling = GREEDY,
        width: int = 1,
    ):
        self.target, self.sampling, self.capacity = target, sampling, capacity
        draft = _language_model(drafter)
        self.k = 0 if draft is None else k
        if draft is not None and draft.model.config.max_positions < capacity:
            raise UserError(
                f"static decoding: the draft's context holds {draft.model.config.max_positions} tokens, the text may "
                f"have {capacity}; ask for fewer, or leave it off to run eagerly"
            )
        self.rounds = StaticRounds(target, draft, self.k, sampling, capacity, width)

    def generation(self, request: Request, clock: Clock | None = None) -> StaticGeneration:
        """One text; the buffers serve one at a time."""
        if request.sampling != self.sampling:
            raise UserError(f"static decoding was made ready for {self.sampling}, not for {request.sampling}")
        return StaticGeneration(self, request, clock or clock_for(self.target.device))


def _language_model(drafter: Drafter) -> LanguageModel | None:
    if isinstance(drafter, Nothing):
        return None
    model = getattr(drafter, "model", None)
    if isinstance(drafter, Chain) and isinstance(drafter.rule, Fixed) and isinstance(model, LanguageModel):
        return model
    raise UserError(f"static decoding does not cover this draft; it covers {COVERED}: leave it off to run eagerly")


class Ahead:
    """A stream's numbers before they are needed: those that a round does not use are there in the next."""

    def __init__(self, stream: Stream, needed: bool):
        self._next = getattr(stream, "uniform", None) if needed else lambda: 0.0
        if self._next is None:
            raise UserError("static decoding draws from seeded streams alone")
        self._numbers: list[float] = []

    def look(self, count: int) -> list[float]:
        while len(self._numbers) < count:
            self._numbers.append(self._next())
        return self._numbers[:count]

    def use(self, count: int) -> None:
        del self._numbers[:count]


class StaticGeneration(Generation):
    """The same records as the eager loop's, number for number, but for times."""

    def __init__(self, decoder: StaticDecoder, request: Request, clock: Clock):
        super().__init__(decoder.target, request, decoder.k, clock)
        needed = len(request.prompt) + self.limit
        if needed > decoder.capacity:
            raise UserError(
                f"static decoding was made ready for {decoder.capacity} tokens; this text may have {needed}"
            )
        self._rounds, self.cache = decoder.rounds, decoder.rounds.target.cache
        sampled = not request.sampling.greedy
        self._draft_points = Ahead(request.open_stream("draft"), sampled and not request.sampling.for_draft.greedy)
        self._verify_points = Ahead(request.open_stream("verify"), sampled)

    def _prefill(self) -> None:
        clock, prompt = self._clock, self._request.prompt
        clock.synchronize()
        first = clock.mark()
        self._rounds.begin(prompt)
        second = clock.mark()
        self._rounds.begin_draft(prompt)
        third = clock.mark()
        self.record.prefill_target_s = clock.between(first, second)
        self.record.prefill_draft_s = clock.between(second, third)

    def _round(self) -> RoundRecord:
        clock, rounds, k = self._clock, self._rounds, self._k
        depth = min(k, self.limit - len(self._emitted) - 1)
        root = len(self._request.prompt) + len(self._emitted) - 1
        begin = clock.now()
        rounds.give(depth, self._draft_points.look(k), self._verify_points.look(k + 1))
        first = clock.mark()
        rounds.propose(root)
        second = clock.mark()
        rounds.score(root)
        third = clock.mark()
        draft, verdict = self._read(*rounds.result(), depth)
        self.draft, self.verdict = draft, verdict
        tokens, source, reason = self._cut(draft, verdict)
        self._emitted += tokens
        self.cache.length = root + len(tokens)
        self._draft_points.use(len(draft))
        self._verify_points.use(len(verdict.path) + (verdict.source == "correction") + 1)
        return self._recorded(tokens, source, reason, depth, begin, (first, second, third))

    def _read(
        self, tokens: Sequence[int], chances: Sequence[float], accepted: int, following: int, depth: int
    ) -> tuple[Draft, Verdict]:
        """A round's outcome as the eager loop would have it, whose draft ends with the depth or the end of the text."""
        ends = (level + 1 for level, token in enumerate(tokens[:depth]) if token in self._request.eos_ids)
        drafted = next(ends, depth)
        point = self._request.sampling.for_draft.greedy
        draft = Draft.chain(
            tokens[:drafted],
            POINT if point else WITHOUT_REPLACEMENT,
            None if point else self._rounds.laws[:drafted],
            "end_of_text" if drafted < depth else "depth",
            tuple(accumulate(chances[:drafted], mul)),
        )
        source = "bonus" if accepted >= drafted else "correction"
        return draft, Verdict(tuple(range(min(accepted, drafted))), following, source)
