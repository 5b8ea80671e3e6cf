"""Settings of the measurements that decode no cell: what passes cost, profiles, peers, long contexts."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from workflow.study.config.base import Count, Depth, Flag, Section, says

Width = Annotated[int, Field(ge=1, le=32), says("a width is an integer from 1 to 32")]
Length = Annotated[int, Field(ge=1, le=131_072), says("a context length is an integer from 1 to 131072")]


class CostModel(Section):
    """Forward time of target and drafts, by width and context."""

    widths: Annotated[list[Width], Field(min_length=1)] = [1, 2, 3, 4, 5, 8, 9, 16, 32]
    contexts: Annotated[list[Length], Field(min_length=1)] = [128, 512]
    repeats: Count = 9
    timing_only: Flag = False

    @model_validator(mode="after")
    def _from_one_token(self) -> CostModel:
        if 1 not in self.widths:
            raise PydanticCustomError(
                "widths", "1 must be among the widths: every cost is in units of a pass over one token"
            )
        return self


class Profile(Section):
    """One generation in each arm under the profiler, and passes of several widths against the machine's limits."""

    k: Depth = 4
    tokens: Count = 16
    widths: Annotated[list[Width], Field(min_length=1)] = [1, 2, 4, 8, 16, 32]
    context: Length = 128
    repeats: Count = 9


class Peers(Section):
    """Other tools on the same prompts."""

    in_report: Flag = False
    prompts: Count = 6
    max_new_tokens: Annotated[int, Field(ge=2, le=100_000), says("max_new_tokens is an integer from 2 to 100000")] = 48
    k: Depth = 4


class LongContext(Section):
    """Time per token against the length of the text before it."""

    in_report: Flag = False
    contexts: Annotated[list[Length], Field(min_length=2)] = [128, 512, 1024, 2048, 3072]
    outputs: Count = 1024
    window: Count = 256
