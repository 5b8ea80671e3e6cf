"""Propose, first half: where candidate tokens come from.  One method a file.

`KINDS` says which drafters guess step by step (a grower makes them drafters) and which propose in one go.  A kind's
class is built from the keys of its configuration entry; `build_drafter` puts the pieces together.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache

from specdec.drafters.base import Budget, Context, Drafter, DraftModel, Nothing
from specdec.drafters.eagle import Eagle
from specdec.drafters.language_model import LanguageModel
from specdec.drafters.layer_skip import LayerSkip
from specdec.drafters.lookup_first import LookupFirst
from specdec.drafters.ngram import NGram
from specdec.errors import UserError, unknown
from specdec.growth import Chain, build_grower
from specdec.models import LoadedModel
from specdec.models.tokenizer import Tokenizer, check_shared
from specdec.models.transformer import Transformer

STEPWISE = ("language_model", "layer_skip", "eagle")
WHOLE = ("ngram",)
KINDS = (*STEPWISE, *WHOLE)

K_MAX = 32
"""The deepest draft that may be asked for."""
NODES_MAX = 512
"""The largest tree that may be asked for."""


def check_k(k: object) -> int:
    """K as an integer between 1 and `K_MAX`; anything else is the user's mistake."""
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= K_MAX:
        raise UserError(f"k = {k!r}: must be an integer between 1 and {K_MAX}")
    return k


def check_nodes(nodes: object) -> int:
    """A number of nodes between 1 and `NODES_MAX`; anything else is the user's mistake."""
    if isinstance(nodes, bool) or not isinstance(nodes, int) or not 1 <= nodes <= NODES_MAX:
        raise UserError(f"nodes = {nodes!r}: must be an integer between 1 and {NODES_MAX}")
    return nodes


def build_drafter(
    spec: dict,
    target: Transformer,
    *,
    policy: str,
    k: int,
    threshold: float | None = None,
    draft: LoadedModel | Eagle | None = None,
    shape: str | Mapping = "chain",
    tokenizer: Tokenizer | None = None,
) -> Drafter:
    """The drafter of a configuration entry `spec` = {kind, ...} under a policy and a shape (`specdec.growth.build`).

    `draft` is the loaded second model of a `language_model`, or the loaded head of an `eagle`, which is read from its
    folder where it is not given; `tokenizer`, the target's, is needed by rules that read tokens.  A whole-draft kind
    takes `fixed` and `chain` alone.  In the entry of any other `lookup` = {rule, max_ngram, min_ngram} lets prompt
    lookup guess first.
    """
    check_k(k)
    options = {key: value for key, value in spec.items() if key not in ("kind", "lookup")}
    kind, lookup = spec.get("kind"), spec.get("lookup")
    if kind == "ngram":
        if lookup:
            raise UserError("draft ngram: it looks the text up already; lookup is for drafts that guess step by step")
        if policy != "fixed":
            raise UserError(f"draft ngram: proposes in one go, so policy {policy} cannot stop it; allowed: fixed")
        if shape != "chain":
            raise UserError(f"draft ngram: proposes in one go, so shape {shape} cannot grow it; allowed: chain")
        return NGram(**options)
    if kind == "layer_skip":
        model = LayerSkip(target, **options)
    elif kind == "language_model":
        if draft is None:
            raise UserError("draft language_model: its model was not given")
        _check_head(draft, options.get("vocabulary"))
        model = LanguageModel(draft.model, target.vocabulary)
    elif kind == "eagle":
        model = draft if isinstance(draft, Eagle) else Eagle.load(options["head"], target)
        if 0 < model.config.trained_depth < k:
            _deeper_than_trained(str(options["head"]), model.config.trained_depth, k)
    else:
        raise unknown("draft kind", kind, KINDS)
    grower = build_grower(shape, model, k=k, policy=policy, threshold=threshold, tokenizer=tokenizer)
    return LookupFirst(NGram(**lookup), grower) if lookup else grower


def _check_head(draft: LoadedModel, size: int | None) -> None:
    """The head was cut, when the model was loaded, as the entry says."""
    found = None if draft.model.head_ids is None else len(draft.model.head_ids)
    if found != size:
        raise UserError(f"draft language_model: vocabulary = {size}, but the model's head was cut to {found}")


@cache
def _deeper_than_trained(folder: str, trained: int, k: int) -> None:
    """Said once for a head and a depth: drafting on is allowed, but guesses get worse from there."""
    text = f"draft head {folder}: k = {k}, but it was trained for {trained} self-fed steps; deeper guesses are worse"
    warnings.warn(text, stacklevel=3)


__all__ = [
    "KINDS",
    "K_MAX",
    "NODES_MAX",
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
    "LookupFirst",
    "NGram",
    "Nothing",
    "build_drafter",
    "check_k",
    "check_nodes",
    "check_shared",
]
