"""Figures of draft trees: what nodes buy, what the draft expected, how far it may be believed, and one tree."""

from __future__ import annotations

import json
from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workflow.study.figures import style
from workflow.study.figures.curves import legend, noise_band, panels, whiskers

Frames = dict[str, pd.DataFrame]
FEW = 30
"""Guesses below which a point is drawn hollow."""
MANY = 12
"""Points above which their budgets are not written beside them."""


def drafts(rows: pd.DataFrame) -> pd.DataFrame:
    """Without the baseline."""
    return rows[rows["policy"] != "ar"]


def contenders(rows: pd.DataFrame) -> Iterator[tuple[str, dict, pd.DataFrame]]:
    """(label, look, rows) for each shape and policy, all of its seeds together."""
    looks = style.looks(list(dict.fromkeys(map(contender, rows["shape"], rows["policy"]))))
    for (shape, policy), own in rows.groupby(["shape", "policy"], sort=False):
        yield contender(shape, policy), looks[contender(shape, policy)], own


def contender(shape: str, policy: str) -> str:
    """A shape under a policy in a reader's words."""
    name = style.word(shape)
    return name if policy == "fixed" else f"{name}, {style.word(policy)}"


def speedup_by_nodes(frames: Frames) -> plt.Figure:
    """Speedup against the budget of nodes, with 95% intervals, one line a shape."""
    rows = frames["trees"]
    figure, parts = panels(rows)
    for temperature, (axes, *_) in parts:
        here = rows[rows["temperature"] == temperature]
        noise_band(axes, here)
        own = drafts(here)
        budgets = sorted(own["nodes"].unique())
        shown = list(contenders(own[own["seed"] == own["seed"].min()]))
        for index, (label, look, points) in enumerate(shown):
            points = points[points["speedup"].notna()].sort_values("nodes", kind="stable")
            # side by side where budgets coincide
            place = points["nodes"] * 2 ** (0.09 * (index - (len(shown) - 1) / 2))
            axes.errorbar(place, points["speedup"], yerr=whiskers(points, "speedup"), capsize=2.5, label=label, **look)
        axes.set_xscale("log", base=2)
        axes.set_xticks(budgets, [str(budget) for budget in budgets])
        axes.minorticks_off()
        if budgets:
            axes.set_xlim(min(budgets) / 1.5, max(budgets) * 1.5)
        axes.set_xlabel("nodes a round at most")
        axes.set_ylim(bottom=0)
        axes.set_ylabel("speedup over the baseline")
    legend(figure, axes)
    return figure


def expected_length(frames: Frames) -> plt.Figure:
    """Accepted tokens a round: what the draft's confidences add up to, against what was accepted."""
    rows = drafts(frames["round_costs"])
    rows = rows[rows["temperature"] == rows["temperature"].min()]
    rows = rows[rows["expected_length"].notna() & rows["realised_length"].notna()]
    figure, axes = plt.subplots(figsize=(style.WIDTH, style.HEIGHT))
    top = 1.1 * max([1.0, *rows["expected_length"], *rows["realised_length"]])
    axes.plot([0, top], [0, top], color=style.GREY, linewidth=0.9, label="as expected")
    for label, look, own in contenders(rows):
        axes.plot(own["expected_length"], own["realised_length"], label=label, **look | {"linestyle": "none"})
        for _, row in own.iterrows() if len(rows) <= MANY else ():
            place = (row["expected_length"], row["realised_length"])
            axes.annotate(f"{row['nodes']:.0f}", place, xytext=(4, 4), textcoords="offset points", fontsize=7.5)
    axes.set_xlim(0, top)
    axes.set_ylim(0, top)
    axes.set_xlabel("expected: sum of the draft's confidences")
    axes.set_ylabel("realised: accepted tokens a round")
    legend(figure, axes)
    return figure


def confidence(frames: Frames) -> plt.Figure:
    """The draft's confidence in a path against how often it was accepted; bins with few guesses are hollow."""
    rows = frames["confidence"]
    rows = rows[rows["temperature"] == rows["temperature"].min()]
    figure, axes = plt.subplots(figsize=(style.WIDTH, style.HEIGHT))
    axes.plot([0, 1], [0, 1], color=style.GREY, linewidth=0.9, label="as confident")
    for label, look, own in contenders(pooled(rows)):
        own = own.sort_values("low", kind="stable")
        axes.plot(own["mean_confidence"], own["share_kept"], **look | {"markerfacecolor": "white"})
        solid = own[own["guesses"] >= FEW]
        axes.plot(solid["mean_confidence"], solid["share_kept"], label=label, **look)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.03)
    axes.set_xlabel("draft's confidence in the path to a node")
    axes.set_ylabel("share of nodes accepted")
    legend(figure, axes)
    return figure


def pooled(rows: pd.DataFrame) -> pd.DataFrame:
    """Budgets and depths of one shape and policy together."""
    rows = rows.assign(total=rows["mean_confidence"] * rows["guesses"])
    key = ["shape", "policy", "low", "high"]
    sums = rows.groupby(key, sort=False, as_index=False)[["guesses", "kept", "total"]].sum()
    return sums.assign(mean_confidence=sums["total"] / sums["guesses"], share_kept=sums["kept"] / sums["guesses"])


def example_tree(frames: Frames) -> plt.Figure:
    """One round's tree, the root on the left; the accepted path and the target's own token stand out."""
    rows = frames["example_tree"].reset_index(drop=True)
    figure, axes = plt.subplots(figsize=(style.WIDTH, (1.6 + 0.75 * max(4, len(rows))) * style.CM))
    axes.set_axis_off()
    axes.grid(visible=False)
    if len(rows):
        _draw_tree(axes, rows)
    return figure


def _draw_tree(axes: Axes, rows: pd.DataFrame) -> None:
    parents = [-1 if pd.isna(parent) else int(parent) for parent in rows["parent"]]
    last = len(rows) - 1  # the target's own token
    depth = {-1: 0}
    for node, parent in enumerate(parents):
        depth[node] = depth[parent] + 1
    height = _heights(parents)
    kept = {-1, *(int(node) for node in rows["node"][rows["accepted"].astype(bool)]), last}
    for node, parent in enumerate(parents):
        strong = node in kept
        look = {"color": COLOURS[strong], "linewidth": 1.8 if strong else 0.8, "zorder": 1}
        axes.plot([depth[parent], depth[node]], [height[parent], height[node]], **look)
    box = {"boxstyle": "round,pad=0.3", "facecolor": "white"}
    axes.text(0, height[-1], "root", ha="center", va="center", bbox=box | {"edgecolor": style.GREY})
    for node, row in rows.iterrows():
        strong = node in kept
        chance = "target" if node == last else f"{row['confidence']:.2f}" if pd.notna(row["confidence"]) else ""
        edge = {"edgecolor": COLOURS[strong], "linestyle": "--" if node == last else "-"}
        label = f"{readable(row['text'])}\n{chance}"
        axes.text(depth[node], height[node], label, ha="center", va="center", fontsize=7.5, bbox=box | edge)
    axes.set_xlim(-0.4, max(depth.values()) + 0.6)
    axes.set_ylim(-0.8, max(height.values()) + 0.8)


COLOURS = {True: "#0072B2", False: style.GREY}


def _heights(parents: list[int]) -> dict[int, float]:
    """Leaves one below the other in the order of a walk, every other node in the middle of its children."""
    children: dict[int, list[int]] = {node: [] for node in range(-1, len(parents))}
    for node, parent in enumerate(parents):
        children[parent].append(node)
    height: dict[int, float] = {}
    leaves = 0

    def walk(node: int) -> float:
        nonlocal leaves
        if not children[node]:
            height[node], leaves = float(-leaves), leaves + 1
        else:
            height[node] = float(np.mean([walk(child) for child in children[node]]))
        return height[node]

    walk(-1)
    lowest = min(height.values())
    return {node: value - lowest for node, value in height.items()}


def readable(quoted: str) -> str:
    """A token's text on one line; what the font has no glyph for stays escaped, dollars are no formulas."""
    text = json.loads(quoted)
    plain = all(" " <= character < "\u0250" for character in text)
    return (json.dumps(text, ensure_ascii=False) if plain else quoted).replace("$", r"\$")
