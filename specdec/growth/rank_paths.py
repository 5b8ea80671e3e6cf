"""Shapes of trees that are fixed before the round: sets of rank paths.

A rank path names a node by the ranks of the tokens on the way to it: (0, 2) is the third choice after the first choice
after the root.  The order of a list is its order of importance: where fewer nodes are allowed the last ones are left
out, so a parent stands before its children.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from specdec.errors import UserError, unknown

Path = tuple[int, ...]
Shape = str | Sequence[int] | Sequence[Sequence[int]]


def symmetric(widths: Iterable[int]) -> tuple[Path, ...]:
    """Every node of level d has widths[d] children; level by level."""
    level: list[Path] = [()]
    paths: list[Path] = []
    for width in widths:
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise UserError(f"tree: width {width!r}: must be an integer of 1 or more")
        level = [(*path, rank) for path, rank in itertools.product(level, range(width))]
        paths += level
    return tuple(paths)


_EAGLE1 = "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"
EAGLE1 = tuple(tuple(map(int, ranks)) for ranks in _EAGLE1.split())
"""The 25 nodes of EAGLE-1's tree (arXiv 2401.15077)."""

PRESETS = {"eagle1": EAGLE1, "medusa": symmetric((3, 2, 1))}
"""`medusa`: a small full tree like those of Medusa (arXiv 2401.10774)."""


def rank_paths(shape: Shape) -> tuple[Path, ...]:
    """The paths of a preset's name, of widths by level, or of a list of paths, checked."""
    if isinstance(shape, str):
        if shape not in PRESETS:
            raise unknown("tree", shape, PRESETS)
        return PRESETS[shape]
    if not shape:
        raise UserError("tree: no paths: must have at least one node")
    if all(isinstance(width, int) for width in shape):
        return symmetric(shape)
    seen: set[Path] = set()
    for path in (paths := tuple(tuple(path) for path in shape)):
        if not path or any(isinstance(rank, bool) or not isinstance(rank, int) or rank < 0 for rank in path):
            raise UserError(f"tree: path {list(path)}: must be a list of ranks of 0 or more")
        if path in seen:
            raise UserError(f"tree: path {list(path)} stands there twice")
        if path[:-1] not in seen and len(path) > 1:
            raise UserError(f"tree: path {list(path)}: its parent {list(path[:-1])} must stand before it")
        seen.add(path)
    return paths


def fitting(paths: Sequence[Path], depth: int, nodes: int) -> list[Path]:
    """The first `nodes` paths of at most `depth` levels, sorted by level and then by rank; closed under parents."""
    return sorted([path for path in paths if len(path) <= depth][:nodes], key=lambda path: (len(path), path))
