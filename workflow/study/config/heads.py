"""Which drafts take part, and where a trained head is read from.

The one idea: `draft_source` decides between a head that is there and one that the workflow trains by its recipe.  A
draft named under `optional` whose weights are not there is left out of every table, and said to be; any other one that
is missing stops the study before its first job.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from workflow.study.config.base import refuse
from workflow.study.config.models import Draft, EagleDraft, LanguageModelDraft, NgramDraft, Pair
from workflow.study.config.training import PairTraining, Recipe, Recipes

if TYPE_CHECKING:
    from workflow.study.config.study import StudyConfig

HEADS_FOLDER = Path("resources/drafts")
TEXTS_FOLDER = Path("resources/text")
WEIGHTS, SHAPE, RECORD = "model.safetensors", "config.json", "training.json"
"""The files of a head; the record of its training comes last and vouches for the rest."""


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
        """The weights of a draft that are not there and how to get them, or None; what the workflow makes is there."""
        spec = self.draft(draft)
        if isinstance(spec, LanguageModelDraft):
            return self.missing_model(spec.model, root)
        folder = self.head_path(draft)
        if folder is None or self.trained_here(draft) or (root / folder / SHAPE).is_file():
            return None
        how = "put a head there"
        if spec.hub:
            how = f"hf download {spec.hub} --local-dir '{folder}'"
        elif self.recipes(draft):
            made = HEADS_FOLDER / self.pair / draft
            how = f"snakemake --cores 1 --config pair={self.pair} draft_source=train -- {made}/{RECORD}"
            how += f" && cp -r {made} '{folder}'" if made != folder else ""
        return f"the head of draft {draft} is not in {folder} (no config.json there); to get it: {how}"

    def missing_model(self: StudyConfig, name: str, root: Path = Path()) -> str | None:
        """The same for a model."""
        model, folder = self.model(name), self.model_path(name)
        if model.made_here or (root / folder / "config.json").is_file():
            return None
        how = f"hf download {model.hub} --local-dir '{folder}'" if model.hub else "put the checkpoint there"
        return f"model {name} is not in {folder} (no config.json there); to get it: {how}"

    # -- trained heads ----------------------------------------------------------------------------
    def recipes(self: StudyConfig, draft: str) -> Recipes | None:
        training = self.training.get(self.pair)
        return training.drafts.get(draft) if training else None

    def trained_here(self: StudyConfig, draft: str) -> bool:
        """True when the workflow trains this draft."""
        return self.draft_source == "train" and self.recipes(draft) is not None

    def recipe(self: StudyConfig, draft: str) -> Recipe:
        return getattr(self.recipes(draft), self.draft_recipe)

    def head_path(self: StudyConfig, draft: str) -> Path | None:
        """The folder a head is read from; None for drafts of another kind."""
        spec = self.draft(draft)
        if not isinstance(spec, EagleDraft):
            return None
        return HEADS_FOLDER / self.pair / draft if self.trained_here(draft) else Path(spec.head).expanduser()

    def drafter_spec(self: StudyConfig, draft: str) -> dict:
        """The entry as `specdec.drafters.build_drafter` takes it."""
        spec = self.draft(draft)
        if isinstance(spec, EagleDraft):
            return {"kind": spec.kind, "head": str(self.head_path(draft))}
        return spec.model_dump()

    # -- training text ----------------------------------------------------------------------------
    def text_path(self: StudyConfig) -> Path | None:
        """The folder of the pair's training text, there or not; None where the pair has none."""
        training: PairTraining | None = self.training.get(self.pair)
        if training is None:
            return None
        return Path(training.text.folder).expanduser() if training.text.folder else TEXTS_FOLDER / self.pair

    def missing_text(self: StudyConfig) -> str | None:
        """What is not there of the text that the drafts to be trained learn from, or None."""
        path = self.text_path()
        if self.training[self.pair].text.written or any(path.rglob("part-*.parquet")):
            return None
        return f"no training text in {path} (training.{self.pair}.text.folder): no .parquet file there"

    def ablations_path(self: StudyConfig) -> Path:
        """Records of small trainings that differ in one setting each."""
        return Path("checkpoints") / self.pair / "ablations.json"

    def has_text(self: StudyConfig, root: Path = Path()) -> bool:
        """Whether text is there, or will be made for a draft that is trained."""
        path = self.text_path()
        if path is None:
            return False
        return any((root / path).rglob("part-*.parquet")) or any(map(self.trained_here, self.pair_in_force().drafts))


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


def check_trained(key: str, name: str, draft: Draft) -> None:
    """Only heads are trained by a recipe."""
    if not isinstance(draft, EagleDraft):
        raise refuse(key, name, f"{name} is no trained head (its kind is {draft.kind}) and takes no recipe")
