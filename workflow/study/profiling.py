"""The tables `operators`, `memory` and `roofline`: where the time goes, and how far it is from what the machine allows.

The one idea of the roofline (Williams et al., 2009): a pass can be no faster than its bytes at the machine's read
bandwidth and no faster than its operations at the arithmetic's peak; both limits are measured here, in the same
minutes as the passes that are held against them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from specdec.measure.alternate import Median, alternate, median
from specdec.measure.bandwidth import bandwidth_of, matmul_peak
from specdec.measure.clock import clock_for
from specdec.measure.forward_times import filled_cache, fitting, target_call
from specdec.measure.phases import PYTHON, Profiled, profiled
from specdec.models.loading import dtype_of
from specdec.models.transformer import Transformer
from workflow.study.cells import Cell
from workflow.study.config import StudyConfig
from workflow.study.prompts import evaluation_slice
from workflow.study.run_cell import Bench, encode

GROUPS = {
    "products": ("native::products", "linear", "::mm", "addmm", "matmul", "::bmm"),
    "attention": ("native::attention", "scaled_dot_product"),
    "rows": ("native::rows",),
    "python": (PYTHON,),
}
"""Kinds of work by what an operator's name contains; the first that fits.  The rest are small operators."""

SMALL = "small"
SHOWN = 0.005
"""Operators below this share of their arm's time are summed up by phase and kind."""
SUMMED = "others"


def profile_tables(config: StudyConfig) -> dict[str, list[dict]]:
    """All three tables; one loading of the model serves them."""
    bench = Bench.of(config, Cell(config.pair, "none", "ar", 0, dtype=config.run.dtype))
    primary, k = config.pair_in_force().primary, config.experiments.profile.k
    drafting = Bench.of(config, Cell(config.pair, primary, "fixed", k, dtype=config.run.dtype), target=bench.target)
    tables: dict[str, list[dict]] = {"operators": [], "memory": []}
    for arm, own in (("ar", bench), ("speculative", drafting)):
        found, cache_bytes = _profile(own, arm)
        draft, depth = (None, 0) if arm == "ar" else (primary, k)
        tables["operators"] += operator_rows(found, arm, draft, depth)
        tables["memory"] += memory_rows(own, arm, draft, cache_bytes, found.peak_bytes)
        print(f"profiled the arm {arm}", file=sys.stderr, flush=True)
    return tables | {"roofline": roofline_rows(config, bench.target.model)}


def _profile(bench: Bench, arm: str) -> tuple[Profiled, int]:
    """A generation of the first prompt under the profiler, after one that warms up."""
    bench = replace(bench, max_new_tokens=bench.config.experiments.profile.tokens)
    prompt = evaluation_slice(bench.config)[0]
    ids = encode(bench, prompt, [])
    bench.generation(arm, ids, prompt.prompt_id).run()
    made = []

    def make(clock):
        made.append(bench.generation(arm, ids, prompt.prompt_id, clock))
        return made[0]

    found = profiled(make)
    return found, made[0].cache.bytes


def group_of(operator: str) -> str:
    """The kind of work an operator does."""
    return next((group for group, parts in GROUPS.items() if any(part in operator for part in parts)), SMALL)


def operator_rows(found: Profiled, arm: str, draft: str | None, k: int) -> list[dict]:
    """Rows by phase and operator, largest first; shares of the arm's time add up to 1."""
    total = sum(operator.seconds for operator in found.operators)
    rows: dict[tuple, dict] = {}
    for operator in found.operators:
        name = operator.name if operator.seconds >= SHOWN * total else SUMMED
        group = group_of(operator.name)
        row = rows.setdefault(
            (operator.phase, group, name),
            {"arm": arm, "draft": draft, "k": k, "phase": operator.phase, "group": group, "operator": name}
            | {"calls": 0, "ms": 0.0, "share": 0.0},
        )
        row["calls"] += operator.calls
        row["ms"] += 1000 * operator.seconds
        row["share"] += operator.seconds / total
    return sorted(rows.values(), key=lambda row: -row["ms"])


def memory_rows(bench: Bench, arm: str, draft: str | None, cache: int, activations: int) -> list[dict]:
    """Bytes of weights, cache and, at their peak, of everything else that a generation allocates."""
    parts = {"target_weights": bench.target.model.weight_bytes()}
    if arm != "ar" and bench.draft is not None:  # a draft made of the target's own layers holds nothing more
        parts["draft_weights"] = bench.draft_bytes
    parts |= {"cache": cache, "activations": activations}
    return [{"arm": arm, "draft": draft, "part": part, "bytes": size} for part, size in parts.items()]


# -- roofline -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """What the machine allows: bytes and operations a second."""

    bytes_per_s: float
    operations_per_s: float

    def seconds(self, size: int, operations: int) -> float:
        """The shortest that work of this size can take."""
        return max(size / self.bytes_per_s, operations / self.operations_per_s)


def pass_work(model: Transformer, width: int, context: int) -> tuple[int, int]:
    """(bytes, operations) of a target pass over `width` tokens behind `context` cached ones: each weight and each
    cached row is read once, a multiplication and an addition for each weight and token, and attention on top."""
    c, size = model.config, model.dtype.itemsize
    weights = model.weight_bytes()
    row = 2 * c.layers * c.kv_heads * c.head_dim
    seen = sum(context + i + 1 for i in range(width))
    attention = 4 * c.layers * c.heads * c.head_dim * seen
    return weights + row * size * (context + width), 2 * (weights // size) * width + attention


def roofline_rows(config: StudyConfig, model: Transformer) -> list[dict]:
    """The two limits, then a pass of each width against them."""
    settings, threads = config.experiments.profile, config.threads()
    bandwidth = bandwidth_of(model.device, threads).bytes_per_s
    # a GPU's units are full from wider products on
    size = 1536 if model.device.type == "cpu" else 8192
    limits = Limits(bandwidth, matmul_peak(dtype_of(config.run.dtype), size, device=model.device))
    context = next(iter(fitting(model, [settings.context], max(settings.widths))), 0)
    cache, clock = filled_cache(model, context, max(settings.widths)), clock_for(model.device)
    calls = {width: target_call(model, cache, context, width, clock) for width in settings.widths}
    samples = alternate(calls, settings.repeats)
    found = {width: median(samples[width]) for width in settings.widths}
    works = {width: pass_work(model, width, context) for width in settings.widths}
    return limit_rows(limits) + [point_row(limits, width, context, works[width], found[width]) for width in found]


def limit_rows(limits: Limits) -> list[dict]:
    empty = dict.fromkeys(
        ("width", "context", "ms", "ms_low", "ms_high", "bytes", "operations", "intensity", "share_of_limit")
    )
    rates = {"gops_per_s": None, "gbytes_per_s": None}
    return [
        {"point": "memory_limit", **empty, **rates, "gbytes_per_s": limits.bytes_per_s / 1e9},
        {"point": "arithmetic_limit", **empty, **rates, "gops_per_s": limits.operations_per_s / 1e9},
    ]


def point_row(limits: Limits, width: int, context: int, work: tuple[int, int], found: Median) -> dict:
    size, operations = work
    low, high = (None if end is None else 1000 * end for end in (found.low, found.high))
    return {
        "point": "ar" if width == 1 else "verification",
        "width": width,
        "context": context,
        "ms": 1000 * found.value,
        "ms_low": low,
        "ms_high": high,
        "bytes": size,
        "operations": operations,
        "intensity": operations / size,
        "gops_per_s": operations / found.value / 1e9,
        "gbytes_per_s": size / found.value / 1e9,
        "share_of_limit": limits.seconds(size, operations) / found.value,
    }
