"""From text to a draft in a folder: the methods differ in what they build alone."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow.parquet as pq
import torch
from torch import Tensor

from specdec.commands.setting import load_target
from specdec.errors import UserError
from specdec.measure import fingerprint
from specdec.models import LoadedModel, ModelConfig
from specdec.models.catalogue import locate
from specdec.models.loading import read_config, read_tensors, read_weights, weight_files
from specdec.training.assemble import cut_config, shared_tensors, write_draft, write_model
from specdec.training.commands import bar, chosen, console
from specdec.training.corpus import AnswerCorpus, Corpus, Sample, hold_out, read_text, with_requests
from specdec.training.distill import TARGET, Distillation, DistillRecipe
from specdec.training.eagle import output_head
from specdec.training.head_task import head_task
from specdec.training.layerskip import ExitModel, LayerSkipLoss, LayerSkipRecipe, TextCorpus, check_exits, moved
from specdec.training.objective import Teacher
from specdec.training.parallel import Group, joined
from specdec.training.parts import parts_of
from specdec.training.small import SmallModel, check_layers
from specdec.training.task import Task, record_in, vocabulary
from specdec.training.trainer import Progress, Trainer, simulate

ROOT = Path(__file__).resolve().parents[2]


def train(flags: argparse.Namespace) -> int:
    with joined(flags.device) as group:
        flags.device = str(group.device)
        if flags.threads is None:
            flags.threads = max(1, len(os.sched_getaffinity(0)) // group.local)
        console.quiet = not group.first
        return _train(flags, group)


def _train(flags: argparse.Namespace, group: Group) -> int:
    target = load_target(flags)
    settings = _text_settings(flags.text, target)
    samples, held = hold_out(read_text(flags.text))
    held = held[: getattr(flags, "held_out", None)]
    task = BUILDERS.get(flags.command, head_task)(flags, target, samples)
    learned = with_requests(samples) if task.objective.recipe.learn == "everything" else samples
    corpora = task.corpus(learned), task.corpus(held)
    _share_memory(*corpora, int(flags.memory * 2**30) // group.local)
    task.module.to(group.device)
    trainer = Trainer(task.module, task.objective, *corpora, flags.out / "training", group)
    with bar("token passes") as shown:
        line = shown.add_task("training", total=trainer.recipe.token_passes)

        def report(progress: Progress) -> None:
            if group.first:
                loss = progress.loss / progress.losses if progress.losses else progress.history[-1]["loss"]
                text = f"loss {loss:.3f}, best {progress.best:.3f} tokens per round"
                done = min(progress.passes, trainer.recipe.token_passes)
                shown.update(line, completed=done, description=text)

        progress = trainer.run(report)
    if not group.first:
        return 0
    measured, settled = trainer.finish(task.settle)
    task.write(flags.out)
    answers = sum(sum(sample.mask) for sample in samples)
    record = _record(flags, target, trainer, progress, measured, settings, answers, task) | settled | task.beside(held)
    (flags.out / "training.json").write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    console.print(f"{flags.out}: {measured['tokens_per_round']:.3f} tokens per round on held-out text")
    return 0


def _small(flags: argparse.Namespace, target: LoadedModel, samples: Sequence[Sample]) -> Task:
    """A language model cut from the target's layers."""
    recipe: DistillRecipe = chosen(DistillRecipe, flags)
    source = locate(flags.model)
    origin, weights = read_weights(source)
    layers = check_layers(recipe.layers, origin.layers)
    raw = cut_config(read_config(source), len(layers))
    config = ModelConfig.from_dict(raw, flags.model)
    _, used = vocabulary(flags, target, samples)
    module = SmallModel(config, weights["model.embed_tokens.weight"].to(torch.bfloat16))
    before: dict = {}
    if recipe.start == TARGET:
        module.start_from(weights, layers)
    else:
        before = {"before": _small_again(Path(recipe.start), module)}
    head = output_head(origin, weights)[: target.model.vocabulary]
    return Task(
        module,
        Distillation(recipe, Teacher(head, used, device=flags.device)),
        lambda text: AnswerCorpus(target.model, text, 0),
        {"model": asdict(config) | {"loss_vocabulary": None if used is None else len(used)}} | before,
        lambda folder: write_draft(folder, raw, module.weights()),
    )


def _small_again(folder: Path, module: SmallModel) -> dict | None:
    """Give `module` the weights of the draft in `folder`; its training record, where it has one."""
    weights = read_tensors(weight_files(folder))
    for name, value in module.weights().items():
        if name not in weights or weights[name].shape != value.shape:
            found = tuple(weights[name].shape) if name in weights else "none"
            raise UserError(f"start = {folder}: its {name} is {found}, but {tuple(value.shape)} is to be trained")
    module.start_from(weights, range(module.config.layers))
    return record_in(folder)


def _own_target(flags: argparse.Namespace, target: LoadedModel, samples: Sequence[Sample]) -> Task:
    """The target itself, whose first layers learn to speak."""
    recipe: LayerSkipRecipe = chosen(LayerSkipRecipe, flags)
    source = locate(flags.model)
    config, weights = read_weights(source)
    check_exits(recipe, config.layers)
    raw = cut_config(read_config(source), config.layers)
    shared = {name: weights[name].to(torch.bfloat16) for name in shared_tensors(config)}

    def begin(weights: dict[str, Tensor]) -> ExitModel:
        module = ExitModel(config, shared["model.embed_tokens.weight"])
        module.start_from(weights, range(config.layers))
        return module.to(flags.device)

    module = begin(weights)
    head = output_head(config, weights)[: target.model.vocabulary]
    objective = LayerSkipLoss(recipe, Teacher(head, None, device=flags.device))

    def beside(held: Sequence[Sample]) -> dict:
        untrained = simulate(begin(read_weights(source)[1]), objective, TextCorpus(target.model, held, 0))
        return {"untrained": untrained, "moved": moved(module, objective, AnswerCorpus(target.model, held, 0))}

    return Task(
        module,
        objective,
        lambda text: TextCorpus(target.model, text, 0),
        {"model": asdict(config)},
        lambda folder: write_model(folder, raw, module.weights() | shared, target.tokenizer),
        beside,
    )


BUILDERS: dict[str, Callable[..., Task]] = {"distill": _small, "layerskip": _own_target}
"""Methods that train no head."""


def _share_memory(train: Corpus, held: Corpus, budget: int) -> None:
    """`budget` bytes for states, held-out text first: it is read the most often."""
    held.budget = min(held.needed, budget)
    train.budget = budget - held.budget
    console.print(
        f"{len(train)} conversations to train on, {len(held)} held out; their states take "
        f"{(train.needed + held.needed) / 2**30:.1f} GiB, of which {min(1.0, train.budget / train.needed):.0%} is kept "
        "and the rest computed each time"
    )


def _text_settings(folder: Path, target: LoadedModel) -> dict[str, dict]:
    """How the text in each of its folders was written; refuses text of another tokenizer."""
    found = {path.parent: json.loads(path.read_text("utf-8")) for path in sorted(folder.rglob("settings.json"))}
    for place, settings in found.items():
        if settings.get("tokenizer", target.tokenizer.fingerprint) != target.tokenizer.fingerprint:
            raise UserError(f"{place}: its text was written with another tokenizer than that of {target.origin}")
    return {place.relative_to(folder).as_posix(): settings for place, settings in found.items()}


def _record(
    flags: argparse.Namespace,
    target: LoadedModel,
    trainer: Trainer,
    progress: Progress,
    measured: dict,
    settings: dict,
    answers: int,
    task: Task,
) -> dict:
    """What stands beside a draft: how it came to be."""
    parts = [pq.read_table(part, columns=["source", "dropped"]) for part in parts_of(flags.text)]
    rows = [row for part in parts for row in part.to_pylist()]
    device = trainer.group.device.type
    return {
        "method": flags.command,
        "target": {"name": Path(target.origin).name, "model_id": target.model_id},
        "recipe": asdict(trainer.recipe) | ({"start": Path(flags.start).name} if "before" in task.shape else {}),
        **task.shape,
        "parameters": sum(parameter.numel() for parameter in task.module.parameters()),
        "text": {
            "settings": settings,
            "conversations": len(trainer.corpus),
            "held_out": len(trainer.held_out),
            "answer_tokens": answers,
            "learned_tokens": trainer.corpus.learned_tokens,
            "sources": Counter(row["source"] for row in rows if row["dropped"] is None),
            "dropped": Counter(row["dropped"] for row in rows if row["dropped"] is not None),
        },
        "token_passes": progress.passes,
        "updates": progress.updates,
        "seconds": round(progress.seconds, 1),
        "processes": trainer.group.size,
        "held_out": measured,
        "history": progress.history,
        "hardware": fingerprint.hardware(device),
        "environment": fingerprint.environment(flags.dtype, device, None),
        "code": fingerprint.code(ROOT),
    }
