"""What the rules about trained drafts need to know, and what is said of drafts before a study starts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from specdec.training.parts import PATTERN
from workflow.study.config.heads import RECORD, TEXTS_FOLDER, VOCABULARIES_FOLDER
from workflow.study.experiments import RECORDS

if TYPE_CHECKING:
    from workflow.study.plan import Plan

PASSES = 1_000
"""Token passes a second that a forecast assumes: the default target on two cores."""


class DraftPlan:
    """The part of `Plan` that speaks of trained drafts."""

    def left_out(self: Plan) -> str:
        """A line for everything the study in force leaves out because it is not there."""
        lines = [f"draft {name} is left out: {how}" for name, how in self.config.left_out().items()]
        if not self.config.has_text():
            lines.append(f"prompts of the drafts' own kind are left out: {self.config.no_text()}")
        return "".join(f"{line}\n" for line in lines)

    def training_forecast(self: Plan, drafts: list[str]) -> str:
        passes = sum(self.config.recipe(draft).token_passes for draft in drafts)
        hours = passes / PASSES / 3600
        time = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes"
        return f"drafts to train: {', '.join(drafts)}: about {time} at {PASSES} token passes/s"

    # -- the text ---------------------------------------------------------------------------------
    def target_inputs(self: Plan, wildcards: Any) -> list[str]:
        return self.stamp(self.config.pair_in_force().target)

    def _text_inputs(self: Plan) -> list[str]:
        """What says that the text is whole, where the workflow makes it."""
        made = self.config.text_path() == TEXTS_FOLDER / self.pair
        return [(TEXTS_FOLDER / self.pair / "written.json").as_posix()] if made else []

    def text_values(self: Plan, wildcards: Any = None) -> dict:
        """What the text depends on; one that is written is not written again when code changes, as cells are: it takes
        hours, and folder and settings vouch for it."""
        text, pair = self.config.training[self.pair].text, self.config.pair_in_force()
        if text.folder:
            return {"content": self.digest_of(self.config.text_path(), (f"**/{PATTERN}",))}
        return {
            "written": text.written.model_dump(exclude_none=True, exclude={"rows"}),
            "target": self._source(pair.target),
            "chat": pair.chat.model_dump(exclude_none=True),
        }

    def own_prompts_inputs(self: Plan, wildcards: Any) -> list[str]:
        return [*self.target_inputs(wildcards), *self._text_inputs()]

    def own_prompts_values(self: Plan, wildcards: Any = None) -> dict:
        prompts = self.config.prompts
        return {"text": self.text_values(), "count": prompts.own_kind, "seed": prompts.slice_seed}

    def vocabulary_inputs(self: Plan, wildcards: Any) -> list[str]:
        return self._text_inputs()

    def vocabulary_values(self: Plan, wildcards: Any = None) -> dict:
        return {"text": self.text_values()}

    # -- weights ----------------------------------------------------------------------------------
    def made_for(self: Plan, draft: str) -> list[str]:
        """What the workflow makes before a cell of this draft can be decoded: models, trained weights, token lists."""
        config = self.config
        made = [stamp for name in self._models_with(draft) for stamp in self.stamp(name)]
        if draft == "none":
            return made
        if config.trained_here(draft):
            made.append(f"{config.head_path(draft).as_posix()}/{RECORD}")
        if self._lists_tokens(draft):
            made.append(config.vocabulary_path(draft).as_posix())
        return made

    def _lists_tokens(self: Plan, draft: str) -> bool:
        """Whether the draft's head is cut to a list that the workflow makes."""
        path = self.config.vocabulary_path(draft)
        return path is not None and path.parent == VOCABULARIES_FOLDER

    def weights_in_force(self: Plan, draft: str) -> dict:
        """What tells a cell's draft from another beside its configuration: its trained weights, its list of tokens."""
        found = {}
        if draft != "none" and self.config.head_path(draft) is not None:
            found["head"] = self.head_in_force(draft)
        if draft != "none" and self._lists_tokens(draft):
            found["vocabulary"] = self.vocabulary_values()
        return found

    # -- models that are put together -------------------------------------------------------------
    @property
    def assembled_pattern(self: Plan) -> str:
        """The models that the workflow puts together for this pair."""
        names = [name for name in self.config.pair_in_force().models if self.config.model(name).assembled]
        return "|".join(map(re.escape, names)) or "none assembled"

    def draft_of(self: Plan, model: str) -> str:
        """The draft whose training gives an assembled model its tensors."""
        drafts = self.config.pair_in_force().drafts
        return next(self.config.trained_as(name) for name in drafts if model in self._models_with(name)[1:])

    def assemble_inputs(self: Plan, wildcards: Any) -> list[str]:
        """The target and, where it is trained here, the distilled draft; a shipped one is there."""
        draft = self.draft_of(wildcards.model)
        record = [f"{self.config.head_path(draft).as_posix()}/{RECORD}"] if self.config.trained_here(draft) else []
        return self.target_inputs(wildcards) + record

    def assemble_values(self: Plan, wildcards: Any) -> dict:
        weights = self.head_in_force(self.draft_of(wildcards.model))
        return {"weights": weights, "target": self._source(self.config.pair_in_force().target)}

    def head_inputs(self: Plan, wildcards: Any) -> list[str]:
        return [*self.target_inputs(wildcards), *self._text_inputs()]

    def head_values(self: Plan, wildcards: Any) -> dict:
        """Everything a trained head depends on.  It names the folder of the training, so that a change begins anew."""
        return self._trained_values(wildcards.draft)

    def _trained_values(self: Plan, draft: str) -> dict:
        """Of a draft, or of the one whose weights it shares."""
        recipe = self.config.recipe(draft)
        return {
            "recipe": recipe.model_dump(exclude_none=True, exclude={"at_least", "evaluate_every", "memory"}),
            "target": self._source(self.config.pair_in_force().target),
            "dtype": self.config.run.dtype,
            "text": self.text_values(),
            "code": self.code("train"),
        }

    def head_in_force(self: Plan, draft: str) -> Any:
        """What tells a cell's head from another: how it is trained, or the content of its files."""
        if self.config.trained_here(draft):
            return self._trained_values(draft)
        return self.digest_of(self.config.head_path(draft), ("config.json", "*.safetensors", "*.bin"))

    def records_for(self: Plan, table: str) -> list[str]:
        """Records of trainings that a table is made of, as far as there are any."""
        if table not in ("drafts", *RECORDS):
            return []
        found = []
        for draft in self.config.compared():
            path = self.config.head_path(draft)
            if path is not None and (self.config.trained_here(draft) or (path / RECORD).is_file()):
                found.append((path / RECORD).as_posix())
        found = list(dict.fromkeys(found))  # two drafts may share one training
        beside = {
            "training_ablations": self.config.ablations_path(),
            "training_layerskip": self.config.layerskip_path(),
        }
        if table in beside and beside[table].is_file():
            found.append(beside[table].as_posix())
        if table == "training_curves":
            found += [path.as_posix() for path in sorted(self.config.sizes_path().glob("*.json"))]
        return found
