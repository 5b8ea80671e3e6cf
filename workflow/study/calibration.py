"""What was measured beforehand for one draft of one pair, and the numbers that follow from it.

Step and verification costs by width, acceptance by rank and depth, and acceptance by confidence, all of them from the
calibration prompts.  A method that needs such a number reads it here: a cell that measured for itself would draft
differently from run to run.

Costs are in target passes over one row.  A file is used only for the draft it was measured with.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from specdec.errors import UserError

COMMITTED = Path("workflow/calibration")
MEASURED = Path("results/calibration")


@dataclass(frozen=True)
class Calibration:
    """`target_ms`, `draft_ms`: milliseconds of a pass and of a draft step, by rows; `root_ms`: of a round's first step,
    which catches up with the text.  `tested[d]`: how often the draft guessed `d + 1` tokens ahead of committed text;
    `hits[d][r]`: how often its guess of rank r was the target's token.  `bins`: by confidence of a guess, (lower edge,
    guesses, right ones).  `subject` says what it was measured for, `provenance` on what and when.
    """

    subject: dict
    provenance: dict
    target_ms: dict[int, float]
    draft_ms: dict[int, float]
    root_ms: float
    tested: list[int]
    hits: list[list[int]]
    bins: list[list[float]]

    def target_cost(self, rows: int) -> float:
        """Of a target pass over `rows` rows."""
        return interpolate(self.target_ms, rows) / self.target_ms[1]

    def draft_cost(self, rows: int) -> float:
        """Of one draft step over `rows` rows."""
        return interpolate(self.draft_ms, rows) / self.target_ms[1]

    def token_cost(self, k: int) -> float:
        """Of one more drafted token in a chain of up to `k`: its step, and its row in the target's pass."""
        return round(self.draft_cost(1) + max(0.0, self.target_cost(k + 1) - 1) / k, 6)

    def level_cost(self, width: int) -> float:
        """Of one more level of a tree, `width` rows wide at most: OPT-Tree's delta."""
        return round(self.draft_cost(width), 6)

    def acceptance(self, ranks: int | None = None) -> list[float]:
        """By rank, over all depths: how often the target's token is the guess of that rank."""
        tested = sum(self.tested)
        if not tested:
            raise UserError("calibration: no guess was tested; the prompts' answers are too short")
        totals = [sum(row[rank] for row in self.hits) / tested for rank in range(len(self.hits[0]))]
        return totals[:ranks]

    def beam_threshold(self, width: int) -> float:
        """DDD's threshold: the log of the least mass of a beam of this width that pays for another level.

        The level brings at most mass * (chance that the target's token is among the children) tokens, and has to bring
        what the baseline would write in its time.
        """
        hit = sum(self.acceptance(width))
        least = self.level_cost(width) / hit if hit else 1.0
        return round(math.log(min(1.0, max(least, 1e-6))), 6)

    def text(self) -> str:
        """The file's text: stable, so that a diff shows what changed."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Raises `UserError` for a file that is none of ours."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            for name in ("target_ms", "draft_ms"):
                data[name] = {int(rows): float(value) for rows, value in data[name].items()}
            return cls(**data)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{path}: not a calibration file ({error}); delete it and calibrate anew") from None


def interpolate(points: dict[int, float], rows: int) -> float:
    """The value at `rows`, linear between the widths measured; the ends go on as they are."""
    known = sorted(points)
    above = next((width for width in known if width >= rows), known[-1])
    below = next((width for width in reversed(known) if width <= rows), known[0])
    if above == below or not below <= rows <= above:
        return points[above] if rows >= known[-1] else points[below]
    share = (rows - below) / (above - below)
    return points[below] * (1 - share) + points[above] * share
