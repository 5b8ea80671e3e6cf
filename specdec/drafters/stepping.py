"""Where a round's tentative rows stand: shared by the draft models that run a `Transformer` step by step."""

from __future__ import annotations

from collections.abc import Sequence

from specdec.tree import Draft


def placement(parents: Sequence[int], count: int, root: int) -> dict:
    """Arguments of `Transformer.forward` for the last `count` of a round's rows behind the root at position `root`.

    `parents` are all of the round's rows so far, in feeding order, -1 the root.  A chain needs no arguments.
    """
    tree = Draft(tuple(range(len(parents))), tuple(parents))
    if tree.is_chain:
        return {}
    new = slice(len(parents) - count, None)
    return {"positions": [root + depth for depth in tree.depths[new]], "mask": tree.mask()[1:, 1:][new]}
