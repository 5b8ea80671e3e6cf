"""Propose, first half: where candidate tokens come from.  One method a file.

`KINDS` says which drafters guess step by step (a grower makes them drafters) and which propose in one go.  A kind's
class is built from the keys of its configuration entry; `build_drafter` puts the pieces together.
"""

from __future__ import annotations

import warnings
from functools import cache

from specdec.drafters.base import Budget, Context, Drafter, DraftModel, Nothing
from specdec.drafters.eagle import Eagle
from specdec.drafters.language_model import LanguageModel
from specdec.drafters.layer_skip import LayerSkip
from specdec.drafters.ngram import NGram
from specdec.errors import UserError, unknown
from specdec.growth import Chain, build_rule
from specdec.models import LoadedModel
from specdec.models.tokenizer import check_shared
from specdec.models.transformer import Transformer

STEPWISE = ("language_model", "layer_skip", "eagle")
WHOLE = ("ngram",)
KINDS = (*STEPWISE, *WHOLE)

K_MAX = 32
"""The deepest draft that may be asked for."""


def check_k(k: object) -> int:
    """K as an integer between 1 and `K_MAX`; anything else is the user's mistake."""
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= K_MAX:
        raise UserError(f"k = {k!r}: must be an integer between 1 and {K_MAX}")
    return k


def build_drafter(
    spec: dict,
    target: Transformer,
    *,
    policy: str,
    k: int,
    threshold: float | None = None,
    draft: LoadedModel | Eagle | None = None,
) -> Drafter:
    """The drafter of a configuration entry `spec` = {kind, ...} under a depth rule.

    `draft` is the loaded second model of a `language_model`, or the loaded head of an `eagle`, which is read from its
    folder where it is not given.  A whole-draft kind takes `fixed` alone.
    """
    check_k(k)
    options = {key: value for key, value in spec.items() if key != "kind"}
    kind = spec.get("kind")
    if kind == "ngram":
        if policy != "fixed":
            raise UserError(f"draft ngram: proposes in one go, so policy {policy} cannot stop it; allowed: fixed")
        return NGram(**options)
    rule = build_rule(policy, k, threshold)
    if kind == "layer_skip":
        return Chain(LayerSkip(target, **options), rule)
    if kind == "language_model":
        if draft is None:
            raise UserError("draft language_model: its model was not given")
        return Chain(LanguageModel(draft.model, target.vocabulary), rule)
    if kind == "eagle":
        head = draft if isinstance(draft, Eagle) else Eagle.load(options["head"], target)
        if 0 < head.config.trained_depth < k:
            _deeper_than_trained(str(options["head"]), head.config.trained_depth, k)
        return Chain(head, rule)
    raise unknown("draft kind", kind, KINDS)


@cache
def _deeper_than_trained(folder: str, trained: int, k: int) -> None:
    """Said once for a head and a depth: drafting on is allowed, but guesses get worse from there."""
    text = f"draft head {folder}: k = {k}, but it was trained for {trained} self-fed steps; deeper guesses are worse"
    warnings.warn(text, stacklevel=3)


__all__ = [
    "KINDS",
    "K_MAX",
    "STEPWISE",
    "WHOLE",
    "Budget",
    "Chain",
    "Context",
    "DraftModel",
    "Drafter",
    "Eagle",
    "LanguageModel",
    "LayerSkip",
    "NGram",
    "Nothing",
    "build_drafter",
    "check_k",
    "check_shared",
]
