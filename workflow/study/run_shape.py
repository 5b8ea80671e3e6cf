"""From a cell to what the engine builds: its shape, its policy, and the numbers that come from the calibration."""

from __future__ import annotations

from specdec.errors import UserError
from specdec.growth import sequoia
from workflow.study import legal
from workflow.study.calibration import Calibration
from workflow.study.cells import Cell
from workflow.study.config import CHAIN, StudyConfig
from workflow.study.config.trees import CoarseFineShape, Eagle2Shape, SampledShape, StaticShape


def engine_options(config: StudyConfig, cell: Cell, known: Calibration | None) -> dict:
    """Keyword arguments of `build_drafter`: shape, policy and threshold."""
    if legal.needs_calibration(config, cell) and known is None:
        raise UserError(f"cell {cell.name}: needs the calibration of the draft {cell.draft}, which was not given")
    kind = legal.kind_of(config, cell.shape)
    shape = engine_shape(config, cell, cell.shape, known)
    match kind, cell.policy:
        case "eagle2", "ddd":
            levels = {"levels": list(range(1, cell.k))} if cell.k > 1 else {}
            threshold = known.beam_threshold(shape["width"])
            return {"shape": shape | levels, "policy": "ddd", "threshold": threshold}
        case "opt_tree", _:
            # at a fixed depth every level is drafted that can still bring anything
            delta = known.level_cost(cell.nodes) if cell.policy == "cost" else 0.0
            return {"shape": shape | {"delta": delta}, "policy": "fixed", "threshold": None}
        case "chain", "cost":
            return {"shape": shape, "policy": "cost", "threshold": known.token_cost(cell.k)}
    return {"shape": shape, "policy": cell.policy, "threshold": cell.threshold}


def engine_shape(config: StudyConfig, cell: Cell, name: str, known: Calibration | None) -> str | dict:
    """The engine's {kind: ..., option: ...} of a shape's name, or the name of the chain."""
    spec = config.shape(name)
    match spec:
        case None:
            return CHAIN
        case StaticShape():
            return {"kind": "static_tree", "paths": spec.preset or spec.widths or spec.paths}
        case SampledShape():
            return {"kind": "sampled_tree", "widths": spec.widths, "replacement": spec.replacement}
        case Eagle2Shape():
            return {"kind": "eagle2", "width": spec.width}
        case CoarseFineShape():
            halves = {half: engine_shape(config, cell, getattr(spec, half), known) for half in ("coarse", "fine")}
            rounds = {"coarse_rounds": spec.coarse_rounds, "fine_rounds": spec.fine_rounds}
            return {"kind": "coarse_fine", **halves, **rounds}
    if spec.kind == "sequoia":
        return {"kind": "static_tree", "paths": [list(path) for path in fitted(cell, known).paths]}
    return {"kind": spec.kind}


def fitted(cell: Cell, known: Calibration) -> sequoia.Fitted:
    """The static tree that the measurements favour, within the cell's depth and nodes."""
    return sequoia.fit(
        known.acceptance(),
        nodes=cell.nodes,
        depth=cell.k,
        draft_cost=known.draft_cost(1),
        verify_cost=known.target_cost,
    )
