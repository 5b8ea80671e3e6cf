"""The training of an EAGLE head: what learns, from what, and where it begins."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from specdec.errors import UserError
from specdec.models import LoadedModel, ModelConfig
from specdec.models.catalogue import locate
from specdec.models.eagle import EagleConfig
from specdec.models.eagle_files import read_head, write_head
from specdec.models.loading import read_weights
from specdec.training.commands import bar, chosen
from specdec.training.copying.build import grown_head
from specdec.training.copying.guard import Guard
from specdec.training.copying.settle import settle
from specdec.training.corpus import HeadCorpus, Sample
from specdec.training.eagle import EagleModule, output_head
from specdec.training.eagle_losses import STARTS, Eagle1Loss, Eagle1Recipe, Eagle3Loss, Eagle3Recipe
from specdec.training.objective import Teacher
from specdec.training.task import Task, record_in, vocabulary


def head_task(flags: argparse.Namespace, target: LoadedModel, samples: Sequence[Sample]) -> Task:
    """An EAGLE head."""
    version = 3 if flags.command == "eagle3" else 1
    recipe = chosen(Eagle3Recipe if version == 3 else Eagle1Recipe, flags)
    origin, weights = read_weights(locate(flags.model))
    size, used = vocabulary(flags, target, samples)
    head = output_head(origin, weights)
    if version == 1 or size is not None:
        head = head[: target.model.vocabulary]  # a whole draft vocabulary keeps the padding rows, as its head is stored
    shape = {"trained_depth": getattr(recipe, "steps", 1)}
    if getattr(flags, "taps", None):
        shape["taps"] = _taps(flags.taps, origin)
    if version == 3:
        shape["own_head"] = recipe.head == "own"
    embedding = weights["model.embed_tokens.weight"].to(torch.bfloat16)
    begin = None if recipe.start in STARTS else Path(recipe.start)
    if getattr(flags, "grow", False):
        begin = _grown(flags, begin, target, origin, embedding, head, samples)
    if begin is not None:  # as many layers and heads of attention as it has
        begun, *_ = read_head(begin, origin)
        shape |= {
            name: getattr(begun, name) for name in ("layers", "heads", "kv_heads", "head_dim", "intermediate_size")
        }
    config = EagleConfig.for_target(origin, version, size, **shape)
    torch.manual_seed(recipe.seed)
    frozen = None if config.own_head else (head if used is None else head[used]).to(torch.bfloat16)
    module = EagleModule(config, embedding, frozen)
    before: dict = {}
    if recipe.start == "last_layer":
        module.start_from(origin, weights, used)
    elif begin is not None:
        before = {"before": go_on_from(begin, module, origin)}
    guard = None if begin is None else Guard.read(begin)
    if guard is not None:
        guard.watch(module, recipe.optimiser)
    teacher = Teacher(head, used, device=flags.device)
    objective = Eagle3Loss(recipe, teacher) if version == 3 else Eagle1Loss(recipe, teacher)
    return Task(
        module,
        objective,
        lambda text: HeadCorpus(target.model, text, config.taps, recipe.prompt, 0),
        {"head": config.as_dict()} | before,
        lambda folder: _write(folder, module, used, origin, guard),
        settle=None if guard is None else lambda measure: {"settled": settle(module, measure)},
    )


def _grown(
    flags: argparse.Namespace,
    begin: Path | None,
    target: LoadedModel,
    origin: ModelConfig,
    embedding: Tensor,
    head: Tensor,
    samples: Sequence[Sample],
) -> Path:
    """The head that `--grow` makes of the one to begin with; made once for a training."""
    if begin is None:
        raise UserError(f"start = {flags.start}: --grow makes a head larger, so start must be the folder of one")
    out = flags.out / "training" / "grown"
    if not (out / "training.json").is_file():
        with bar("updates") as shown:
            line = shown.add_task("circuits that copy")
            grown_head(
                begin,
                out,
                target.model,
                origin,
                embedding,
                head[: target.model.vocabulary].to(torch.bfloat16),
                samples,
                report=lambda done, total: shown.update(line, completed=done, total=total),
            )
    return out


def _write(folder: Path, module: EagleModule, used: Tensor | None, origin: ModelConfig, guard: Guard | None) -> None:
    write_head(folder, module.config, module.weights(), used, origin.vocab_size)
    if guard is not None:
        guard.write(folder)


def go_on_from(folder: Path, module: EagleModule, target: ModelConfig) -> dict | None:
    """Give `module` the weights of the head in `folder`; its training record, where it has one."""
    _, weights, _ = read_head(folder, target)
    own = {name: value for name, value in module.state_dict().items() if name.split(".")[0] in ("products", "norms")}
    for name, value in own.items():
        part = name.split(".")[1]
        if part not in weights or weights[part].shape != value.shape:
            found = tuple(weights[part].shape) if part in weights else "none"
            raise UserError(f"start = {folder}: its {part} is {found}, but {tuple(value.shape)} is to be trained")
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(weights[name.split(".")[1]])
    return record_in(folder)


def _taps(taps: Sequence[int], target: ModelConfig) -> tuple[int, ...]:
    if not all(0 <= tap <= target.layers for tap in taps):
        raise UserError(f"taps = {list(taps)}: each must be between 0 (embedding) and {target.layers} (final norm)")
    return tuple(taps)
