"""What every part of the configuration shares: strict sections, typed scalars, and errors a user can act on.

The one idea: a mistake in config.yaml ends in one line that names the key, the value and what is allowed, whether the
value came from the file or from `--config` (which guesses types).  So nothing is coerced, and no key is ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

from specdec.errors import UserError, nearest


class Section(BaseModel):
    """A mapping of config.yaml.  Unknown keys are refused by name, with the nearest valid one."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    why_not: ClassVar[dict[str, str]] = {}
    """Keys a user might expect here, with the reason why there is none."""

    @model_validator(mode="before")
    @classmethod
    def _only_known_keys(cls, data: Any) -> Any:
        if isinstance(data, cls):
            return data
        if not isinstance(data, dict):
            raise PydanticCustomError("section", "a mapping is expected; its keys: {keys}", {"keys": cls.keys()})
        for key in data:
            if key not in cls.model_fields:
                reason = cls.why_not.get(str(key))
                hint = f" ({reason})" if reason else nearest(str(key), cls.model_fields)
                context = {"key": str(key), "hint": hint, "keys": cls.keys()}
                raise PydanticCustomError("unknown_key", "unknown key{hint}; allowed: {keys}", context)
        return data

    @classmethod
    def keys(cls) -> str:
        return ", ".join(cls.model_fields)


def says(message: str) -> WrapValidator:
    """A validator that answers every way of being wrong with the same sentence."""

    def validate(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value)
        except ValidationError:
            # doubled braces: pydantic formats the message
            raise PydanticCustomError("value", message.replace("{", "{{").replace("}", "}}")) from None

    return WrapValidator(validate)


def number_says(message: str) -> WrapValidator:
    """As `says`, for numbers.  YAML 1.1 reads 3e-1 (no dot) as text; that spelling alone is taken as a number."""

    def validate(value: Any, handler: Callable[[Any], Any]) -> Any:
        if isinstance(value, str) and re.fullmatch(r"\d+[eE][+-]?\d+", value):
            value = float(value)
        try:
            number = handler(value)
        except ValidationError:
            raise PydanticCustomError("value", message) from None
        if abs(number - round(number, 6)) > 1e-12:
            # six decimals keep file names short and make equal values equal names
            raise PydanticCustomError("value", message + ", with at most six decimals")
        return round(number, 6)

    return WrapValidator(validate)


MAX_K = 32

Depth = Annotated[int, Field(ge=1, le=MAX_K), says(f"K is an integer from 1 to {MAX_K}")]
Count = Annotated[int, Field(ge=1, le=1_000_000), says("an integer from 1 to 1000000 is expected")]
CountOrZero = Annotated[int, Field(ge=0, le=1_000_000), says("an integer from 0 to 1000000 is expected")]
Seed = Annotated[int, Field(ge=0, lt=2**31), says("a seed is an integer from 0 to 2147483647")]
Temperature = Annotated[float, Field(ge=0, le=10), number_says("a temperature is a number from 0 to 10")]
Probability = Annotated[float, Field(ge=0, le=1), number_says("a number from 0 to 1 is expected")]
Nats = Annotated[float, Field(ge=0, le=20), number_says("an entropy threshold is a number of nats from 0 to 20")]
Nucleus = Annotated[float, Field(gt=0, le=1), number_says("top_p is a number above 0 and up to 1, or null for off")]
PairName = Annotated[
    str, Field(pattern=r"^[a-z0-9][a-z0-9_]{0,23}$"), says("a name is 1 to 24 of a-z, 0-9 and _, as in smollm2")
]
DraftName = Annotated[
    str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$"), says("a draft's name is 1 to 32 of a-z, 0-9 and _, as in layer_skip")
]
ModelName = Annotated[
    str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$"), says("a model's name is 1 to 64 of a-z, 0-9, dot, _ and -")
]
Text = Annotated[str, Field(min_length=1), says("a text is expected")]
Flag = Annotated[bool, says("true or false is expected")]


def refuse(key: str, value: Any, message: str) -> UserError:
    """The one-line error for `value` at `key`."""
    return UserError(f"config: {key} is {show(value)}: {message}")


def refuse_name(key: str, name: str, what: str, allowed: Any) -> UserError:
    """The error for a reference to something that is not there."""
    names = list(allowed)
    return refuse(key, name, f"unknown {what}{nearest(name, names)}; allowed: {', '.join(names)}")


def show(value: Any) -> str:
    """A value as a user would write it, shortened."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def explain(error: ValidationError) -> UserError:
    """The first complaint of pydantic as one line; further ones are counted."""
    problems = error.errors(include_url=False)
    first = problems[0]
    key = join(first["loc"])
    match first["type"]:
        case "unknown_key":
            full = f"{key}.{first['ctx']['key']}" if key else first["ctx"]["key"]
            text = f"config: {full}: {first['msg']}"
        case "missing":
            text = f"config: {key} is missing"
        case _:
            text = f"config: {key or 'the file'} is {show(first['input'])}: {plain(first)}"
    more = len(problems) - 1
    return UserError(text + (f" (and {more} more)" if more else ""))


def plain(problem: dict[str, Any]) -> str:
    """Pydantic's own sentence, where none of ours applies, in the words of a YAML file."""
    match problem["type"]:
        case "list_type":
            return "a list is expected"
        case "dict_type":
            return "a mapping is expected"
        case "union_tag_not_found" | "union_tag_invalid":
            kinds = problem["ctx"].get("expected_tags", "")
            return f"`kind` says what it is; allowed: {kinds}".replace("'", "")
        case "literal_error":
            allowed = problem["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
            return f"allowed: {', '.join(allowed)}{nearest(str(problem['input']), allowed)}"
        case "too_short":
            return "at least one entry is needed"
        case "string_pattern_mismatch":
            return f"a text of the form {problem['ctx']['pattern']} is expected"
        case _:
            return problem["msg"]


# Tags that pydantic puts into the location of a union member; they are no keys of the file.
TAGS = {
    *("layer_skip", "ngram", "language_model", "eagle"),
    *("static_tree", "sampled_tree", "eagle2", "opt_tree", "sequoia", "coarse_fine"),
}


def join(location: tuple[int | str, ...]) -> str:
    """('experiments', 'fixed_k', 'k', 1) -> experiments.fixed_k.k[1]."""
    key = ""
    parts = list(location)
    for index, part in enumerate(parts):
        # under pairs.<pair>.drafts.<draft> and shapes.<shape> the next part is the tag of the kind
        if part in TAGS and index == 4 and parts[0] == "pairs" and parts[2] == "drafts":
            continue
        if part in TAGS and index == 2 and parts[0] == "shapes":
            continue
        if part == "[key]":
            continue
        key += f"[{part}]" if isinstance(part, int) else (f".{part}" if key else str(part))
    return key
