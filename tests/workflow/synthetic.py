"""Plausible cells without a model: rounds drawn from a fixed acceptance rate, times from a small cost model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from specdec import records
from workflow.study.cells import PROJECT, Cell
from workflow.study.config import StudyConfig
from workflow.study.prompts import Prompt, evaluation_slice

EXAMPLE = {
    "prompt_id": "0",
    "round": 3,
    "next": " sat",
    "nodes": [
        {"token": 5, "text": " the", "parent": -1, "confidence": 0.6, "accepted": True},
        {"token": 6, "text": " a", "parent": -1, "confidence": 0.3, "accepted": False},
        {"token": 7, "text": " 猫\n", "parent": 0, "confidence": 0.4, "accepted": True},
        {"token": 8, "text": "3", "parent": 0, "confidence": 0.1, "accepted": False},
    ],
}

STEP = 0.02
ACCEPTANCE = {"layer_skip": 0.5, "ngram": 0.3, "small": 0.7, "small_restricted": 0.65, "eagle1": 0.5}
ACCEPTANCE |= {"eagle3": 0.6, "eagle3_whole": 0.61, "eagle3_lookup": 0.65}
COST = {"layer_skip": 0.3, "ngram": 0.001, "small": 0.35, "small_restricted": 0.2, "eagle1": 0.12}
COST |= {"eagle3": 0.08, "eagle3_whole": 0.12, "eagle3_lookup": 0.06}


def write_cell(root: Path, config: StudyConfig, cell: Cell, prompts: list[Prompt] | None = None, **changes) -> Path:
    """Write the parquet file of a cell below `root`; `changes` overwrite columns of every row."""
    prompts = prompts or [Prompt(str(i), f"category {i % 3}", ("text",)) for i in range(12)]
    path = Path(root) / cell.path
    rows = [row | changes for row in rows_of(config, cell, prompts)]
    metadata = {"hardware": {"processor": "synthetic"}, "environment": {"python": "3.11"}}
    records.write(path, rows, metadata | {"example": EXAMPLE if cell.shape != "chain" else None})
    return path


def write_cells(root: Path, config: StudyConfig, cells: list[Cell], base: Path = Path(".")) -> None:
    prompts = evaluation_slice(config, base)
    own = [Prompt(f"own_kind_{33 * i}", "own_kind", ("text",)) for i in range(12)]
    for cell in cells:
        write_cell(root, config, cell, prompts if cell.prompt_set == PROJECT else own)


def write_heads(root: Path, config: StudyConfig) -> None:
    """Trained drafts without weights, with records of training, for every one of the pair; and small trainings."""
    written = 0
    for draft in config.pair_in_force().drafts:
        folder = config.head_path(draft)
        if folder is not None and not (folder := Path(root) / folder).exists():
            folder.mkdir(parents=True)
            (folder / "config.json").write_text("{}")
            (folder / "model.safetensors").write_bytes(b"x" * 1000)
            method = "distill" if draft == "small" else draft
            (folder / "training.json").write_text(json.dumps(record_of(method, 2 + written)))
            written += 1
    rows = [
        {"base": "base", "name": "base", "method": "eagle3", "changes": {}}
        | {"token_passes": 50_000, "updates": 40, **simulated(1.4)},
        {"base": "base", "name": "one_step", "method": "eagle3", "changes": {"steps": 1, "noise": None}}
        | {"token_passes": 50_100, "updates": 41, **simulated(1.3)},
    ]
    (Path(root) / config.ablations_path()).write_text(json.dumps(rows))
    (Path(root) / config.layerskip_path()).write_text(json.dumps(record_of("layerskip", 2)))


def simulated(tau: float) -> dict:
    return {"tokens_per_round": tau, **{f"acceptance_at_{place}": tau / 4 - 0.02 * place for place in (1, 2, 3, 4)}}


RATES = {"optimiser": "muon", "peak_rate": 0.001}


def record_of(method: str, points: int) -> dict:
    """What `specdec.training` writes beside a head, as far as tables read it."""
    own = {
        "eagle3": {"steps": 4, "prompt": 64},
        "eagle1": {"noise": 0.1, "prompt": 64},
        "distill": {"layers": [0, 1, 28], "loss": "forward_kl"},
        "layerskip": {"exit": 6, "taught": [4, 6], "dropout": 0.1, "weight": 1.0},
    }[method]
    eagle3 = method == "eagle3"
    shape = {"head": {"taps": [2, 15, 27], "draft_vocabulary": 8192 if eagle3 else None, "own_head": eagle3}}
    if method == "distill":
        shape = {"model": {"layers": 3, "loss_vocabulary": 8192}}
    if method == "layerskip":
        shape = {"model": {"layers": 30}, "untrained": simulated(1.0), "moved": {"agreement": 0.9, "divergence": 0.2}}
    history = [
        {"passes": 1000 * i, "updates": 10 * i, "seconds": 36.0 * i, "loss": 10 / i, **simulated(1 + 0.1 * i)}
        for i in range(1, points + 1)
    ]
    return {
        "method": method,
        "target": {"name": "smollm2-135m-instruct", "model_id": "0f3a8c"},
        "recipe": {"token_passes": 1000, "batch": 8, "warmup": 50, "seed": 0, **RATES, **own},
        **shape,
        "text": {
            "settings": {"seed": 0, "target": "0f3a8c"},
            "conversations": 700,
            "held_out": 20,
            "answer_tokens": 500,
            "sources": {"self": 720},
            "dropped": {"loop": 100, "duplicate": 4},
        },
        "token_passes": 1000 * points,
        "updates": 10 * points,
        "seconds": 36.0 * points,
        "held_out": simulated(1 + 0.1 * points),
        "history": history,
        "hardware": {"processor": "synthetic"},
        "environment": {"dtype": "bfloat16"},
        "code": {"commit": "0000000"},
    }


def rows_of(config: StudyConfig, cell: Cell, prompts: list[Prompt]) -> list[dict]:
    rng = np.random.default_rng(int(hashlib.sha256(cell.path.encode()).hexdigest()[:8], 16))
    warmup = [row_of(config, cell, prompts[0], arm, rng, warmup=True, slow=10.0) for arm in ("ar", "speculative")]
    timed = [row_of(config, cell, prompt, arm, rng) for prompt in prompts for arm in ("ar", "speculative")]
    return warmup + timed


def row_of(config, cell, prompt, arm, rng, warmup=False, slow=1.0, accepted=None, drafted=None) -> dict:
    """One row.  `accepted` and `drafted` fix the rounds, else they are drawn until the length is reached."""
    length = config.size.max_new_tokens
    if arm == "ar" or cell.policy == "ar":
        accepted, drafted = [0] * length, [0] * length
    elif accepted is None:
        accepted, drafted = draw_rounds(cell, length, rng)
    drafted = drafted or [cell.k] * len(accepted)
    noise = slow * rng.lognormal(0, 0.03, len(accepted))
    draft_s = noise * STEP * COST.get(cell.draft, 0.0) * np.asarray(drafted)
    target_s = noise * STEP * (1 + 0.02 * np.asarray(drafted))
    tokens = sum(accepted) + len(accepted)
    text = hashlib.sha256(f"{prompt.prompt_id}".encode()).hexdigest()[:16]
    output = list(range(tokens))
    record = records.GenerationRecord(prompt_tokens=40, prefill_target_s=slow * 0.05)
    start = 0
    for i, kept in enumerate(accepted):
        ids, start = tuple(output[start : start + kept + 1]), start + kept + 1
        source = "bonus" if kept == drafted[i] else "correction"
        stop = "length" if i == len(accepted) - 1 else None
        times = float(draft_s[i]), float(target_s[i]), 0.001 * slow
        chances = tuple(float(c) for c in np.cumprod(rng.uniform(0.3, 1.0, drafted[i])))
        path = tuple(range(kept))
        new = records.RoundRecord(ids, cell.k, drafted[i], kept, source, "depth", *times, stop, chances, path)
        record.rounds.append(new)
    return {
        **cell.columns(),
        **record.columns(),
        "static": False,
        "prompt_id": prompt.prompt_id,
        "category": prompt.category,
        "turn": 1,
        "repetition": 0,
        "arm": arm,
        "warmup": warmup,
        "prompt_sha": text,
        "output_sha": text,
        "loop": False,
        "weights_bytes": 269_000_000,
        "draft_weights_bytes": 0,
        "cache_bytes": 10_000_000,
        "peak_bytes": 400_000_000,
        "first_divergence": None,
        "gap": None,
        "divergence": None,
        "nll": None if cell.temperature == 0 else 2.0 * tokens * rng.lognormal(0, 0.1),
        "differing": 0.2 * tokens if cell.verifier == "typical" and arm == "speculative" else None,
        "top_k": config.sampling.top_k,
        "top_p": config.sampling.top_p,
        "draft_temperature": cell.temperature,
        "max_new_tokens": length,
        "ignore_eos": cell.ignore_eos,
        "eos_ids": [2],
        "hardware_id": "hw",
        "environment_id": f"env-{cell.dtype}",
        "model_id": "model",
        "code_id": "code",
    }


def draw_rounds(cell: Cell, length: int, rng) -> tuple[list[int], list[int]]:
    """Rounds that add up to `length` tokens, none of them drafting beyond what is left."""
    accepted, drafted, left = [], [], length
    while left > 0:
        budget = min(cell.k, left - 1)
        depth = budget if cell.policy == "fixed" else min(budget, int(rng.integers(1, cell.k + 1)))
        kept = int(np.cumprod(rng.random(depth) < ACCEPTANCE.get(cell.draft, 0.5)).sum()) if depth else 0
        accepted.append(kept)
        drafted.append(depth)
        left -= kept + 1
    return accepted, drafted
