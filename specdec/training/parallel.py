"""Several processes that train one draft: each takes a part of every batch, sums are taken over all.

Under `torchrun` every process holds the whole draft and computes gradients of its part; since losses are sums over
common counts (`objective.py`), adding the gradients up gives those of the whole batch.  Gloo carries them between
processors, NCCL between CUDA devices, one process a device.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from specdec.errors import UserError

PATIENCE = timedelta(hours=2)
"""How long a process waits for another, which may be measuring on held-out text."""


@dataclass(frozen=True)
class Group:
    """This process among `size` of them; `local` of these are on this machine."""

    device: torch.device = torch.device("cpu")
    rank: int = 0
    size: int = 1
    local: int = 1

    @property
    def first(self) -> bool:
        """Whether this process measures, saves and speaks for all."""
        return self.rank == 0

    def part(self, items: Sequence) -> Sequence:
        """This process's share of a batch."""
        return items[self.rank :: self.size]

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, parameters: Iterable[Parameter]) -> None:
        """In one message; a parameter that a part did not reach counts as zero there."""
        if self.size == 1:
            return
        parameters = [p for p in parameters if p.requires_grad]
        whole = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
        for parameter, part in zip(parameters, self.sum(whole).split([p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)


@contextmanager
def joined(device: str) -> Iterator[Group]:
    """The processes that `torchrun` started, or this one alone; `device` is cpu, cuda or cuda:N."""
    if device != "cpu" and not torch.cuda.is_available():
        raise UserError(f'device "{device}" is not there: this PyTorch sees no CUDA device; allowed here: cpu')
    if not dist.is_torchelastic_launched():
        yield Group(torch.device(device))
        return
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device == "cpu" else "nccl", timeout=PATIENCE)
    try:
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        yield Group(torch.device(device), dist.get_rank(), dist.get_world_size(), local)
    finally:
        dist.destroy_process_group()
