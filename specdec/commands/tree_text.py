"""A round's draft as text: who hangs under whom, and which nodes the target accepted.

    root
    ├─* " the"
    │  ├─  " dog"
    │  └─* " cat"
    └─  " a"
    =>  " sat"

A star marks the accepted path; the last line is the token that the target chose behind it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from specdec.tree import ROOT, Draft


def tree_text(
    draft: Draft, path: Sequence[int], next_token: int | None = None, show: Callable[[int], str] = str
) -> str:
    """`path`: accepted nodes; `show` gives a token's text.  Siblings stand in the order they were drawn."""
    accepted, children = set(path), {node: [] for node in range(ROOT, len(draft))}
    for node, parent in enumerate(draft.parents):
        children[parent].append(node)
    lines = ["root"]

    def walk(node: int, indent: str) -> None:
        for child in children[node]:
            last = child == children[node][-1]
            mark = "*" if child in accepted else " "
            lines.append(f"{indent}{'└─' if last else '├─'}{mark} {_quoted(show(draft.tokens[child]))}")
            walk(child, indent + ("   " if last else "│  "))

    walk(ROOT, "")
    if next_token is not None:
        lines.append(f"=>  {_quoted(show(next_token))}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """On one line, spaces visible."""
    return json.dumps(text, ensure_ascii=False)
