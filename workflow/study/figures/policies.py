"""Figures that lay all policies side by side: what acceptance buys, and where the time of a generation goes."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from workflow.study.figures import style
from workflow.study.figures.curves import noise_band, panels, whiskers

CELL = ["draft", "policy", "k", "threshold", "temperature", "seed"]


def speedup_by_acceptance(frames: dict[str, pd.DataFrame]) -> plt.Figure:
    """Speedup against acceptance length: more accepted tokens do not make a policy faster where drafting is dear."""
    rows = pd.concat([frames["fixed_k"], frames["dynamic_k"]], ignore_index=True).drop_duplicates(CELL)
    figure, parts = panels(rows)
    drafts = [draft for draft in dict.fromkeys(rows["draft"]) if draft != "none"]
    colours = style.colours(drafts)
    for temperature, (axes, *_) in parts:
        here = rows[(rows["temperature"] == temperature) & rows["speedup"].notna()]
        noise_band(axes, here)
        for draft in drafts:
            own = here[(here["draft"] == draft) & (here["policy"] == "fixed") & (here["seed"] == here["seed"].min())]
            own = own.sort_values("k", kind="stable")
            axes.plot(own["acceptance_length"], own["speedup"], color=colours[draft], linewidth=0.8, alpha=0.6)
        for (draft, policy), own in here[here["draft"] != "none"].groupby(["draft", "policy"], sort=False):
            axes.errorbar(
                own["acceptance_length"],
                own["speedup"],
                yerr=whiskers(own, "speedup"),
                linestyle="none",
                marker=style.MARKERS.get(policy, "o"),
                color=colours[draft],
                elinewidth=0.8,
            )
            if policy == "fixed":
                name_depths(axes, own)
        axes.set_ylim(bottom=0)
        axes.margins(x=0.08)
        axes.set_xlabel("acceptance length: accepted tokens a round")
        axes.set_ylabel("speedup over the baseline")
    keys = [Line2D([], [], color=colours[draft], label=style.word(draft)) for draft in drafts]
    for policy in dict.fromkeys(rows["policy"]):
        if policy != "ar":
            kind = {"marker": style.MARKERS.get(policy, "o"), "linestyle": "none", "color": style.GREY}
            keys.append(Line2D([], [], **kind, label=style.word(policy)))
    tight = {"columnspacing": 1.2, "handlelength": 1.4, "handletextpad": 0.5}
    figure.legend(handles=keys, loc="outside upper center", ncols=min(7, len(keys)), **tight)
    return figure


def name_depths(axes: Axes, rows: pd.DataFrame) -> None:
    """K beside every fixed point of the first seed."""
    for _, row in rows[rows["seed"] == rows["seed"].min()].iterrows():
        place = (row["acceptance_length"], row["speedup"])
        axes.annotate(f"{row['k']:.0f}", place, xytext=(4, 4), textcoords="offset points", fontsize=7.5)


def time_shares(frames: dict[str, pd.DataFrame]) -> plt.Figure:
    """Shares of the whole time by phase, for every cell at the lowest temperature and its first seed."""
    rows = frames["time_shares"]
    rows = rows[rows["temperature"] == rows["temperature"].min()]
    rows = rows[(rows["seed"] == rows["seed"].min()) & rows["target_share"].notna()].reset_index(drop=True)
    height = (2.2 + 0.52 * len(rows)) * style.CM
    figure, axes = plt.subplots(figsize=(style.WIDTH, height))
    left = pd.Series(0.0, index=rows.index)
    for phase, colour in style.PHASES.items():
        share = 100 * rows[f"{phase}_share"]
        axes.barh(rows.index, share, left=left, color=colour, height=0.75, label=phase)
        left = left + share
    axes.set_yticks(rows.index, [describe(row) for _, row in rows.iterrows()])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of the time, %")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=len(style.PHASES))
    return figure


def describe(row: pd.Series) -> str:
    """A cell in a reader's words."""
    if row["policy"] == "ar":
        return "baseline"
    name = f"{style.word(row['draft'])}, "
    if row["policy"] == "fixed":
        return f"{name}K = {row['k']:.0f}"
    limit = "" if pd.isna(row["threshold"]) else f" {row['threshold']:g}"
    return f"{name}{style.word(row['policy'])}{limit}"
