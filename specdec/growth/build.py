"""A grower from its configuration: {kind, ...} names the shape and its options, a policy says when to stop."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING

from specdec.errors import UserError, unknown
from specdec.growth.chain import Chain
from specdec.growth.coarse_fine import CoarseFine
from specdec.growth.eagle2 import Eagle2
from specdec.growth.grower import Grower
from specdec.growth.levels import Always, Ddd, LevelRule
from specdec.growth.opt_tree import OptTree
from specdec.growth.rules import build_rule
from specdec.growth.sampled_tree import SampledTree
from specdec.growth.static_tree import StaticTree

if TYPE_CHECKING:
    from specdec.drafters.base import DraftModel
    from specdec.models.tokenizer import Tokenizer

GROWERS: dict[str, type[Grower]] = {
    "chain": Chain,
    "static_tree": StaticTree,
    "sampled_tree": SampledTree,
    "eagle2": Eagle2,
    "opt_tree": OptTree,
    "coarse_fine": CoarseFine,
}
LEVEL_RULES: dict[str, type[LevelRule]] = {"fixed": Always, "ddd": Ddd}


def build_grower(
    shape: str | Mapping,
    model: DraftModel,
    *,
    k: int,
    policy: str = "fixed",
    threshold: float | None = None,
    tokenizer: Tokenizer | None = None,
) -> Grower:
    """The grower of `shape`, a name in `GROWERS` or {kind: name, option: value, ...}.

    A chain takes a depth rule as its policy, `eagle2` a level rule (with DDD's threshold, and its `levels` as an option
    of the shape), the other trees `fixed` alone.  The halves of `coarse_fine`, `coarse` and `fine`, are shapes of their
    own, with a policy and threshold of their own among their options.
    """
    options = {"kind": shape} if isinstance(shape, str) else dict(shape)
    kind = options.pop("kind", None)
    if kind not in GROWERS:
        raise unknown("shape", kind, GROWERS)
    grower = GROWERS[kind]
    if kind == "chain":
        _known(kind, options, ())
        return Chain(model, build_rule(policy, k, threshold, tokenizer))
    if kind == "eagle2":
        _known(kind, options, ("width", "nodes", "levels"))
        levels = {"levels": options.pop("levels")} if "levels" in options else {}
        return Eagle2(model, **options, level_rule=_level_rule(policy, threshold, levels))
    if policy != "fixed" or threshold is not None:
        wrong = f"policy {policy} cannot stop it" if policy != "fixed" else f"takes no threshold, got {threshold}"
        raise UserError(f"shape {kind}: {wrong}; allowed: fixed")
    if kind == "coarse_fine":
        _known(kind, options, ("coarse", "fine", "coarse_rounds", "fine_rounds"))
        halves = [_half(options.pop(name, default), model, k, tokenizer) for name, default in HALVES.items()]
        return CoarseFine(*halves, **options)
    _known(kind, options, list(inspect.signature(grower).parameters)[1:])
    return grower(model, **options)


HALVES: dict[str, str] = {"coarse": "static_tree", "fine": "chain"}


def _half(shape: str | Mapping, model: DraftModel, k: int, tokenizer: Tokenizer | None) -> Grower:
    options = {"kind": shape} if isinstance(shape, str) else dict(shape)
    policy = {name: options.pop(name) for name in ("policy", "threshold") if name in options}
    return build_grower(options, model, k=k, tokenizer=tokenizer, **policy)


def _level_rule(policy: str, threshold: float | None, levels: dict) -> LevelRule:
    if policy not in LEVEL_RULES:
        raise unknown("level rule", policy, LEVEL_RULES)
    if policy == "ddd":
        return Ddd(**levels) if threshold is None else Ddd(**levels, threshold=threshold)
    if threshold is not None or levels:
        raise UserError("level rule fixed: takes neither threshold nor levels")
    return Always()


def _known(kind: str, options: Mapping, allowed) -> None:
    for name in options:
        if name not in allowed:
            raise unknown(f"option of shape {kind}", name, allowed)
