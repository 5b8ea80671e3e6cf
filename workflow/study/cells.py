"""A cell: one point of the study, one job, one parquet file.

A `Cell` names everything that tells two measurements apart; its path is short, flat and canonical, so that two
experiments that need the same cell share the file.  0.3, 0.30 and 3e-1 are one path.

Paths are written and read here and not by Snakemake's `Paramspace`: that lays every column into every name, while a
cell leaves out what has its usual value, so that a column added later renames no file of today.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath

from specdec.errors import UserError, unknown
from workflow.study.config import MAX_K
from workflow.study.config.experiments import THRESHOLD_RULES

POLICIES = ("ar", "fixed", "history", "cost", "ddd", *THRESHOLD_RULES)
CELLS_FOLDER = "results/cells"
LONGEST_PATH = 180

USUAL_SHAPE, USUAL_DTYPE = "chain", "bfloat16"
PROJECT, OWN_KIND = "project", "own_kind"
"""Sets of prompts: the project's own collection, and held-out conversations of the text that drafts are trained on."""

_WORD = r"[a-z0-9][a-z0-9_]*"
_NUMBER = r"\d+(?:\.\d+)?"
PATTERN = (
    rf"{_WORD}-{_WORD}-k\d+(?:-h{_NUMBER})?-t{_NUMBER}-s\d+"
    rf"(?:-shape_{_WORD})?(?:-nodes_\d+)?(?:-verifier_{_WORD})?(?:-prompts_{_WORD})?(?:-dtype_{_WORD})?"
)
"""The wildcard constraint of a cell's name, without groups."""

_PARSE = re.compile(
    rf"(?P<draft>{_WORD})-(?P<policy>{_WORD})-k(?P<k>\d+)(?:-h(?P<threshold>{_NUMBER}))?"
    rf"-t(?P<temperature>{_NUMBER})-s(?P<seed>\d+)"
    rf"(?:-shape_(?P<shape>{_WORD}))?(?:-nodes_(?P<nodes>\d+))?"
    rf"(?:-verifier_(?P<verifier>{_WORD}))?(?:-prompts_(?P<prompt_set>{_WORD}))?"
    rf"(?:-dtype_(?P<dtype>{_WORD}))?"
)


@dataclass(frozen=True, order=True)
class Cell:
    """One point of the study.  `threshold` is None for policies that take none, or a measured one (`cost`, `ddd`);
    `nodes` None means K, `verifier` None the usual one: `greedy` at temperature 0, `rejection` above.

    What goes together says `legal`, which knows the configuration.
    """

    pair: str
    draft: str
    policy: str
    k: int
    threshold: float | None = None
    temperature: float = 0.0
    seed: int = 0
    shape: str = USUAL_SHAPE
    nodes: int | None = None
    verifier: str | None = None
    dtype: str = USUAL_DTYPE
    prompt_set: str = PROJECT

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "temperature", exact(self.temperature, "temperature"))
        if self.threshold is not None:
            put(self, "threshold", exact(self.threshold, "threshold"))
        if self.nodes is None:
            put(self, "nodes", self.k)
        if self.verifier is None:
            put(self, "verifier", self.usual_verifier)
        self._check()

    def _check(self) -> None:
        if self.policy not in POLICIES:
            raise unknown("policy", self.policy, POLICIES)
        if (self.policy == "ar") != (self.draft == "none") or (self.policy == "ar") != (self.k == 0):
            raise UserError(f"cell {self.name}: the baseline is draft none, policy ar and K 0, all three or none")
        if self.prompt_set not in (PROJECT, OWN_KIND):
            raise unknown("prompt set", self.prompt_set, (PROJECT, OWN_KIND))
        if not 0 <= self.k <= MAX_K:
            raise UserError(f"cell {self.name}: K is an integer from 1 to {MAX_K}")
        if (self.threshold is not None) != (self.policy in THRESHOLD_RULES):
            verb = "needs a" if self.policy in THRESHOLD_RULES else "takes no"
            raise UserError(f"cell {self.name}: the policy {self.policy} {verb} threshold")
        if not _PARSE.fullmatch(self.name):
            raise UserError(f"cell {self.name}: names are made of a-z, 0-9 and _")
        if len(self.path) > LONGEST_PATH:
            raise UserError(f"cell {self.name}: its path is longer than {LONGEST_PATH} characters; shorten the names")

    @property
    def usual_verifier(self) -> str:
        return "greedy" if self.temperature == 0 else "rejection"

    @property
    def ignore_eos(self) -> bool:
        """Above temperature 0 lengths differ by chance, so timing runs to a fixed length."""
        return self.temperature > 0

    @property
    def name(self) -> str:
        """The file's name without its ending; unique within the pair."""
        parts = [self.draft, self.policy, f"k{self.k}"]
        if self.threshold is not None:
            parts.append(f"h{text(self.threshold)}")
        parts += [f"t{text(self.temperature)}", f"s{self.seed}"]
        if self.shape != USUAL_SHAPE:
            parts.append(f"shape_{self.shape}")
        if self.nodes != self.k:
            parts.append(f"nodes_{self.nodes}")
        if self.verifier != self.usual_verifier:
            parts.append(f"verifier_{self.verifier}")
        if self.prompt_set != PROJECT:
            parts.append(f"prompts_{self.prompt_set}")
        if self.dtype != USUAL_DTYPE:
            parts.append(f"dtype_{self.dtype}")
        return "-".join(parts)

    @property
    def path(self) -> str:
        """Relative to the folder of the study, with forward slashes."""
        return f"{CELLS_FOLDER}/{self.pair}/{self.name}.parquet"

    @classmethod
    def from_name(cls, pair: str, name: str) -> Cell:
        """The inverse of `name`.  Raises `UserError` for a name that no cell has, other spellings of one included."""
        match = _PARSE.fullmatch(name)
        if not match:
            raise UserError(f'"{name}" is not the name of a cell; an example: layer_skip-max_prob-k8-h0.5-t0-s0')
        found = {key: value for key, value in match.groupdict().items() if value is not None}
        for key, kind in (("k", int), ("seed", int), ("nodes", int), ("threshold", float), ("temperature", float)):
            if key in found:
                found[key] = kind(found[key])
        cell = cls(pair=pair, **found)
        if cell.name != name:
            raise UserError(f'"{name}" is another spelling of the cell {cell.name}')
        return cell

    @classmethod
    def from_path(cls, path: str | Path) -> Cell:
        parts = PurePosixPath(Path(path).as_posix())
        return cls.from_name(parts.parent.name, parts.name.removesuffix(".parquet"))

    def columns(self) -> dict:
        """The parquet columns that identify the cell."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def exact(number: float, what: str) -> float:
    """The number, as it reads after six decimals; raises where that loses something."""
    number = float(number)
    if not 0 <= number < 1e6 or round(number, 6) != number:
        raise UserError(f"{what} {number!r}: a number from 0 with at most six decimals is expected")
    return number + 0.0  # no negative zero


def text(number: float) -> str:
    """0.30 as 0.3, 1.0 as 1; never an exponent."""
    return f"{number:.6f}".rstrip("0").rstrip(".")
