"""The target itself as the draft, with part of its blocks left out.

Either its first layers alone, then the norm and the head (LayerSkip's inference, arXiv 2404.16710, without its
training), or all layers without some attention and MLP blocks (Draft & Verify, arXiv 2309.08168), or both.  Keys and
values of committed text are the target's own, so the draft reads the target's cache and needs none of its own; its
tentative rows go into free slots, which the verification pass overwrites.

Where nothing is left out of the first layers, what they leave of a chain's rows is what the target's pass would have
there, and verification goes on from it (`early`), in whichever way the exit was said.  Behind a skipped block nothing
is, and the target begins anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.drafters.base import Context
from specdec.drafters.stepping import placement
from specdec.errors import UserError
from specdec.models.transformer import Output, Plan, Transformer
from specdec.tree import Early


class LayerSkip:
    """Exit after `layers` of the target's layers (all of them unless given), without the blocks that are skipped."""

    taps: tuple[int, ...] = ()
    vocabulary: Tensor | None = None

    def __init__(
        self,
        target: Transformer,
        layers: int | None = None,
        skip_attention: Sequence[int] = (),
        skip_mlp: Sequence[int] = (),
    ):
        total = target.config.layers
        if layers is None and not (skip_attention or skip_mlp):
            raise UserError("layer_skip: layers, skip_attention or skip_mlp must say what is left out")
        self.plan = plan_of(total, _exit(total if layers is None else layers, total), skip_attention, skip_mlp)
        self.layers = len(self.plan)
        self._whole = is_exit(self.plan)

    @property
    def room(self) -> int:
        return self._target.config.max_positions - self._cache.length - 1

    @property
    def early(self) -> Early | None:
        chain = all(parent == row - 1 for row, parent in enumerate(self._fed))
        return Early(self.layers, torch.cat(self._states)) if self._whole and chain else None

    def start(self, prompt: Sequence[int], features: Tensor | None, context: Context) -> None:
        self._target = context.target
        self._cache = context.cache.view()
        self._root = prompt[-1]

    def root(self) -> Tensor:
        self._base = self._cache.length
        self._fed: list[int] = []  # parents of the round's rows behind the root
        self._states: list[Tensor] = []
        return self._run([self._root])

    def step(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        self._fed += parents
        return self._run(tokens, **placement(self._fed, len(tokens), self._base))

    def _run(self, tokens: Sequence[int], **where) -> Tensor:
        output = self._target.forward(tokens, self._cache, plan=self.plan, **where)
        self._states.append(output.hidden)
        return output.logits

    def rollback(self) -> None:
        self._cache.rollback()

    def commit(self, tokens: Sequence[int], features: Tensor | None, scored: Output) -> None:
        self._root = tokens[-1]


def plan_of(total: int, layers: int, skip_attention: Sequence[int], skip_mlp: Sequence[int]) -> Plan:
    """The blocks that are run, in order; a layer of which nothing is left is no part of it."""
    skipped = {"skip_attention": skip_attention, "skip_mlp": skip_mlp}
    for key, chosen in skipped.items():
        for layer in chosen:
            if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < total:
                raise UserError(f"layer_skip: {key} names layer {layer}: must be an integer between 0 and {total - 1}")
    attention, mlp = (set(chosen) for chosen in skipped.values())
    plan = ((layer, layer not in attention, layer not in mlp) for layer in range(layers))
    return tuple(step for step in plan if step[1] or step[2])


def is_exit(plan: Plan) -> bool:
    """Whether nothing is left out of the first layers: what they compute, verification need not."""
    return bool(plan) and plan == tuple((layer, True, True) for layer in range(len(plan)))


def _exit(layers: int, total: int) -> int:
    if isinstance(layers, bool) or not isinstance(layers, int) or not 1 <= layers <= total:
        raise UserError(f"layer_skip: layers = {layers}: must be an integer between 1 and {total}")
    return layers
