"""The device's half of static decoding: buffers, and the two pieces of work that make a round.

The text so far is three numbers on the device: its last two tokens, and where the last of them, the root, stands.  The
draft always begins with these two: after full acceptance it has not read the first yet, otherwise reading it again
writes what is there already.  So every round has the same shape, and no slot is kept for padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specdec.drafters.language_model import LanguageModel
from specdec.models.kvcache import BLOCK
from specdec.models.transformer import Transformer
from specdec.sampling import Sampling
from specdec.static.choices import Choice, GreedyChoice, SampledChoice
from specdec.static.passes import Passes

Work = Callable[[], None]

WINDOW = 4 * BLOCK
"""The shortest window of the cache that is read; each further one is twice as long."""

WARMUP = 3
"""Runs before a capture, in which libraries choose their kernels and take their memory."""


class StaticRounds:
    """Rounds of one target, one draft (or none) and one K, over caches of one size.

    The target's pass has K + 1 rows, or `width` where that is more: its last rows are then nobody's.
    """

    def __init__(
        self,
        target: Transformer,
        draft: LanguageModel | None,
        k: int,
        sampling: Sampling,
        capacity: int,
        width: int,
    ):
        self.k, self.width = k, max(width, k + 1)
        self.target = Passes(target, capacity + self.width)
        self.draft = None if draft is None else Passes(draft.model, capacity + self.width)
        self._language_model, self.device = draft, target.device
        ids = None if draft is None else draft.vocabulary
        shape = (k, target.vocabulary, sampling, ids)
        like = torch.empty(0, dtype=target.accumulator, device=self.device)
        self._choice: Choice = GreedyChoice(*shape, self.device) if sampling.greedy else SampledChoice(*shape, like)
        self._offsets = torch.arange(-1, self.width, device=self.device)
        self._text = torch.zeros(3, dtype=torch.long, device=self.device)
        self._drafted = torch.zeros(k, dtype=torch.long, device=self.device)
        self._given = torch.zeros(2 * k + 2, dtype=torch.float64, device=self.device)
        self._found = torch.zeros(2 * k + 2, dtype=torch.float64, device=self.device)
        self.captured = self.device.type == "cuda"
        self._outside = torch.zeros(2 * k + 2, dtype=torch.float64, pin_memory=self.captured)
        self._pool = torch.cuda.graph_pool_handle() if self.captured else None
        self._works = {end: (self._ready(self._propose, end), self._ready(self._score, end)) for end in self._windows()}

    # -- the host's side -------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def begin(self, prompt: Sequence[int]) -> None:
        """A new text: its caches are filled by ordinary passes."""
        self._text.copy_(torch.tensor([prompt[-2] if len(prompt) > 1 else prompt[-1], prompt[-1], len(prompt) - 1]))
        self.target.read(list(prompt))

    @torch.inference_mode()
    def begin_draft(self, prompt: Sequence[int]) -> None:
        if self.draft is not None:
            self.draft.read(self._language_model.known(prompt))

    def give(self, depth: int, draft_points: Sequence[float], verify_points: Sequence[float]) -> None:
        """What the next round takes from the host: how many drafted tokens count, and random numbers."""
        self._outside.copy_(torch.tensor([depth, *draft_points, *verify_points], dtype=torch.float64))
        self._given.copy_(self._outside, non_blocking=True)

    @torch.inference_mode()
    def propose(self, root: int) -> None:
        """The draft's steps behind the root at this place."""
        if self.draft is not None:
            self._works[self._window(root)][0]()

    @torch.inference_mode()
    def score(self, root: int) -> None:
        """The target's pass, its verdict, and the text's new end."""
        self._works[self._window(root)][1]()

    @property
    def laws(self) -> Tensor | None:
        """[K, V], what the round's tokens were drawn from; None of greedy ones.  The next round writes over it."""
        return self._choice.laws

    def result(self) -> tuple[list[int], list[float], int, int]:
        """Of the last round: drafted tokens, their probabilities, how many stayed, and what follows them.

        The one place where the host waits.
        """
        found, k = self._found.tolist(), self.k
        return [int(token) for token in found[:k]], found[k : 2 * k], int(found[2 * k]), int(found[2 * k + 1])

    def _windows(self) -> list[int]:
        ends, capacity = [min(WINDOW, self.target.cache.capacity)], self.target.cache.capacity
        while ends[-1] < capacity:
            ends.append(min(2 * ends[-1], capacity))
        return ends

    def _window(self, root: int) -> int:
        return next(end for end in self._works if root + self.width <= end)

    # -- the device's side: the same work every round, and nothing for the host to wait for ---------------------------

    def _propose(self, end: int) -> None:
        """K tokens, one step each."""
        at, tokens = self._text[2], self._text[:2]
        slots = (self._offsets[:2] + at).clamp_(min=0)  # a text of one token has none before it: read it twice
        chances = self._found[self.k : 2 * self.k]
        for level in range(self.k):
            known = tokens.masked_fill(tokens >= self._language_model.shared, 0)
            logits = self.draft.score(known, slots, end)[-1, : self._language_model.columns]
            tokens, chance = self._choice.draft(level, logits, self._given[1 + level])
            self._drafted[level : level + 1].copy_(tokens)
            chances[level : level + 1].copy_(chance)
            slots = self._offsets[level + 2 : level + 3] + at

    def _score(self, end: int) -> None:
        root, at, k = self._text[1:2], self._text[2:3], self.k
        chain = torch.cat([root, self._drafted])
        rows = torch.cat([chain, root.expand(self.width - k - 1)])
        logits = self.target.score(rows, self._offsets[1:] + at, end)[: k + 1]
        accepted, following = self._choice.verdict(logits, self._drafted, self._given[:1], self._given[1 + k :])
        self._found[:k].copy_(self._drafted)
        self._found[2 * k :].copy_(torch.cat([accepted, following]))
        self._text.copy_(torch.cat([chain.index_select(0, accepted), following, at + accepted + 1]))

    @torch.inference_mode()
    def _ready(self, work: Callable[[int], None], end: int) -> Work:
        """`work` over a window, as what a round calls: on a GPU, a captured graph."""
        if not self.captured or (work == self._propose and self.draft is None):
            return lambda: work(end)
        kept = self._text.clone()
        with torch.cuda.device(self.device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARMUP):
                    work(end)
                    self._text.copy_(kept)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                work(end)
        return graph.replay
