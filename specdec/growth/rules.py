"""The depth rules by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec.errors import UserError, unknown
from specdec.growth.depth import DepthRule, Entropy, Fixed, History, Margin, MaxProbability
from specdec.growth.depth_entropy import AdaEdl, Svip
from specdec.growth.depth_measured import Cost, DraftVerify, Pid
from specdec.growth.depth_text import Difficulty, TokenType, token_kinds

if TYPE_CHECKING:
    from specdec.models.tokenizer import Tokenizer

RULES: dict[str, type[DepthRule]] = {
    rule.name: rule
    for rule in (
        Fixed,
        MaxProbability,
        Margin,
        Entropy,
        History,
        Svip,
        AdaEdl,
        DraftVerify,
        Pid,
        Cost,
        TokenType,
        Difficulty,
    )
}


def build_rule(name: str, k: int, threshold: float | None = None, tokenizer: Tokenizer | None = None) -> DepthRule:
    """A rule by name; refuses an unknown one, and a threshold that is missing, out of range or not taken."""
    if name not in RULES:
        raise unknown("depth rule", name, RULES)
    rule = RULES[name]
    if rule.range is None and threshold is not None:
        raise UserError(f"depth rule {name}: takes no threshold, got {threshold}")
    if rule.range is not None:
        low, high = rule.range
        if threshold is None or isinstance(threshold, bool) or not low <= threshold <= high:
            raise UserError(f"depth rule {name}: threshold = {threshold}: must lie between {low:g} and {high:g}")
    if not rule.needs_kinds:
        return rule(k, threshold)
    if tokenizer is None:
        raise UserError(f"depth rule {name}: needs the tokenizer, which was not given")
    return rule(k, threshold, token_kinds(tokenizer))
