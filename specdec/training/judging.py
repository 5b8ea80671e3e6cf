"""Which conversations are kept: no loops, no duplicates, no near copies of evaluation prompts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq

from specdec.loops import is_loop
from specdec.models.tokenizer import Tokenizer
from specdec.training.conversation import Conversation
from specdec.training.parts import PATTERN

SHINGLE = 5
"""Near copies are judged by runs of this many words."""
SHARED = 0.3
"""A request that shares more than this part of its runs with the evaluation prompts is a near copy."""
PREFIX = 48
"""Answers that begin with the same tokens, this many, are duplicates."""


class Judge:
    """Says why a conversation is not kept; remembers what it has seen."""

    def __init__(self, tokenizer: Tokenizer, evaluation: Iterable[str] = ()):
        self._decode = tokenizer.decode
        self._evaluation = {shingle for text in evaluation for shingle in shingles(text)}
        self._seen: set[tuple] = set()

    def remember(self, folder: Path) -> None:
        """What earlier parts of this text hold."""
        for part in sorted(folder.glob(PATTERN)):
            for row in pq.read_table(part, columns=["ids", "loss_mask"]).to_pylist():
                if row["ids"]:
                    self._seen |= _keys(row["ids"], row["loss_mask"])

    def reason(self, conversation: Conversation) -> str | None:
        if conversation.dropped or not any(conversation.mask):
            return conversation.dropped or "unfinished"
        if is_loop(conversation.answer) or any(is_loop(request) for request in conversation.requests):
            return "loop"
        for request in conversation.requests:
            own = shingles(self._decode(request))
            if own and len(own & self._evaluation) > SHARED * len(own):
                return "near_evaluation"
        keys = _keys(conversation.ids, conversation.mask)
        if keys & self._seen:
            return "duplicate"
        self._seen |= keys
        return None


def _keys(ids: list[int], mask: list[bool]) -> set[tuple]:
    """What two duplicates have in common: all that stands before the first answer, or the answers' beginning."""
    answer = (token for token, kept in zip(ids, mask, strict=True) if kept)
    prefix = tuple(token for token, _ in zip(answer, range(PREFIX), strict=False))
    return {("asked", *ids[: mask.index(True)]), ("answered", *prefix)}


def shingles(text: str) -> set[tuple[str, ...]]:
    """Every run of `SHINGLE` words; a shorter text is one run."""
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + SHINGLE]) for i in range(max(1, len(words) - SHINGLE + 1))} if words else set()
