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

_MARK = "\u2042"


@dataclass(frozen=True)
class Template:
    """The chat template cut into the pieces that stand around the turns, as token ids."""

    opening: tuple[int, ...]  # everything before the first user text
    to_answer: tuple[int, ...]  # from the end of a user text to the start of the answer
    to_user: tuple[int, ...]  # behind an answer's end-of-text, up to the next user text

    @classmethod
    def of(cls, tokenizer: Tokenizer, enable_thinking: bool | None = None) -> Template:
        """Cut by rendering a conversation with marked texts.

        Refuses a template whose training rendering does not begin with its inference rendering, token for token.
        """
        inner = tokenizer.inner
        extra = {} if enable_thinking is None else {"enable_thinking": enable_thinking}

        def render(turns: list[str], prompt: bool) -> str:
            roles = ("user", "assistant")
            messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
            return inner.apply_chat_template(messages, add_generation_prompt=prompt, tokenize=False, **extra)

        asked = render([_MARK], True)
        opening, to_answer = asked.split(_MARK)
        again = render([_MARK, "A", _MARK], True)
        if not again.startswith(opening + _MARK + to_answer + "A"):
            raise UserError(
                f"tokenizer {tokenizer.origin}: a conversation's training text does not begin with its inference "
                "prompt; set enable_thinking to the mode that the template keeps"
            )
        between = again[len(opening + _MARK + to_answer + "A") :].split(_MARK)[0]
        end = tuple(tokenizer.encode(between))
        stop = next((i for i, token in enumerate(end) if token in tokenizer.eos_ids), None)
        if stop is None:
            raise UserError(f"tokenizer {tokenizer.origin}: its template ends an answer with no end-of-text token")
        return cls(tuple(tokenizer.encode(opening)), tuple(tokenizer.encode(to_answer)), end[stop + 1 :])


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
    """The state of one row: tokens so far, what must be fed next, and whose turn it is."""

    plan: Plan
    template: Template
    eos: frozenset[int]
    max_user: int
    max_answer: int
    ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    finished: bool = False
    complete: bool = False

    def __post_init__(self):
        digest = hashlib.sha256(f"{self.plan.seed}\0{self.plan.index}".encode()).digest()
        self.random = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
        self._turn = 0
        self._say(self.template.opening)
        self._begin_user()

    def _say(self, ids: Sequence[int]) -> None:
        self.ids += ids
        self.mask += [False] * len(ids)

    def _begin_user(self) -> None:
        self._say(self.plan.openers[self._turn])
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
        if not self.answering:
            if token in self.eos:
                self._begin_answer()  # the template's own end of turn replaces the sampled one
            elif self._written >= self.max_user:
                self.finished = True  # a request that never ends is not kept
            else:
                self._say([token])
            return
        self.ids.append(token)
        self.mask.append(True)
        ended = token in self.eos
        if ended and self._turn + 1 < len(self.plan.openers):
            self._turn += 1
            self._say(self.template.to_user)
            self._begin_user()
        elif ended or self._written >= self.max_answer:
            self.finished = self.complete = True
