"""Keeps a training from undoing circuits: their weights stay, and nothing else writes where they write.

What learns would otherwise drift into the directions that carry codes, a little from every direction of every update,
and a comparison of codes is the first thing to drown in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specdec.errors import UserError
from specdec.models.eagle import EagleConfig, at
from specdec.training.copying.circuits import places
from specdec.training.eagle import EagleModule

FILE = "circuits.safetensors"


@dataclass(frozen=True)
class Guard:
    """`codes` and `votes` [h, n]: the directions that are reserved."""

    codes: Tensor
    votes: Tensor

    def write(self, folder: Path) -> None:
        from safetensors.torch import save_file

        save_file({"codes": self.codes.contiguous(), "votes": self.votes.contiguous()}, folder / FILE)

    @classmethod
    def read(cls, folder: Path) -> Guard | None:
        """Of a head's folder; None where the head has no circuits."""
        from safetensors.torch import load_file

        return cls(**load_file(folder / FILE)) if (folder / FILE).is_file() else None

    def watch(self, module: EagleModule, optimiser: str) -> None:
        """From now on the circuits' weights get no gradient, and `module.constrain` takes off what is written in their
        way; an optimiser is to call it after each step."""
        if optimiser != "muon":
            raise UserError(f"optimiser = {optimiser}: a head with circuits that copy is trained by muon alone")
        masks = circuit_masks(module.config)
        for name, mask in masks.items():
            module.products[name].weight.register_hook(lambda gradient, mask=mask: gradient * ~mask.to(gradient.device))
        module.constrain = lambda: self._constrain(module, masks)

    @torch.no_grad()
    def _constrain(self, module: EagleModule, masks: dict[str, Tensor]) -> None:
        # the second layer may vote: its votes are taken off with the circuits' own
        both = torch.cat([self.codes, self.votes], 1)
        for name, taken in {"fc": both, "o": both, "down": both, "o_1": self.codes, "down_1": self.codes}.items():
            weight = module.products[name].weight
            taken = taken.to(weight.device)
            free = weight if name not in masks else weight * ~masks[name].to(weight.device)
            weight -= taken @ (taken.T @ free)


def circuit_masks(config: EagleConfig) -> dict[str, Tensor]:
    """By product, the weights that are circuits', bool."""
    where, shapes = places(config), config.shapes()
    masks = {name: torch.zeros(shape, dtype=torch.bool) for name, shape in shapes.items() if name not in ("fc", "head")}
    for layer in range(2):
        for rows in where.qkv[layer]:
            masks[at("qkv", layer)][rows] = True
        for columns in where.o[layer]:
            masks[at("o", layer)][:, columns] = True
    n = where.neurons
    masks["gate_up_1"][:n] = True
    masks["gate_up_1"][config.intermediate_size : config.intermediate_size + n] = True
    masks["down_1"][:, :n] = True
    return {name: mask for name, mask in masks.items() if mask.any()}
