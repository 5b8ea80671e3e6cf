"""Several guesses at once: chains that share a beginning become one tree, its common part scored once.

Used where candidates come from elsewhere than a model's steps: retrieved continuations, several lookups (REST, arXiv
2311.08252, merges its hits like this).

Losslessness.  The chains were chosen deterministically, and so is their union: a point law.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specdec.tree import ROOT, Draft


def merge(
    chains: Iterable[Sequence[int]], *, depth: int | None = None, nodes: int | None = None, stopped: str = "none"
) -> Draft:
    """One draft of all chains, at most `depth` levels and `nodes` nodes.

    Chains come in order of preference: where nodes run out the last ones are cut.  Siblings stand in that order too.
    """
    node_of: dict[tuple[int, int], int] = {}
    for chain in chains:
        parent = ROOT
        for token in chain[:depth]:
            key = (parent, token)
            if key not in node_of:
                if nodes is not None and len(node_of) >= nodes:
                    break
                node_of[key] = len(node_of)
            parent = node_of[key]
    return Draft(tuple(token for _, token in node_of), tuple(parent for parent, _ in node_of), stopped=stopped)
