"""Figures about drafts: what each accepts by position, what it costs, and how the trained ones learned."""

from __future__ import annotations

from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from workflow.study.cells import OWN_KIND, PROJECT
from workflow.study.figures import style
from workflow.study.figures.curves import legend, panels
from workflow.study.values_drafts import ALL, common_depth

LINES = {PROJECT: "-", OWN_KIND: "--"}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
POSITIONS = 8


def compared(rows: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Every draft on all prompts of a set at the depth that all drafts share, first seeds; and that depth."""
    rows = rows[(rows["policy"] == "fixed") & (rows["category"] == ALL) & (rows["seed"] == rows["seed"].min())]
    depth = common_depth(rows.to_dict("records"))
    return rows[rows["k"] == depth], depth


def looks(rows: pd.DataFrame) -> tuple[dict, dict]:
    """Each draft's colour and marker: several lie close together, so that a legend names them."""
    drafts = list(dict.fromkeys(rows["draft"]))
    return style.colours(drafts), dict(zip(drafts, cycle(MARKERS), strict=False))


def by_position(frames: dict[str, pd.DataFrame]) -> plt.Figure:
    """Conditional acceptance at each position: of the rounds that reached it, the share that kept it."""
    rows, depth = compared(frames["drafts"])
    figure, parts = panels(rows)
    colours, shapes = looks(rows)
    places = list(range(1, min(depth, POSITIONS) + 1))
    for temperature, (axes, *_) in parts:
        for (draft, prompt_set), own in rows[rows["temperature"] == temperature].groupby(
            ["draft", "prompt_set"], sort=False
        ):
            values = [own[f"acceptance_at_{place}"].iloc[0] for place in places]
            label = style.word(draft) if prompt_set == PROJECT else None
            kind = {"color": colours[draft], "marker": shapes[draft], "linestyle": LINES[prompt_set]}
            axes.plot(places, values, **kind, label=label)
        axes.set_xticks(places)
        axes.set_ylim(0, 1.03)
        axes.set_xlabel("position in the draft")
        axes.set_ylabel("share accepted, once reached")
        if (rows["prompt_set"] == OWN_KIND).any():
            axes.plot([], [], color=style.GREY, linestyle=LINES[OWN_KIND], label="text of the drafts' own kind")
    legend(figure, axes, columns=3)
    return figure


def by_cost(frames: dict[str, pd.DataFrame]) -> plt.Figure:
    """Yield of a round against the cost of a draft step; on the line a round earns just what drafting it costs."""
    rows, depth = compared(frames["drafts"])
    rows = rows[rows["prompt_set"] == PROJECT]
    figure, parts = panels(rows)
    rows = rows[rows["cost_ratio"] > 0]  # a draft that guessed nothing has no cost
    colours, shapes = looks(rows)
    low, high = min(rows["cost_ratio"], default=0.1) / 3, 3 * max([0.1, *rows["cost_ratio"]])
    costs = np.geomspace(low, high, 200)
    for temperature, (axes, *_) in parts:
        axes.plot(costs, 1 + depth * costs, color=style.GREY, linewidth=0.9, label="price of drafting")
        for _, row in rows[rows["temperature"] == temperature].iterrows():
            look = {"color": colours[row["draft"]], "marker": shapes[row["draft"]], "linestyle": "none"}
            axes.plot(row["cost_ratio"], row["tokens_per_round"], **look, label=style.word(row["draft"]))
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        axes.set_ylim(1, depth + 1)
        axes.set_xlabel("cost of a draft step, in baseline steps")
        axes.set_ylabel(f"tokens a round at K = {depth}")
    legend(figure, axes, columns=3)
    return figure


def training_curves(frames: dict[str, pd.DataFrame]) -> plt.Figure:
    """Held-out tokens a round, and loss, against token passes.  Losses of two methods are of two kinds."""
    rows = frames["training_curves"]
    figure, axes = plt.subplots(1, 2, figsize=(style.WIDTH, style.HEIGHT))
    colours = style.colours(list(dict.fromkeys(rows["draft"])))
    for (draft, stage), own in rows.groupby(["draft", "stage"], sort=False):
        own = own.sort_values("passes", kind="stable")
        passes = own["passes"] / 1e6
        kind = {
            "color": colours[draft],
            "marker": "o",
            "markersize": 3,
            "linestyle": style.LINES[(stage - 1) % len(style.LINES)],
        }
        kind["label"] = style.word(draft) if stage == 1 else None
        axes[0].plot(passes, own["tokens_per_round"], **kind)
        axes[1].plot(passes, own["loss"] / own["loss"].iloc[0], **kind)
    for place, name in zip(
        axes, ("tokens a round on held-out text, K = 4", "loss, relative to its first"), strict=True
    ):
        place.set_xlim(left=0)
        place.xaxis.set_major_locator(MaxNLocator(5))
        place.set_ylabel(name)
        place.set_xlabel("tokens trained on, millions")
    axes[0].set_ylim(1, 1.05 * max([1.2, *rows["tokens_per_round"]]))
    legend(figure, axes[0])
    return figure
