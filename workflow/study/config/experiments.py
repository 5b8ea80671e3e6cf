"""What is run: prompts, sampling, settings of a run, experiments, sizes of a study, calibrated values."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from workflow.study.config.base import (
    Count,
    CountOrZero,
    Depth,
    DraftName,
    Flag,
    Nats,
    Nucleus,
    PairName,
    Probability,
    Section,
    Seed,
    Temperature,
    Text,
    says,
)
from workflow.study.config.measure import CostModel, LongContext, Peers, Profile
from workflow.study.config.trees import Ablation, Trees, TreesSize, Verification

Dtype = Literal["bfloat16", "float32"]
Rule = Literal[
    "max_prob",
    "margin",
    "entropy",
    "history",
    "svip",
    "adaedl",
    "draft_verify",
    "pid",
    "cost",
    "token_type",
    "difficulty",
]
THRESHOLD_RULES = (
    *("max_prob", "margin", "entropy", "svip", "adaedl", "draft_verify", "pid", "token_type", "difficulty"),
)
"""Depth rules that a number of the configuration steers; `history` has none, that of `cost` is measured."""

NO_THRESHOLD = {
    "history": "history looks at past rounds and takes no threshold",
    "cost": "cost takes the cost that the calibration measures",
    "ddd": "ddd takes the levels and the threshold that the calibration measures",
    "fixed": "fixed takes no threshold",
    "ar": "ar drafts nothing and takes no threshold",
}

Depths = Annotated[list[Depth], Field(min_length=1)]


class Prompts(Section):
    """Which prompts there are, and how the slices are drawn from them.

    `own_kind`: how many held-out conversations of the training text are decoded as well.
    """

    files: Annotated[list[Text], Field(min_length=1)]
    slice_seed: Seed = 0
    calibration_per_category: CountOrZero = 4
    own_kind: Count = 12


class Sampling(Section):
    """How tokens are drawn, the same in every arm.  Temperatures and seeds belong to the size of a study."""

    top_k: Annotated[int | None, Field(ge=1), says("top_k is an integer from 1, or null for off")] = None
    top_p: Nucleus | None = None
    draft_temperature: Temperature | None = None


ONE_TEXT = "the batch size is 1: the study is about the latency of one text, where decoding is bound by memory"


class Run(Section):
    """The machine's side of a run."""

    why_not = {"batch": ONE_TEXT, "batch_size": ONE_TEXT}

    dtype: Dtype = "bfloat16"
    device: Literal["cpu", "cuda"] = "cpu"
    threads: Annotated[
        int | None, Field(ge=1, le=1024), says("threads is an integer from 1, or null for all cores the job may use")
    ] = None
    static: Flag = False
    repetitions: Count = 1
    warmup: CountOrZero = 1


class FixedK(Section):
    k: Depths


class Thresholds(Section):
    """The grid of thresholds, by rule."""

    why_not = NO_THRESHOLD

    max_prob: list[Probability] = []
    margin: list[Probability] = []
    entropy: list[Nats] = []
    svip: list[Nats] = []
    adaedl: list[Probability] = []
    draft_verify: list[Probability] = []
    pid: list[Probability] = []
    token_type: list[Probability] = []
    difficulty: list[Probability] = []

    def of(self, rule: str) -> list[float]:
        return list(getattr(self, rule))


class DynamicK(Section):
    k: Depth
    rules: list[Rule]
    thresholds: Thresholds = Thresholds()


class Losslessness(Section):
    k: Depth
    dtypes: list[Dtype] = []
    max_new_tokens: Count | None = None


class Experiments(Section):
    fixed_k: FixedK
    dynamic_k: DynamicK
    losslessness: Losslessness
    cost_model: CostModel = CostModel()
    profile: Profile = Profile()
    peers: Peers = Peers()
    long_context: LongContext = LongContext()
    trees: Trees
    verification: Verification
    ablation: Ablation


class Size(Section):
    """How much of everything a study takes.  `draft_depths`: K at which every draft is compared."""

    per_category: Count | None = None
    turns: Count = 1
    max_new_tokens: Annotated[int, Field(ge=1, le=100_000), says("max_new_tokens is an integer from 1 to 100000")]
    thresholds: Literal["calibrated", "all"] = "calibrated"
    draft_depths: Depths = [4]
    rules: list[Rule] | None = None
    calibration: Literal["committed", "measured"] = "committed"
    trees: TreesSize = TreesSize()
    verification_temperatures: list[Temperature] | None = None
    temperatures: Annotated[list[Temperature], Field(min_length=1)] = [0.0]
    seeds: Annotated[list[Seed], Field(min_length=1)] = [0]


class CalibratedThresholds(Section):
    why_not = NO_THRESHOLD

    max_prob: Probability | None = None
    margin: Probability | None = None
    entropy: Nats | None = None
    svip: Nats | None = None
    adaedl: Probability | None = None
    draft_verify: Probability | None = None
    pid: Probability | None = None
    token_type: Probability | None = None
    difficulty: Probability | None = None

    def of(self, rule: str) -> float | None:
        return getattr(self, rule)


class Calibrated(Section):
    """Values chosen on the calibration prompts, for one draft of one pair."""

    best_k: Depth | None = None
    thresholds: CalibratedThresholds = CalibratedThresholds()
    provenance: Text


Calibration = dict[PairName, dict[DraftName, Calibrated]]
