"""Which draft, shape, policy and verification rule go together; the others are refused before any job, with the reason.

The engine refuses them as well, but only once a model is loaded, and importing it takes longer than planning a study.
What its rooms declare is therefore written down here once more, and a test holds both against each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from specdec.errors import UserError, unknown
from workflow.study.cells import Cell
from workflow.study.config import LanguageModelDraft, NgramDraft, StudyConfig
from workflow.study.config.experiments import THRESHOLD_RULES
from workflow.study.config.trees import CHAIN, CoarseFineShape, SampledShape

POINT, WITH, WITHOUT = "point", "with_replacement", "without_replacement"
LAWS = frozenset({POINT, WITH, WITHOUT})
SHAPES = frozenset({"chain", "tree"})


@dataclass(frozen=True)
class Declared:
    """What a verifier says of itself (`specdec.verifiers.base`)."""

    lossless: bool = True
    laws: frozenset[str] = LAWS
    shapes: frozenset[str] = SHAPES
    greedy_only: bool = False


VERIFIERS: dict[str, Declared] = {
    "greedy": Declared(greedy_only=True),
    "rejection": Declared(shapes=frozenset({"chain"})),
    "sample_and_match": Declared(),
    "recursive": Declared(),
    "spectr": Declared(laws=frozenset({WITH})),
    "block": Declared(shapes=frozenset({"chain"})),
    "traversal": Declared(),
    "typical": Declared(lossless=False),
}

CHAIN_POLICIES = ("fixed", "history", "cost", *THRESHOLD_RULES)
POLICIES: dict[str, tuple[str, ...]] = {
    "chain": CHAIN_POLICIES,
    "static_tree": ("fixed",),
    "sampled_tree": ("fixed",),
    "eagle2": ("fixed", "ddd"),
    "opt_tree": ("fixed", "cost"),
    "sequoia": ("fixed",),
    "coarse_fine": ("fixed",),
}
"""Policies by kind of shape."""


def kind_of(config: StudyConfig, shape: str) -> str:
    """The kind of a shape's name."""
    found = config.shape(shape)
    return CHAIN if found is None else found.kind


def needs_calibration(config: StudyConfig, cell: Cell) -> bool:
    """Does the cell's draft depend on what was measured beforehand?"""
    return cell.policy in ("cost", "ddd") or "sequoia" in kinds(config, cell.shape)


def kinds(config: StudyConfig, shape: str) -> set[str]:
    """The kinds a shape is made of: its own, or those of both halves."""
    found = config.shape(shape)
    if isinstance(found, CoarseFineShape):
        return {kind_of(config, found.coarse), kind_of(config, found.fine)}
    return {kind_of(config, shape)}


def laws(config: StudyConfig, cell: Cell) -> set[str]:
    """How the cell's drafts are chosen."""
    if isinstance(config.draft(cell.draft), NgramDraft):
        return {POINT}
    if cell.temperature == 0 or config.sampling.draft_temperature == 0:
        return {POINT}
    looked_up = set() if cell.draft in config.plain_drafts() else {POINT}
    shape = config.shape(cell.shape)
    parts = (shape.coarse, shape.fine) if isinstance(shape, CoarseFineShape) else (cell.shape,)
    return looked_up | {_law(config, part) for part in parts}


def _law(config: StudyConfig, shape: str) -> str:
    found = config.shape(shape)
    if found is None:
        return WITHOUT
    return (WITH if found.replacement else WITHOUT) if isinstance(found, SampledShape) else POINT


def check(config: StudyConfig, cell: Cell) -> Cell:
    """The cell, where it is legal.  Raises `UserError` with the reason where it is not."""
    if cell.policy == "ar":
        return cell
    draft, kind = config.draft(cell.draft), kind_of(config, cell.shape)
    if isinstance(draft, NgramDraft) and (kind, cell.policy) != (CHAIN, "fixed"):
        _refuse(cell, "the draft proposes in one go: nothing can shape or stop it; allowed: chain, fixed")
    if cell.policy not in POLICIES[kind]:
        _refuse(cell, f"policy {cell.policy} cannot stop the shape {cell.shape}; allowed: {', '.join(POLICIES[kind])}")
    if kind == CHAIN and cell.nodes != cell.k:
        _refuse(cell, f"a chain has as many nodes as levels, so {cell.nodes} nodes are K = {cell.nodes}")
    if cell.verifier not in VERIFIERS:
        raise unknown("verifier", cell.verifier, VERIFIERS)
    rule = VERIFIERS[cell.verifier]
    if rule.greedy_only and cell.temperature > 0:
        _refuse(cell, f"verifier {cell.verifier} is exact at temperature 0 only")
    form = "chain" if kind == CHAIN else "tree"
    if form not in rule.shapes:
        _refuse(cell, f"verifier {cell.verifier} is not exact for a {form}; allowed: {', '.join(sorted(rule.shapes))}")
    if form == "chain" and cell.verifier == "spectr":
        return cell  # a single candidate is independent of its siblings, whatever its law
    if wrong := laws(config, cell) - rule.laws:
        allowed = ", ".join(sorted(rule.laws))
        _refuse(cell, f"verifier {cell.verifier} is not exact for proposals drawn {min(wrong)}; allowed: {allowed}")
    return cell


def static(config: StudyConfig, cell: Cell) -> bool:
    """Whether the cell decodes over fixed buffers: where the configuration asks for it and they cover the cell."""
    if not config.run.static or cell.policy == "ar":
        return config.run.static
    plain = (cell.shape, cell.policy, cell.verifier) == (CHAIN, "fixed", cell.usual_verifier)
    return plain and isinstance(config.plain_drafts().get(cell.draft), LanguageModelDraft)


def _refuse(cell: Cell, reason: str) -> NoReturn:
    raise UserError(f"cell {cell.name}: {reason}")
