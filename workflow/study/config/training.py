"""How drafts are trained: the text they learn from, and a recipe for each of them in two sizes.

The values are those of `python -m specdec.training`; a key that is left out has its default there.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from workflow.study.config.base import (
    Count,
    CountOrZero,
    DraftName,
    PairName,
    Probability,
    Section,
    Seed,
    Temperature,
    number_says,
    says,
)
from workflow.study.config.base import Text as Words

Tokens = Annotated[
    int, Field(ge=1, le=10_000_000_000), says("a number of tokens is an integer from 1 to 10000000000, as in 1_000_000")
]
Rate = Annotated[float, Field(gt=0, le=1), number_says("a learning rate is a number above 0 and up to 1")]
Weight = Annotated[float, Field(ge=0, le=100), number_says("a weight is a number from 0 to 100")]
Gibibytes = Annotated[float, Field(gt=0, le=100_000), number_says("gibibytes are a number above 0")]
PerRound = Annotated[float, Field(ge=1, le=5), number_says("tokens per round at K = 4 are a number from 1 to 5")]

Loss = Literal["forward_kl", "reverse_kl", "total_variation", "one_hot", "acceptance"]
OWN_KEYS = {
    "eagle3": ("prompt", "vocabulary", "head", "sampled", "steps", "acceptance", "then"),
    "eagle1": ("prompt", "feature_weight", "token_weight", "noise"),
    "distill": ("vocabulary", "sampled", "layers", "loss"),
}
"""Settings that not every method has."""
OF_METHODS = tuple(dict.fromkeys(key for keys in OWN_KEYS.values() for key in keys))


class Written(Section):
    """How text is written where none is there yet."""

    answer_tokens: Tokens
    seed: Seed | None = None
    rows: Count | None = None
    max_user: Count | None = None
    cut_requests: bool | None = None
    user_temperature: Temperature | None = None
    user_top_k: Count | None = None
    max_answer: Count | None = None
    capacity: Count | None = None
    sampled_share: Probability | None = None
    openers: Words | None = None
    opener_share: Probability | None = None
    conversations: Words | None = None


class TrainingText(Section):
    """Text in `folder`, or, without one, text that the target writes into resources/text/<pair>."""

    folder: Words | None = None
    written: Written | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> TrainingText:
        if (self.folder is None) == (self.written is None):
            raise PydanticCustomError(
                "text", "either `folder` (text that is there) or `written` (how to write it) is needed"
            )
        return self


class Further(Section):
    """A second training, of the head that the first has made; what is not said is as in the first.

    `grow` makes it a head of two layers first, with attention heads set up to copy.
    """

    token_passes: Tokens
    grow: bool | None = None
    batch: Count | None = None
    peak_rate: Rate | None = None
    matrix_rate: Rate | None = None
    warmup: CountOrZero | None = None
    seed: Seed | None = None
    evaluate_every: Count | None = None


class Recipe(Section):
    """One size of a training.  `at_least`: tokens per round on held-out text at K = 4; below, the draft is refused."""

    method: Literal["eagle3", "eagle1", "distill"]
    at_least: PerRound
    token_passes: Tokens
    answer_tokens: Tokens | None = None
    prompt: Count | None = None
    batch: Count | None = None
    optimiser: Literal["muon", "adamw"] | None = None
    peak_rate: Rate | None = None
    matrix_rate: Rate | None = None
    warmup: CountOrZero | None = None
    seed: Seed | None = None
    evaluate_every: Count | None = None
    memory: Gibibytes | None = None
    learn: Literal["answers", "everything"] | None = None
    vocabulary: Count | None = None
    head: Literal["own", "target"] | None = None
    sampled: CountOrZero | None = None
    steps: Count | None = None
    acceptance: Probability | None = None
    feature_weight: Weight | None = None
    token_weight: Weight | None = None
    noise: Weight | None = None
    layers: Annotated[list[CountOrZero], Field(min_length=1)] | None = None
    loss: Loss | None = None
    then: Further | None = None

    @model_validator(mode="after")
    def _own_keys(self) -> Recipe:
        for key in OF_METHODS:
            if getattr(self, key) is not None and key not in OWN_KEYS[self.method]:
                context = {"key": key, "method": self.method}
                raise PydanticCustomError("recipe", "{key} is no setting of the method {method}", context)
        if self.method == "distill" and self.layers is None:
            raise PydanticCustomError("recipe", "layers must say which of the target's the draft is cut from")
        return self


class Recipes(Section):
    """The recipe to be used in earnest, and one that ends in minutes: a smoke test of the whole way."""

    full: Recipe
    quick: Recipe


class PairTraining(Section):
    """Text and recipes of one pair."""

    text: TrainingText
    drafts: dict[DraftName, Recipes] = {}


Training = dict[PairName, PairTraining]
