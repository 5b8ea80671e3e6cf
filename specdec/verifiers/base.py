"""What every verifier sees and returns, and what it must declare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from specdec.errors import UserError
from specdec.sampling import Sampling, Stream, largest, warp
from specdec.tree import LAWS, Draft


class TargetRows:
    """The target's rows of one pass: row 0 follows the root, row j + 1 follows node j.

    Rows are warped when they are asked for, so that only visited nodes cost; `logits` [n + 1, V] is never changed.
    """

    def __init__(self, logits: Tensor, sampling: Sampling):
        self.logits, self.sampling = logits, sampling

    def argmax(self, row: int) -> int:
        return int(largest(self.logits[row]))

    def law(self, row: int) -> Tensor:
        """p [V] of a row, after warping."""
        return warp(self.logits[row], self.sampling)


@dataclass(frozen=True)
class Verdict:
    """`path`: accepted nodes from the root on; `next_token` follows them.

    `source` is `bonus` when everything drafted was accepted (nothing drafted included), else `correction`.
    """

    path: tuple[int, ...]
    next_token: int
    source: str


class Verifier:
    """Base of all rules.  Subclasses say what they are exact for and implement `verify`."""

    name: ClassVar[str]
    lossless: ClassVar[bool] = True
    laws: ClassVar[frozenset[str]] = frozenset(LAWS)
    shapes: ClassVar[frozenset[str]] = frozenset({"chain", "tree"})
    greedy_only: ClassVar[bool] = False

    def check_sampling(self, sampling: Sampling) -> None:
        if self.greedy_only and not sampling.greedy:
            raise UserError(f"verifier {self.name}: exact at temperature 0 only, not at {sampling.temperature}")

    def check_draft(self, draft: Draft) -> None:
        """Refuse a proposal the rule is not exact for."""
        if not draft:
            return
        shape = "chain" if draft.is_chain else "tree"
        if shape not in self.shapes:
            raise UserError(f"verifier {self.name}: not exact for a {shape}; allowed: {', '.join(sorted(self.shapes))}")
        if draft.law not in self.laws:
            allowed = ", ".join(sorted(self.laws))
            raise UserError(f"verifier {self.name}: not exact for proposals drawn {draft.law}; allowed: {allowed}")

    def verify(self, draft: Draft, rows: TargetRows, stream: Stream) -> Verdict:
        raise NotImplementedError
