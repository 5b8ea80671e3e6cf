"""How loud the votes are, and how readily no place is looked at: set anew when a training has ended.

Both were right for the stream as it was when the circuits were built; it grows or shrinks while the rest learns.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from specdec.training.copying.circuits import places
from specdec.training.copying.stream import Sizes
from specdec.training.eagle import EagleModule

STEPS = (0.8, 1.25)


def settle(module: EagleModule, measure: Callable[[], float], rounds: int = 4) -> dict[str, float]:
    """Scale the two up and down, one at a time, while `measure` (of the module as it is) gains; the factors."""
    best, found = measure(), {"sink": 1.0, "vote": 1.0}
    for _ in range(rounds):
        before = best
        for name in found:
            for step in STEPS:
                scale(module, name, step)
                value = measure()
                if value > best:
                    best = value
                    found[name] *= step
                    break
                scale(module, name, 1 / step)
        if best == before:
            break
    return found


@torch.no_grad()
def scale(module: EagleModule, name: str, by: float) -> None:
    """Scale the `sink` that the comparing head may look at, or its `vote`."""
    config = module.config
    d, code = config.head_dim, Sizes(config.hidden_size, config.head_dim).code
    if name == "sink":
        module.products["qkv_1"].weight[config.heads * d + d - 2] *= by
    else:
        module.products["o_1"].weight[:, places(config).o[1][0]][:, :code] *= by
