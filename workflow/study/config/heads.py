"""Which drafts take part, and where the weights of a trained one are read from.

The one idea: `draft_source` decides between weights that are there and those that the workflow trains by a recipe.  A
draft named under `optional` whose weights are not there is left out of every table, and said to be; any other one that
is missing stops the study before its first job.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from specdec.training.parts import parts_of
from workflow.study.config.base import refuse
from workflow.study.config.models import Draft, EagleDraft, LanguageModelDraft, Model, NgramDraft, OwnDraft, Pair
from workflow.study.config.training import PairTraining, Recipe, Recipes

if TYPE_CHECKING:
    from workflow.study.config.study import StudyConfig

HEADS_FOLDER = Path("resources/drafts")
TEXTS_FOLDER = Path("resources/text")
VOCABULARIES_FOLDER = Path("resources/vocabulary")
WEIGHTS, SHAPE, RECORD = "model.safetensors", "config.json", "training.json"
"""The files of a trained draft; the record of its training comes last and vouches for the rest."""
METHODS = {"eagle": ("eagle3", "eagle1"), "language_model": ("distill",)}
"""How drafts of a kind are trained."""


class Heads:
    """The part of `StudyConfig` that speaks of trained drafts; paths are relative to the folder of the study."""

    # -- which drafts take part -------------------------------------------------------------------
    def present(self: StudyConfig, names: list[str], root: Path = Path()) -> list[str]:
        """Those of the drafts that are not left out, each once."""
        return [name for name in dict.fromkeys(names) if name not in self.left_out(root)]

    def studied(self: StudyConfig, root: Path = Path()) -> list[str]:
        """The drafts of the fixed-depth experiment, the primary one first."""
        pair = self.pair_in_force()
        return self.present([pair.primary, *pair.also], root)

    def dynamic(self: StudyConfig, root: Path = Path()) -> list[str]:
        """The drafts whose depth the dynamic rules decide."""
        pair = self.pair_in_force()
        return self.present(pair.dynamic or [pair.primary], root)

    def compared(self: StudyConfig, root: Path = Path()) -> list[str]:
        """Every draft of the pair, the studied ones first."""
        return self.present([*self.studied(root), *self.pair_in_force().drafts], root)

    def left_out(self: StudyConfig, root: Path = Path()) -> dict[str, str]:
        """Optional drafts whose weights are not there, with how to get them."""
        pair = self.pair_in_force()
        missing = {name: self.missing(name, root) for name in pair.optional if name != pair.primary}
        return {name: how for name, how in missing.items() if how}

    def missing(self: StudyConfig, draft: str, root: Path = Path()) -> str | None:
        """What a draft lacks, its weights first, and how to get it, or None; what the workflow makes is there."""
        weights, listed = self._missing_weights(draft, root), self.vocabulary_path(draft)
        if weights is None and listed is not None and not self.draft(draft).vocabulary_file and not self.has_text(root):
            return f"the frequent tokens of draft {draft} are not known: {self.no_text()}"
        return weights

    def _missing_weights(self: StudyConfig, draft: str, root: Path) -> str | None:
        spec, folder = self.draft(draft), self.head_path(draft)
        if isinstance(spec, LanguageModelDraft) and folder is None:
            return self.missing_model(spec.model, root)
        if folder is None or self.trained_here(draft) or (root / folder / SHAPE).is_file():
            return None
        how, what = "put one there", "head" if isinstance(spec, EagleDraft) else "distilled model"
        if isinstance(spec, EagleDraft) and spec.hub:
            how = f"hf download {spec.hub} --local-dir '{folder}'"
        elif self.recipes(self.trained_as(draft)):
            made = HEADS_FOLDER / self.pair / self.trained_as(draft)
            how = f"snakemake --cores 1 --config pair={self.pair} draft_source=train -- {made}/{RECORD}"
            how += f" && cp -r {made} '{folder}'" if made != folder else ""
        return f"the {what} of draft {draft} is not in {folder} (no config.json there); to get it: {how}"

    def missing_model(self: StudyConfig, name: str, root: Path = Path()) -> str | None:
        """The same for a model."""
        model, folder = self.model(name), self.model_path(name)
        if model.made_here or (root / folder / "config.json").is_file():
            return None
        how = f"hf download {model.hub} --local-dir '{folder}'" if model.hub else "put the checkpoint there"
        return f"model {name} is not in {folder} (no config.json there); to get it: {how}"

    # -- trained drafts ---------------------------------------------------------------------------
    def recipes(self: StudyConfig, draft: str | None) -> Recipes | None:
        training = self.training.get(self.pair)
        return training.drafts.get(draft) if training else None

    def trained_as(self: StudyConfig, draft: str) -> str | None:
        """The draft whose training gives this one its weights, None where no training does: of the drafts that share a
        head or a distilled model the one that has a recipe."""
        shared = self._weights_of(draft)
        if shared is None:
            return None
        alike = [name for name in self.pair_in_force().drafts if self._weights_of(name) == shared]
        return next((name for name in alike if self.recipes(name)), draft)

    def _weights_of(self: StudyConfig, draft: str) -> str | None:
        """The head's folder or the distilled model's name; None for drafts that are not trained."""
        spec = self.draft(draft)
        if isinstance(spec, EagleDraft):
            return spec.head
        if isinstance(spec, LanguageModelDraft) and self.model(spec.model).assembled:
            return spec.model
        return None

    def trained_here(self: StudyConfig, draft: str) -> bool:
        """True when the workflow trains this draft's weights."""
        return self.draft_source == "train" and self.recipes(self.trained_as(draft)) is not None

    def recipe(self: StudyConfig, draft: str) -> Recipe:
        return getattr(self.recipes(self.trained_as(draft)), self.draft_recipe)

    def head_path(self: StudyConfig, draft: str) -> Path | None:
        """The folder that holds what was trained of a draft: a head, or a distilled model's own tensors; None for
        drafts that are not trained."""
        if (name := self.trained_as(draft)) is None:
            return None
        if self.trained_here(draft):
            return HEADS_FOLDER / self.pair / name
        spec = self.draft(draft)
        folder = spec.head if isinstance(spec, EagleDraft) else self.model(spec.model).distilled.folder
        return Path(folder).expanduser()

    def origin_of(self: StudyConfig, model: str) -> str:
        """`trained` where the workflow trains an assembled model's own tensors, else `shipped`; the two lie apart."""
        drafts = [name for name, spec in self.pair_in_force().drafts.items() if getattr(spec, "model", None) == model]
        return "trained" if any(map(self.trained_here, drafts)) else "shipped"

    def vocabulary_path(self: StudyConfig, draft: str) -> Path | None:
        """The list of token ids that a draft's head is cut to; None where it is whole."""
        spec = self.draft(draft)
        if not isinstance(spec, OwnDraft) or spec.vocabulary is None:
            return None
        if spec.vocabulary_file:
            return Path(spec.vocabulary_file).expanduser()
        return VOCABULARIES_FOLDER / f"{self.pair}.txt"

    def drafter_spec(self: StudyConfig, draft: str) -> dict:
        """The entry as `specdec.drafters.build_drafter` takes it."""
        spec = self.draft(draft)
        if isinstance(spec, EagleDraft):
            looked_up = spec.model_dump(include={"lookup"}, exclude_none=True)
            return {"kind": spec.kind, "head": str(self.head_path(draft)), **looked_up}
        return spec.model_dump()

    def plain_drafts(self: StudyConfig) -> dict[str, Draft]:
        """The pair's drafts that look nothing up first: such a draft is of two pieces, with two prices."""
        drafts = self.pair_in_force().drafts
        return {name: spec for name, spec in drafts.items() if not getattr(spec, "lookup", None)}

    # -- training text ----------------------------------------------------------------------------
    def no_text(self: StudyConfig) -> str:
        place = self.text_path()
        return f"no training text in {place}" if place else f"training.{self.pair} names no text"

    def text_path(self: StudyConfig) -> Path | None:
        """The folder of the pair's training text, there or not; None where the pair has none."""
        training: PairTraining | None = self.training.get(self.pair)
        if training is None:
            return None
        return Path(training.text.folder).expanduser() if training.text.folder else TEXTS_FOLDER / self.pair

    def missing_text(self: StudyConfig) -> str | None:
        """What is not there of the text that the drafts to be trained learn from, or None."""
        path = self.text_path()
        if self.training[self.pair].text.written or parts_of(path):
            return None
        return f"no training text in {path} (training.{self.pair}.text.folder): no .parquet file there"

    def ablations_path(self: StudyConfig) -> Path:
        """Records of small trainings that differ in one setting each."""
        return Path("checkpoints") / self.pair / "ablations.json"

    def layerskip_path(self: StudyConfig) -> Path:
        """The record of a training of the target itself, whose weights are not kept."""
        return Path("checkpoints") / self.pair / "layerskip.json"

    def sizes_path(self: StudyConfig) -> Path:
        """Records of small models of other sizes, one a file, whose weights are not kept."""
        return Path("checkpoints") / self.pair / "sizes"

    def has_text(self: StudyConfig, root: Path = Path()) -> bool:
        """Whether text is there, or will be made for a draft that is trained."""
        path = self.text_path()
        if path is None:
            return False
        return bool(parts_of(root / path)) or any(map(self.trained_here, self.pair_in_force().drafts))


def check_roles(key: str, pair: Pair, ruled: bool) -> None:
    """What a draft must be able to do for the part it plays; `ruled`: dynamic rules are studied."""
    if ruled:
        for name in pair.dynamic or [pair.primary]:
            where = "dynamic" if pair.dynamic else "primary"
            if isinstance(pair.drafts[name], NgramDraft):
                text = "the dynamic rules read a draft's probabilities, which this kind has none of; name another draft"
                raise refuse(f"{key}.{where}", name, text)
    if pair.primary in pair.optional:
        raise refuse(f"{key}.optional", pair.primary, "the primary draft carries the study and cannot be left out")


def check_recipes(key: str, recipes: Mapping[str, Recipes], drafts: Mapping[str, Draft], models: Mapping) -> None:
    """Only heads and distilled models are trained, each by its methods, and weights that are shared by one recipe."""
    shared: dict[str, str] = {}
    for name, of_draft in recipes.items():
        draft = drafts[name]
        if isinstance(draft, LanguageModelDraft):
            model: Model = models[draft.model]
            if not model.assembled:
                raise refuse(
                    f"{key}.{name}", name, f"its model {draft.model} is not distilled here and takes no recipe"
                )
            what, weights = "model", draft.model
        elif isinstance(draft, EagleDraft):
            what, weights = "head", draft.head
        else:
            raise refuse(f"{key}.{name}", name, f"{name} is not trained (its kind is {draft.kind}) and takes no recipe")
        if weights in shared:
            raise refuse(f"{key}.{name}", name, f"the recipe of {shared[weights]} trains its {what} already")
        shared[weights] = name
        for size in ("full", "quick"):
            method, allowed = getattr(of_draft, size).method, METHODS[draft.kind]
            if method not in allowed:
                text = f"a draft of the kind {draft.kind} is not trained so; allowed: {', '.join(allowed)}"
                raise refuse(f"{key}.{name}.{size}.method", method, text)
