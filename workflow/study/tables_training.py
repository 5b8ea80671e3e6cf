"""Tables of how drafts were trained, from the records that stand beside them.

A record is what `specdec.training` writes with a head: its recipe, text, history and quality on held-out text.  The
file of ablations is a list of rows that `python -m specdec.training.collect` gathers from small trainings; of a target
that was trained for its early layers the record alone is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from specdec.errors import UserError
from specdec.training.collect import SIMULATED, read_rows
from workflow.study.columns import DROPPED
from workflow.study.config import StudyConfig
from workflow.study.config.heads import RECORD, WEIGHTS


def record_of(config: StudyConfig, draft: str, root: Path) -> dict | None:
    """What stands beside a draft's head, or None where nothing does."""
    folder = config.head_path(draft)
    path = None if folder is None else root / folder / RECORD
    return None if path is None or not path.is_file() else _read(path)


def _read(path: Path) -> dict:
    try:
        return json.loads(path.read_text("utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not JSON ({error.msg}, line {error.lineno})") from None


def _records(config: StudyConfig, root: Path) -> Iterator[tuple[str, dict]]:
    """Each training once, under the first of the drafts that have its weights."""
    seen = set()
    for draft in config.compared(root):
        record, folder = record_of(config, draft, root), config.head_path(draft)
        if record is not None and folder not in seen:
            seen.add(folder)
            yield draft, record


def stages(record: dict | None) -> list[dict]:
    """A training, and before it those of the head that it went on from, the last one first."""
    return [] if record is None else [record, *stages(record.get("before"))]


def spent(stages: list[dict]) -> tuple[int, float]:
    """Token passes and hours of them together."""
    return sum(stage["token_passes"] for stage in stages), sum(stage["seconds"] for stage in stages) / 3600


def training(config: StudyConfig, cells: dict, root: Path) -> list[dict]:
    """One row a trained draft: text, settings, cost, and how well it guesses text it has not seen."""
    return [
        _row(config.pair, draft, record, (root / config.head_path(draft) / WEIGHTS).stat().st_size)
        for draft, record in _records(config, root)
    ]


def _row(pair: str, draft: str, record: dict, size: int) -> dict:
    text, recipe = record["text"], record["recipe"]
    dropped = dict(text["dropped"])
    reasons = {f"dropped_{reason}": dropped.pop(reason, 0) for reason in DROPPED}
    if dropped:
        raise UserError(f"the record of draft {draft} counts conversations dropped for unknown reasons: {dropped}")
    before_passes, before_hours = spent(stages(record)[1:])
    lost, kept = sum(reasons.values()), sum(text["sources"].values())
    return {
        "pair": pair,
        "draft": draft,
        "method": record["method"],
        "target": record["target"]["name"],
        "target_id": record["target"]["model_id"],
        "dtype": record["environment"].get("dtype"),
        "conversations": text["conversations"],
        "held_out": text["held_out"],
        "answer_tokens": text["answer_tokens"],
        "written": kept + lost,
        "dropped": lost,
        **reasons,
        "learn": recipe.get("learn", "answers"),
        "token_passes": record["token_passes"],
        "epochs": record["token_passes"] / text.get("learned_tokens", text["answer_tokens"]),
        "updates": record["updates"],
        "hours": record["seconds"] / 3600,
        **_shape(record),
        "before_passes": before_passes,
        "before_hours": before_hours,
        **{name: recipe[name] for name in ("optimiser", "batch", "peak_rate", "warmup", "seed")},
        "head_bytes": size,
        **{name: record["held_out"][name] for name in SIMULATED},
        "processor": record["hardware"].get("processor"),
        "commit": record["code"].get("commit"),
    }


def _shape(record: dict) -> dict:
    """What was trained: `taps` are the target's states that a head reads, or the layers a small model was cut from."""
    recipe = record["recipe"]
    if record["method"] == "distill":
        layers, vocabulary = recipe["layers"], record["model"]["loss_vocabulary"]
        own = {"steps": None, "vocabulary": vocabulary, "own_head": False, "prompt": None}
        own |= {"head_layers": None, "copies": False}
        return own | {"taps": " ".join(map(str, layers))}
    head = record["head"]
    own = {"steps": recipe.get("steps", 1), "vocabulary": head["draft_vocabulary"], "prompt": recipe["prompt"]}
    own["own_head"], own["head_layers"] = head["own_head"], head.get("layers", 1)
    own["copies"] = any("grown" in stage for stage in stages(record))
    return own | {"taps": " ".join(map(str, head["taps"]))}


def curves(config: StudyConfig, cells: dict, root: Path) -> list[dict]:
    """One row a measurement on held-out text while a draft was trained, that of the draft it went on from included:
    `stage` counts trainings, passes and hours go on.  Behind them small models of other sizes, not shipped."""
    own = [row for draft, record in _records(config, root) for row in _curve(config.pair, draft, record, True)]
    others = ((path.stem, _read(path)) for path in sorted((root / config.sizes_path()).glob("*.json")))
    return own + [row for name, record in others for row in _curve(config.pair, name, record, False)]


def _curve(pair: str, draft: str, record: dict, shipped: bool) -> Iterator[dict]:
    cut = record["recipe"].get("layers")
    trainings = stages(record)[::-1]
    for number, stage in enumerate(trainings):
        passes, hours = spent(trainings[:number])
        for entry in stage["history"]:
            yield {
                "pair": pair,
                "draft": draft,
                "layers": None if cut is None else len(cut),
                "shipped": shipped,
                "stage": number + 1,
                "passes": passes + entry["passes"],
                "updates": entry["updates"],
                "hours": hours + entry["seconds"] / 3600,
                "loss": entry["loss"],
                **{name: entry[name] for name in SIMULATED},
            }


def ablations(config: StudyConfig, cells: dict, root: Path) -> list[dict]:
    """One row a small training that differs in named settings; nothing where there are none."""
    path = root / config.ablations_path()
    if not path.is_file():
        return []
    return [
        {"pair": config.pair}
        | {name: row[name] for name in ("base", "name", "method")}
        | {"changes": ", ".join(f"{key} = {_show(value)}" for key, value in row["changes"].items()) or None}
        | {name: row[name] for name in ("token_passes", "updates", *SIMULATED)}
        for row in read_rows(path)
    ]


def layerskip(config: StudyConfig, cells: dict, root: Path) -> list[dict]:
    """One row where the target itself was trained for its early layers; nothing where it was not."""
    path = root / config.layerskip_path()
    if not path.is_file():
        return []
    record = _read(path)
    if record.get("method") != "layerskip":
        raise UserError(f"{path}: its method is {record.get('method')}; a record of layerskip is expected")
    recipe = record["recipe"]
    return [
        {"pair": config.pair, "target": record["target"]["name"], "layers": record["model"]["layers"]}
        | {name: recipe[name] for name in ("exit", "dropout", "weight")}
        | {"taught": " ".join(map(str, recipe["taught"])) or None, "held_out": record["text"]["held_out"]}
        | {name: record[name] for name in ("token_passes", "updates")}
        | {"hours": record["seconds"] / 3600}
        | {f"untrained_{name}": record["untrained"][name] for name in SIMULATED}
        | {name: record["held_out"][name] for name in SIMULATED}
        | record["moved"]
        | {"processor": record["hardware"].get("processor"), "commit": record["code"].get("commit")}
    ]


def _show(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


BUILDERS = {
    "training": training,
    "training_curves": curves,
    "training_ablations": ablations,
    "training_layerskip": layerskip,
}
