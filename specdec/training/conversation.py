"""One conversation being written: who speaks, what is given, and what the target writes.

A conversation opens with the chat template's own opening.  User turns are given, begun by an opener, or sampled whole
(the target, shown the opening of a user turn, writes a plausible request; the idea of Magpie, arXiv 2406.08464);
answers are the target's, greedy or sampled.  Only answers are trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from specdec.errors import UserError
from specdec.models.tokenizer import Tokenizer

_MARK, _ANSWER = "\u2042", "\u2051"
_SAMPLE = "Why is the sky blue?"
LONG_REQUEST, EMPTY_REQUEST, BAD_REQUEST, TOO_LONG = "endless_request", "empty_request", "special_token", "too_long"


@dataclass(frozen=True)
class Template:
    """The chat template cut into the pieces that stand around the turns, as token ids.

    `to_user` is None where the template rewrites earlier answers (thinking templates do): a second turn would then not
    continue the tokens of the first, so conversations have one turn.
    """

    opening: tuple[int, ...]  # everything before the first user text
    to_answer: tuple[int, ...]  # from the end of a user text to the start of the answer
    to_user: tuple[int, ...] | None  # behind an answer's end-of-text, up to the next user text

    @classmethod
    def of(cls, tokenizer: Tokenizer, enable_thinking: bool | None = None) -> Template:
        """Cut by rendering conversations with marked texts.

        Refuses a template whose pieces, put together, are not its inference prompt, token for token.
        """
        if tokenizer.inner.chat_template is None:
            raise UserError(f"tokenizer {tokenizer.origin}: it has no chat template, so no conversation can be written")
        extra = {} if enable_thinking is None else {"enable_thinking": enable_thinking}

        def render(turns: list[str]) -> str:
            roles = ("user", "assistant")
            messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
            return tokenizer.inner.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **extra)

        opening, to_answer = render([_MARK]).split(_MARK)
        before, behind = render([_MARK, _ANSWER, _MARK]).split(_MARK)[1].split(_ANSWER)
        appended, end = before == to_answer, encode(tokenizer, behind)
        stop = next((i for i, token in enumerate(end) if token in tokenizer.eos_ids), None)
        if stop is None:
            raise UserError(f"tokenizer {tokenizer.origin}: its template ends an answer with no end-of-text token")
        pieces = cls(encode(tokenizer, opening), encode(tokenizer, to_answer), end[stop + 1 :] if appended else None)
        if not pieces.opening or not pieces.to_answer:
            raise UserError(f"tokenizer {tokenizer.origin}: its template puts nothing before a turn")
        prompt = tokenizer.chat([{"role": "user", "content": _SAMPLE}], enable_thinking=enable_thinking)
        if [*pieces.opening, *encode(tokenizer, _SAMPLE), *pieces.to_answer] != prompt:
            raise UserError(
                f"tokenizer {tokenizer.origin}: a conversation put together from its template's pieces does not begin "
                "with the inference prompt, token for token"
            )
        return pieces


def encode(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Ids of a piece of text: nothing is put in front of it."""
    return tuple(tokenizer.inner.encode(text, add_special_tokens=False))


@dataclass(frozen=True)
class Plan:
    """How a conversation is to be written.  A given turn is kept whole; an opener is continued by sampling."""

    index: int
    seed: int
    openers: tuple[tuple[int, ...], ...] = ((),)
    given: bool = False
    sampled_answers: bool = False
    source: str = "self"


@dataclass
class Conversation:
    """The state of one row: tokens so far, what must be fed next, and whose turn it is.

    `special` are ids that a request must not hold; `dropped` says why the conversation came to nothing.
    """

    plan: Plan
    template: Template
    eos: frozenset[int]
    max_user: int
    max_answer: int
    special: frozenset[int] = frozenset()
    cut_requests: bool = False
    ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    requests: list[list[int]] = field(default_factory=list)
    finished: bool = False
    dropped: str | None = None

    def __post_init__(self):
        digest = hashlib.sha256(f"{self.plan.seed}\0{self.plan.index}".encode()).digest()
        self.random = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
        self._say(self.template.opening)
        self._begin_user()

    @property
    def answer(self) -> list[int]:
        return [token for token, kept in zip(self.ids, self.mask, strict=True) if kept]

    def drop(self, reason: str) -> None:
        self.finished, self.dropped = True, reason

    def _say(self, ids: Sequence[int]) -> None:
        self.ids += ids
        self.mask += [False] * len(ids)

    def _begin_user(self) -> None:
        opener = self.plan.openers[len(self.requests)]
        self.requests.append(list(opener))
        self._say(opener)
        self._written, self.answering = 0, False
        if self.plan.given:
            self._begin_answer()

    def _begin_answer(self) -> None:
        self._say(self.template.to_answer)
        self._written, self.answering = 0, True

    @property
    def greedy(self) -> bool:
        return self.answering and not self.plan.sampled_answers

    def take(self, token: int) -> None:
        """The target wrote `token`."""
        self._written += 1
        if self.answering:
            self._answered(token)
        elif token in self.eos:
            if self.requests[-1]:
                self._begin_answer()  # the template's own end of turn replaces the sampled one
            else:
                self.drop(EMPTY_REQUEST)
        elif token in self.special:
            self.drop(BAD_REQUEST)
        elif self._written >= self.max_user and self.cut_requests:
            self._begin_answer()
        elif self._written >= self.max_user:
            self.drop(LONG_REQUEST)
        else:
            self.requests[-1].append(token)
            self._say([token])

    def _answered(self, token: int) -> None:
        self.ids.append(token)
        self.mask.append(True)
        ended = token in self.eos
        more = len(self.requests) < len(self.plan.openers) and self.template.to_user is not None
        if ended and more:
            self._say(self.template.to_user)
            self._begin_user()
        elif ended or self._written >= self.max_answer:
            self.finished = True
