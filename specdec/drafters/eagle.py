"""An EAGLE head as the draft: it continues the target's own hidden states.

Sources: EAGLE-1, arXiv 2401.15077; EAGLE-3, arXiv 2503.01840.

The head reads pairs (state that predicted a token, that token).  For committed text the states are the target's, out of
the verification pass that had to be run anyway; deeper in a draft they are the head's own outputs.  What was fed with
its own outputs is never kept: the next round feeds the committed pairs with the target's states.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from specdec.drafters.base import Context
from specdec.drafters.stepping import placement
from specdec.errors import UserError
from specdec.models.draft_head import eagle_head
from specdec.models.eagle import EagleConfig
from specdec.models.eagle_files import read_head
from specdec.models.kvcache import KVCache
from specdec.models.loading import weight_files
from specdec.models.quantised import Matrix, held
from specdec.models.transformer import Output, Transformer


class Eagle:
    """`weights` holds the head's products and norms by the names of `EagleConfig`; `used` [V_d] its target ids.

    Draft tokens that the target's tokenizer does not have (padding rows) are cut off, and so are those outside
    `kept`, target ids: the rows that decide are much of what a step reads, and rare tokens are seldom guessed right.
    `rounded` holds the head's matrices in a format of `quantised.py`.
    """

    def __init__(
        self,
        config: EagleConfig,
        weights: dict[str, Tensor],
        target: Transformer,
        used: Tensor | None = None,
        model_id: str = "",
        kept: Tensor | None = None,
        rounded: str | None = None,
    ):
        self.config, self.model_id, self._target = config, model_id, target
        self.taps = config.taps
        weights, self.vocabulary = _known(config, weights, used, target, kept)
        matrices = (*config.shapes(), "head")
        like, engine = torch.empty(0, dtype=target.dtype, device=target.device), target.native is not None
        products: dict[str, Matrix] = {
            name: held(weight, rounded, like, engine)
            for name, weight in weights.items()
            if name.removesuffix(".bias") in matrices
        }
        self._head = eagle_head(config, weights | products, target)
        self.weight_bytes = sum(weight.nbytes for weight in products.values())
        if config.version == 1:
            self.weight_bytes += target.weight_bytes(())

    @classmethod
    def load(
        cls, folder: str | Path, target: Transformer, kept: Tensor | None = None, rounded: str | None = None
    ) -> Eagle:
        """A head from its folder, for this target; `kept` and `rounded` as above."""
        folder = Path(folder)
        config, weights, used = read_head(folder, target.config)
        digest = hashlib.sha256()
        for file in [folder / "config.json", *weight_files(folder)]:
            digest.update(file.read_bytes())
        if kept is not None and config.version == 1:
            raise UserError(f"draft head {folder}: it decides by the target's whole head, which cannot be cut")
        return cls(config, weights, target, used, digest.hexdigest()[:16], kept, rounded)

    @property
    def room(self) -> int:
        if not self._pending and not self._committed:
            return 0  # the first round of a one-token prompt: there is no state to continue
        return self.config.max_positions - self._committed - len(self._pending)

    def start(self, prompt: Sequence[int], features: Tensor | None, context: Context) -> None:
        self._cache = KVCache(self.config, context.capacity, self._target.dtype, self._target.device)
        self._committed = 0
        self._pending: list[int] = list(prompt[1:])
        self._states = features  # [pending, taps * hidden]
        if len(self._pending) > 1:  # all but the root's pair belongs to the prefill
            self._head.step(self._pending[:-1], self._cache, features=features[:-1])
            self._committed = self._cache.length
            self._pending, self._states = self._pending[-1:], features[-1:]

    def root(self) -> Tensor:
        out, logits = self._head.step(self._pending, self._cache, features=self._states, scored=1)
        self._committed = self._cache.length
        self._pending = []
        self._parents: list[int] = []
        self._outputs = out[-1:]  # row 0: the root's; row i + 1: of the round's row i
        return logits

    def step(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        hidden = self._outputs[[parent + 1 for parent in parents]]
        self._parents += parents
        where = placement(self._parents, len(tokens), self._committed - 1)
        out, logits = self._head.step(tokens, self._cache, states=hidden, scored=len(tokens), **where)
        self._outputs = torch.cat([self._outputs, out])
        return logits

    def rollback(self) -> None:
        self._cache.truncate(self._committed)

    def commit(self, tokens: Sequence[int], features: Tensor, scored: Output) -> None:
        pending = self._pending
        self._states = features if not pending else torch.cat([self._states, features])
        self._pending = [*pending, *tokens]


def _known(
    config: EagleConfig, weights: dict[str, Tensor], used: Tensor | None, target: Transformer, wanted: Tensor | None
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Weights, EAGLE-3's `head` among them whoever's rows it has, and draft vocabulary (None: every id), both without
    ids that the target's tokenizer lacks or that are not `wanted`."""
    if config.version == 1:
        return weights, None
    ids = torch.arange(config.draft_vocabulary) if used is None else used
    kept = ids < target.vocabulary
    if wanted is not None:
        kept &= torch.isin(ids, wanted)
        if not kept.any():
            raise UserError("draft head: none of its draft tokens is among those that it was to be cut to")
    ids = ids[kept]
    whole = torch.equal(ids, torch.arange(target.vocabulary))
    ids = ids.to(target.device)
    head = weights["head"][kept] if config.own_head else target.head_rows(ids)
    return weights | {"head": head}, None if whole else ids
