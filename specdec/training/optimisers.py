"""The optimisers of a training: Muon for the matrices inside a draft, AdamW for the rest.

Muon (Jordan et al., 2024; scaled to AdamW's update size as in arXiv 2502.16982) makes every direction of a matrix's
update equally long.  What decides over a vocabulary (`head`), norms and biases stay with AdamW, as its authors say.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from specdec.training.objective import Recipe


class Optimisers:
    """One or two optimisers, each at its own peak rate, stepped together; a module that has a `constrain` is then put
    in order by it."""

    def __init__(self, module: nn.Module, recipe: Recipe):
        matrices: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for name, parameter in module.named_parameters():
            inner = recipe.optimiser == "muon" and parameter.ndim == 2 and "head" not in name.split(".")
            (matrices if inner else rest).append(parameter)
        self._constrain = getattr(module, "constrain", None)
        self._members: list[tuple[torch.optim.Optimizer, float]] = []
        if rest:
            adamw = torch.optim.AdamW(rest, lr=recipe.peak_rate, betas=(0.9, 0.95), weight_decay=0.0)
            self._members.append((adamw, recipe.peak_rate))
        if matrices:
            muon = torch.optim.Muon(
                matrices, lr=recipe.matrix_rate, weight_decay=0.0, momentum=0.95, adjust_lr_fn="match_rms_adamw"
            )
            self._members.append((muon, recipe.matrix_rate))

    def __iter__(self) -> Iterator[torch.optim.Optimizer]:
        return (member for member, _ in self._members)

    def begin(self, share: float) -> None:
        """Forget gradients; the next step is at `share` of the peak rates."""
        for member, peak in self._members:
            member.zero_grad(set_to_none=True)
            for group in member.param_groups:
                group["lr"] = peak * share

    def step(self) -> None:
        for member in self:
            member.step()
        if self._constrain is not None:
            self._constrain()

    def state_dict(self) -> list[dict]:
        return [member.state_dict() for member in self]

    def load_state_dict(self, states: list[dict]) -> None:
        for member, state in zip(self, states, strict=True):
            member.load_state_dict(state)
