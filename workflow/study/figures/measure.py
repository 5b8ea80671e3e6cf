"""Figures of what was measured beside the cells: costs, limits, predictions, other tools, long texts."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from specdec.measure.cost_model import expected_tokens
from workflow.study.figures import style
from workflow.study.figures.curves import legend, whiskers

Frames = dict[str, pd.DataFrame]
TARGET_COLOUR = "#000000"
ARMS = {"specdec": "#0072B2", "transformers": "#E69F00", "llama.cpp": "#009E73", "openvino": "#CC79A7"}


def time_by_width(frames: Frames) -> plt.Figure:
    """Milliseconds of target passes and draft steps against width, a line a model, dashed at the longest context."""
    rows = frames["cost_model"]
    rows = rows[rows["ms"].notna() & of_the_pair(rows)]
    drafts = list(dict.fromkeys(rows.loc[rows["role"] == "draft", "model"]))
    colours = style.colours(drafts)
    figure, axes = plt.subplots(figsize=(style.WIDTH, style.HEIGHT))
    contexts = sorted(rows["context"].dropna().unique())
    for context in contexts[:1] + contexts[1:][-1:]:
        first = context == contexts[0]
        for name, own in rows[rows["context"] == context].groupby("model", sort=False):
            own = own.sort_values("width")
            word = style.word(name) if name in drafts else "target"
            axes.errorbar(
                own["width"],
                own["ms"],
                yerr=whiskers(own, "ms"),
                color=colours.get(name, TARGET_COLOUR),
                marker="o" if first else None,
                linestyle="-" if first else "--",
                capsize=2,
                label=f"{word}, {context:.0f} cached" if not first and name not in drafts else word if first else None,
            )
    widths = sorted(rows["width"].dropna().unique())
    axes.set_xscale("log", base=2)
    axes.set_xticks(widths, [f"{width:.0f}" for width in widths])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tokens scored in one pass")
    axes.set_ylabel("milliseconds")
    legend(figure, axes)
    return figure


def of_the_pair(rows: pd.DataFrame) -> pd.Series:
    """Which rows are not those of random weights, timed for another pair."""
    return ~rows["note"].fillna("").str.startswith("timing only")


def roofline(frames: Frames) -> plt.Figure:
    """Operations a second against operations a byte, under the machine's two limits."""
    rows = frames["roofline"].set_index("point")
    bandwidth = float(rows.loc["memory_limit", "gbytes_per_s"])
    peak = float(rows.loc["arithmetic_limit", "gops_per_s"])
    points = frames["roofline"][frames["roofline"]["width"].notna()]
    figure, axes = plt.subplots(figsize=(style.WIDTH, style.HEIGHT))
    low = min(points["intensity"].min() / 2, peak / bandwidth / 4)
    reach = np.geomspace(low, max(points["intensity"].max(), peak / bandwidth) * 3, 100)
    axes.plot(reach, np.minimum(reach * bandwidth, peak), color=style.GREY, label="limit of this machine")
    for point, marker in (("ar", "s"), ("verification", "o")):
        own = points[points["point"] == point]
        word = "baseline step" if point == "ar" else "pass over several tokens"
        axes.plot(
            own["intensity"], own["gops_per_s"], linestyle="none", marker=marker, color=ARMS["specdec"], label=word
        )
        for _, row in own.iterrows():
            place = (row["intensity"], row["gops_per_s"])
            axes.annotate(f"{row['width']:.0f}", place, xytext=(5, -9), textcoords="offset points", fontsize=7.5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations for each byte read")
    axes.set_ylabel("billion operations a second")
    legend(figure, axes)
    return figure


PANELS = 3
"""Drafts beside each other in a row of `expected_speedup`."""


def expected_speedup(frames: Frames) -> plt.Figure:
    """A panel a draft: yield over price against independent acceptance, a line a depth; points are measured cells."""
    prices = frames["break_even"]
    prices = prices[of_the_pair(prices) & (prices["context"] == prices["context"].min())]
    cells = frames["predicted"]
    usual = (cells["policy"] == "fixed") & (cells["shape"] == "chain") & (cells["prompt_set"] == "project")
    cells = cells[usual & (cells["temperature"] == cells["temperature"].min()) & cells["alpha"].notna()]
    drafts, depths = list(dict.fromkeys(prices["draft"])), sorted(prices["k"].unique())
    looks, reach = style.looks(depths), np.linspace(0, 1, 101)
    high = -(-len(drafts) // PANELS)
    size = (style.WIDTH, 0.75 * high * style.HEIGHT)
    figure, grid = plt.subplots(high, PANELS, figsize=size, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[len(drafts) :]:
        axes.set_axis_off()
    for axes, draft in zip(grid.flat, drafts, strict=False):
        for depth in depths:
            look = looks[depth]
            for price in prices.loc[(prices["draft"] == draft) & (prices["k"] == depth), "price"]:
                gain = [expected_tokens(alpha, depth) / price for alpha in reach]
                axes.plot(reach, gain, color=look["color"], linestyle=look["linestyle"], label=f"K = {depth}")
            own = cells[(cells["draft"] == draft) & (cells["k"] == depth)]
            error = whiskers(own, "decode_speedup")
            kind = {"linestyle": "none", "color": look["color"], "marker": look["marker"], "elinewidth": 0.8}
            axes.errorbar(own["alpha"], own["decode_speedup"], yerr=error, **kind)
        axes.axhline(1, color=style.GREY, linewidth=0.9, zorder=1)
        axes.set_title(style.word(draft))
        axes.set_ylim(0, 3)
    figure.supxlabel("share of guesses accepted", fontsize=8.5)
    figure.supylabel("decode speedup", fontsize=8.5)
    legend(figure, grid.flat[0])
    return figure


def predicted_against_measured(frames: Frames) -> plt.Figure:
    """The cost model's speedup against the measured one; on the diagonal they agree."""
    rows = frames["predicted"]
    rows = rows[rows["predicted_speedup"].notna() & rows["decode_speedup"].notna()]
    figure, axes = plt.subplots(figsize=(style.WIDTH, style.HEIGHT))
    colours = style.colours(list(dict.fromkeys(rows["draft"])))
    for draft, own in rows.groupby("draft", sort=False):
        for place, (policy, part) in enumerate(own.groupby("policy", sort=False)):
            axes.errorbar(
                part["predicted_speedup"],
                part["decode_speedup"],
                yerr=whiskers(part, "decode_speedup"),
                linestyle="none",
                marker=style.MARKERS.get(policy, "o"),
                color=colours[draft],
                elinewidth=0.8,
                label=style.word(draft) if place == 0 else None,
            )
    if len(rows):
        values = rows[["predicted_speedup", "decode_speedup"]].to_numpy()
        ends = [values.min() * 0.9, values.max() * 1.1]
        axes.plot(ends, ends, color=style.GREY, linewidth=0.9, zorder=1)
    axes.set_xlabel("decode speedup that the cost model predicts")
    axes.set_ylabel("decode speedup measured")
    legend(figure, axes)
    return figure


def peers(frames: Frames) -> plt.Figure:
    """Tokens a second of every arm that ran, with intervals, and what memory allows the baseline."""
    rows = frames["peers"]
    rows = rows[rows["tokens_per_s"].notna()].reset_index(drop=True)
    figure, axes = plt.subplots(figsize=(style.WIDTH, (2.6 + 0.55 * len(rows)) * style.CM))
    for arm, own in rows.groupby("arm", sort=False):
        axes.barh(
            own.index,
            own["tokens_per_s"],
            xerr=whiskers(own, "tokens_per_s"),
            color=ARMS.get(arm, style.GREY),
            height=0.7,
            label=arm,
            error_kw={"elinewidth": 0.9},
        )
    own = rows[(rows["arm"] == "specdec") & (rows["mode"] == "ar") & rows["bandwidth_utilisation"].notna()]
    for _, row in own.iterrows():
        limit = row["tokens_per_s"] / row["bandwidth_utilisation"]
        axes.axvline(limit, color=style.GREY, linestyle="--", linewidth=1, label="limit of memory, one token a pass")
    axes.set_yticks(rows.index, [label(row) for _, row in rows.iterrows()])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("tokens a second, decoding alone")
    legend(figure, axes, columns=3)
    return figure


def label(row: pd.Series) -> str:
    """An arm in a reader's words."""
    mode = "one token a pass" if row["mode"] == "ar" else style.word(row["mode"])
    draft = "" if pd.isna(row["draft"]) or row["mode"] != "speculative" else f", {style.word(row['draft'])}"
    other = "" if row["precision"] == "bfloat16" else f" ({row['precision']})"
    note = "" if pd.isna(row["note"]) else f", {row['note']}"
    return f"{mode}{draft}{note}{other}"


def time_by_context(frames: Frames) -> plt.Figure:
    """Milliseconds a token against the tokens before it, and what reading the longer cache alone would cost."""
    rows = frames["long_context"].sort_values("context")
    figure, axes = plt.subplots(figsize=(style.WIDTH, style.HEIGHT))
    kind = {"linestyle": "none", "marker": "o", "color": ARMS["specdec"], "label": "measured"}
    axes.errorbar(rows["context"], rows["ms"], yerr=whiskers(rows, "ms"), **kind)
    grown = rows["ms"].iloc[0] * rows["bytes_ratio"]
    axes.plot(
        rows["context"], grown, color=style.GREY, linestyle="--", label="in step with the bytes that must be read"
    )
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tokens in the cache")
    axes.set_ylabel("milliseconds a token")
    legend(figure, axes)
    return figure
