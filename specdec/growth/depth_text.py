"""Depth rules that read the text: what kind of token was drafted, and how hard the text is.

Losslessness: they look at tokens committed, and at tokens drawn and kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from specdec.growth.depth import DepthRule

if TYPE_CHECKING:
    from specdec.models.tokenizer import Tokenizer

KINDS = ("special", "space", "number", "punctuation", "word", "piece")
"""A `word` begins with a space, a `piece` goes on without one."""


def kind_of(text: str) -> str:
    """The kind of a token that reads `text`."""
    if not text.strip():
        return "space"
    if any(character.isdigit() for character in text):
        return "number"
    if not any(character.isalpha() or character == "\ufffd" for character in text):
        return "punctuation"
    return "word" if text[0].isspace() else "piece"


def token_kinds(tokenizer: Tokenizer) -> list[str]:
    """The kind of every id.  Part of a character, which decodes to a replacement mark, counts as a piece."""
    inner, special = tokenizer.inner, set(tokenizer.inner.all_special_ids)
    texts = inner.batch_decode([[index] for index in range(len(tokenizer))], clean_up_tokenization_spaces=False)
    return ["special" if index in special else kind_of(text) for index, text in enumerate(texts)]


class TokenType(DepthRule):
    """Ends when the drafted tokens' kinds make it unlikely that all of them are accepted.

    In this text so far, how often was a drafted token of each kind accepted?  Drafting goes on while the product of
    those rates over the round's tokens is at least the threshold.  `kinds`: the kind of every id; an id beyond them is
    a piece.  A kind starts with one success, so that it is tried.
    """

    name = "token_type"
    range = (0.0, 1.0)
    needs_kinds = True

    def __init__(self, k: int, threshold: float, kinds: Sequence[str]):
        super().__init__(k, threshold)
        self.kinds = kinds
        self.reset()

    def reset(self) -> None:
        self._accepted: Counter[str] = Counter()
        self._tested: Counter[str] = Counter()
        self._drawn: list[str] = []

    def rate(self, kind: str) -> float:
        return (self._accepted[kind] + 1) / (self._tested[kind] + 1)

    def before(self, depth: int, logits: Tensor) -> bool:
        if depth == 0:
            self._drawn = []
        return True

    def after(self, depth: int, logits: Tensor, token: int) -> bool:
        self._drawn.append(self.kinds[token] if token < len(self.kinds) else "piece")
        return math.prod(map(self.rate, self._drawn)) >= self.threshold

    def observe(self, drafted: int, accepted: int) -> None:
        """Tokens behind the first rejected one were not tested; a round's last one is not known here."""
        for index, kind in enumerate(self._drawn[: accepted + 1]):
            self._tested[kind] += 1
            self._accepted[kind] += index < accepted
        self._drawn = []


class Difficulty(DepthRule):
    """Drafts less where the text repeats itself less.

    The difficulty is the entropy of the token pairs among the last `window` tokens, as a share of what it would be if
    all pairs differed: 0 for one pair over and over, 1 for nothing said twice.  Up to the threshold K tokens are
    drafted, at 1 one, evenly in between.  A text too short to tell is not held to be hard.  No primary source fixes
    this measure, so the threshold is tuned.
    """

    name = "difficulty"
    range = (0.0, 1.0)
    window = 64

    def before(self, depth: int, logits: Tensor) -> bool:
        if depth == 0:
            self._allowed = self.allowed()
        return depth < self._allowed

    def after(self, depth: int, logits: Tensor, token: int) -> bool:
        return depth + 1 < self._allowed

    def allowed(self) -> int:
        hard = difficulty(self.text[-self.window :])
        if hard <= self.threshold:
            return self.k
        return max(1, round(1 + (self.k - 1) * (1 - hard) / (1 - self.threshold)))


def difficulty(tokens: Sequence[int]) -> float:
    """Entropy of the pairs in `tokens` over the log of their number, 0 with fewer than two pairs."""
    pairs = Counter(zip(tokens, tokens[1:], strict=False))
    total = pairs.total()
    if total < 2:
        return 0.0
    entropy = -sum(n / total * math.log(n / total) for n in pairs.values())
    return min(1.0, entropy / math.log(total))
