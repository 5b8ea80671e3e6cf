"""Shapes of drafts, and the experiments that compare them: trees, verification, ablation.

A shape is named once, under `shapes`, and used by its name everywhere; `chain` is always there.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from workflow.study.config.base import Count, Depth, Flag, Probability, Section, Temperature, says

CHAIN = "chain"
Verifier = Literal["greedy", "rejection", "sample_and_match", "recursive", "spectr", "block", "traversal", "typical"]

MAX_NODES = 512
Nodes = Annotated[int, Field(ge=1, le=MAX_NODES), says(f"a number of nodes is an integer from 1 to {MAX_NODES}")]
ShapeName = Annotated[
    str, Field(pattern=r"^[a-z][a-z0-9_]{0,23}$"), says("a shape's name is 1 to 24 of a-z, 0-9 and _, as in eagle2")
]
Rank = Annotated[int, Field(ge=0, le=1023), says("a rank is an integer from 0")]
Ranks = Annotated[list[Rank], Field(min_length=1)]
Widths = Annotated[list[Count], Field(min_length=1)]


class StaticShape(Section):
    """The likeliest tokens by rank: every node has `widths` children by level, or exactly the rank paths named."""

    kind: Literal["static_tree"]
    preset: Literal["eagle1", "medusa"] | None = None
    widths: Widths | None = None
    paths: Annotated[list[Ranks], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _one(self) -> StaticShape:
        if sum(value is not None for value in (self.preset, self.widths, self.paths)) != 1:
            raise PydanticCustomError("one", "exactly one of preset, widths and paths names the tree")
        return self


class SampledShape(Section):
    """Children drawn from the draft's law, with or without replacement; at temperature 0 the likeliest ones."""

    kind: Literal["sampled_tree"]
    widths: Widths
    replacement: Flag = False


class Eagle2Shape(Section):
    """EAGLE-2: expand by confidence, keep the best; under the policy `ddd` with DDD's depth."""

    kind: Literal["eagle2"]
    width: Count = 4


class OptTreeShape(Section):
    """OPT-Tree: the largest expected accepted length; under the policy `cost` with its stopping rule."""

    kind: Literal["opt_tree"]


class SequoiaShape(Section):
    """The static tree that fits the calibration's acceptance by rank and its costs."""

    kind: Literal["sequoia"]


class CoarseFineShape(Section):
    """Two other shapes in turns."""

    kind: Literal["coarse_fine"]
    coarse: ShapeName
    fine: ShapeName
    coarse_rounds: Count = 1
    fine_rounds: Count = 1


Shape = Annotated[
    StaticShape | SampledShape | Eagle2Shape | OptTreeShape | SequoiaShape | CoarseFineShape,
    Field(discriminator="kind"),
]


class Contender(Section):
    """A shape with the policy that says how deep it goes."""

    shape: ShapeName
    policy: Literal["fixed", "cost", "ddd"] = "fixed"


class Trees(Section):
    """Shapes at equal node budgets."""

    k: Depth
    deepest: Depth
    nodes: Annotated[list[Nodes], Field(min_length=1)]
    contenders: Annotated[dict[ShapeName, Contender], Field(min_length=1)]


class Distribution(Section):
    """Continuations of one prompt, by the target alone and by every exact rule, compared as samples."""

    continuations: Annotated[int, Field(ge=20, le=100_000), says("continuations is an integer from 20 to 100000")]
    tokens: Count = 2
    shift: Probability = 0.1


class Verification(Section):
    """Verification rules, by the shape they verify, at temperatures above 0."""

    k: Depth
    nodes: Nodes
    temperatures: Annotated[list[Temperature], Field(min_length=1)]
    rules: Annotated[dict[ShapeName, list[Verifier]], Field(min_length=1)]
    distribution: Distribution | None = None

    @model_validator(mode="after")
    def _drawn(self) -> Verification:
        if 0.0 in self.temperatures:
            raise PydanticCustomError("temperature", "rules differ above temperature 0 only")
        return self


class Ablation(Section):
    """Two improvements over the primary tree draft's chain, each alone and both."""

    k: Depth
    deepest: Depth
    nodes: Nodes
    shape: ShapeName
    beside: ShapeName


class TreesSize(Section):
    """The slice of `experiments.trees`; null is all of it."""

    contenders: list[ShapeName] | None = None
    nodes: list[Nodes] | None = None
