"""Prompts: JSON lines in the format of Spec-Bench, and the seeded slices drawn from them.

A slice is drawn by the rank of a hash of seed and question id within each category, not by a shuffle: a prompt that is
added elsewhere moves no other prompt, and a larger slice contains the smaller one.  The first ranks of a category are
the calibration prompts; what is reported never touches them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from specdec.errors import UserError
from workflow.study.cells import PROJECT
from workflow.study.config import StudyConfig

UNCATEGORISED = "uncategorised"


@dataclass(frozen=True)
class Prompt:
    """What the user says, turn by turn."""

    prompt_id: str
    category: str
    turns: tuple[str, ...]
    reference: tuple[str, ...] = ()


def read(path: str | Path) -> list[Prompt]:
    """All prompts of a file.  Raises `UserError` naming file and line; keys beyond the known ones are allowed."""
    path = Path(path)
    try:
        content = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file of prompts; see prompts.files in config.yaml") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    # not splitlines(), which also cuts at separators that may stand inside a JSON string
    lines = [(number, line) for number, line in enumerate(content.split("\n"), start=1) if line.strip()]
    if not lines:
        raise UserError(f"{path}: no prompts in this file")
    return [_parse(line, f"{path}, line {number}") for number, line in lines]


def read_all(paths: Iterable[str | Path]) -> list[Prompt]:
    """The prompts of several files; a question id stands for one prompt."""
    prompts: list[Prompt] = []
    seen: dict[str, Path] = {}
    for path in map(Path, paths):
        for prompt in read(path):
            if prompt.prompt_id in seen:
                raise UserError(f"{path}: question_id {prompt.prompt_id} is also in {seen[prompt.prompt_id]}")
            seen[prompt.prompt_id] = path
            prompts.append(prompt)
    return prompts


def _parse(line: str, where: str) -> Prompt:
    try:
        data = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not JSON ({error.msg}, column {error.colno})") from None
    if not isinstance(data, dict):
        raise UserError(f"{where}: an object with question_id and turns is expected")
    name = data.get("question_id")
    if isinstance(name, bool) or not isinstance(name, int | str) or str(name).strip() == "":
        raise UserError(f"{where}: question_id is {json.dumps(name)}; an integer or a text is expected")
    turns = data.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t.strip() for t in turns):
        raise UserError(f"{where}: turns must be a list of one or more texts, none of them empty")
    category = data.get("category") or UNCATEGORISED
    if not isinstance(category, str):
        raise UserError(f"{where}: category is {json.dumps(category)}; a text is expected")
    reference = data.get("reference") or []
    reference = [reference] if isinstance(reference, str) else reference
    if not isinstance(reference, list) or not all(isinstance(text, str) for text in reference):
        raise UserError(f"{where}: reference must be a text or a list of texts")
    return Prompt(str(name).strip(), category.strip() or UNCATEGORISED, tuple(turns), tuple(reference))


def split(prompts: list[Prompt], seed: int, calibration: int) -> dict[str, tuple[list[Prompt], list[Prompt]]]:
    """By category, in order of first appearance: (calibration prompts, the others), both in order of rank.

    A category gives at most half of its prompts to calibration.
    """
    groups: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.category, []).append(prompt)
    parts = {}
    for category, members in groups.items():
        ranked = sorted(members, key=lambda prompt: rank(seed, prompt.prompt_id))
        taken = min(calibration, len(ranked) // 2)
        parts[category] = (ranked[:taken], ranked[taken:])
    return parts


def rank(seed: int, prompt_id: str) -> str:
    return hashlib.sha256(f"{seed}:{prompt_id}".encode()).hexdigest()


OWN_KIND_FOLDER = Path("resources/prompts")


def own_kind_file(config: StudyConfig) -> Path:
    """Where the requests of held-out conversations stand, as a file of prompts like any other."""
    return OWN_KIND_FOLDER / config.pair / "own_kind.jsonl"


def slice_of(config: StudyConfig, prompt_set: str, root: str | Path = ".") -> list[Prompt]:
    """The prompts of a set that the study in force reports on."""
    return evaluation_slice(config, root) if prompt_set == PROJECT else read(Path(root) / own_kind_file(config))


def evaluation_slice(config: StudyConfig, root: str | Path = ".") -> list[Prompt]:
    """The prompts the study in force reports on: `per_category` of each category, turns cut to the size in force."""
    parts = _parts(config, root)
    chosen = [prompt for _, others in parts.values() for prompt in others[: config.size.per_category]]
    return [_cut(prompt, config.size.turns) for prompt in chosen]


def calibration_slice(config: StudyConfig, root: str | Path = ".") -> list[Prompt]:
    """The prompts that thresholds and the best K are chosen on; none of them is ever reported on."""
    parts = _parts(config, root)
    return [_cut(prompt, config.size.turns) for chosen, _ in parts.values() for prompt in chosen]


def _parts(config: StudyConfig, root: str | Path) -> dict[str, tuple[list[Prompt], list[Prompt]]]:
    prompts = read_all(Path(root) / path for path in config.prompt_files())
    return split(prompts, config.prompts.slice_seed, config.prompts.calibration_per_category)


def _cut(prompt: Prompt, turns: int) -> Prompt:
    return Prompt(prompt.prompt_id, prompt.category, prompt.turns[:turns], prompt.reference[:turns])


def digest(prompts: Iterable[Prompt]) -> str:
    """A short hash of what the prompts say, in their order."""
    content = json.dumps([asdict(prompt) for prompt in prompts], ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
