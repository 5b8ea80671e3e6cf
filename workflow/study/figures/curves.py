"""Figures along K and along the position in the draft: one panel a temperature, one colour a draft."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workflow.study.figures import style

FEW = 30
"""Rounds below which a point is drawn hollow: too few to read a trend from."""


def panels(rows: pd.DataFrame, count: int = 1) -> tuple[plt.Figure, Iterator[tuple[float, list[Axes]]]]:
    """A figure with one column a temperature and `count` rows side by side for each."""
    temperatures = sorted(rows["temperature"].unique())
    wide = len(temperatures) == 1
    shape = (1, count) if wide else (count, len(temperatures))
    figure, axes = plt.subplots(*shape, figsize=(style.WIDTH, style.HEIGHT * shape[0]), squeeze=False)
    columns = [list(axes[0])] if wide else [list(axes[:, index]) for index in range(len(temperatures))]
    if not wide:
        for temperature, column in zip(temperatures, columns, strict=True):
            column[0].set_title(f"temperature {temperature:g}")
    return figure, zip(temperatures, columns, strict=True)


def lines(rows: pd.DataFrame) -> Iterator[tuple[str, str, bool, pd.DataFrame]]:
    """(draft, colour, first of its draft, rows) for each draft and seed."""
    colours = style.colours(list(dict.fromkeys(rows["draft"])))
    seen = set()
    for (draft, _), own in rows.groupby(["draft", "seed"], sort=False):
        yield draft, colours[draft], draft not in seen, own
        seen.add(draft)


def depth_axis(axes: Axes, depths: list[int]) -> None:
    """K on a scale of doublings, a tick where something was measured."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(depths, [str(depth) for depth in depths])
    axes.minorticks_off()
    axes.set_xlabel("drafted tokens a round, K")
    if depths:
        axes.set_xlim(min(depths) / 1.2, max(depths) * 1.2)


def legend(figure: plt.Figure, axes: Axes, columns: int = 4) -> None:
    """One legend above all panels."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper center", ncols=min(columns, len(handles)))


def fixed(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["policy"] == "fixed"].sort_values(["k"], kind="stable")


def whiskers(rows: pd.DataFrame, value: str) -> list[np.ndarray]:
    """Distances from the value to both ends of its interval; none where there is no interval."""
    low = (rows[value] - rows[f"{value}_low"]).clip(lower=0).fillna(0)
    high = (rows[f"{value}_high"] - rows[value]).clip(lower=0).fillna(0)
    return [low.to_numpy(), high.to_numpy()]


def noise_band(axes: Axes, rows: pd.DataFrame) -> None:
    """The line of no difference, and what the baseline against itself shows."""
    axes.axhline(1, color=style.GREY, linewidth=0.9, zorder=1)
    band = rows[(rows["policy"] == "ar") & rows["speedup_low"].notna()]
    if len(band):
        low, high = band["speedup_low"].min(), band["speedup_high"].max()
        axes.axhspan(low, high, color=style.BAND, zorder=0, label="baseline against itself")


def speedup_by_k(frames: dict[str, pd.DataFrame]) -> plt.Figure:
    """Speedup against K with 95% intervals."""
    rows = frames["fixed_k"]
    figure, parts = panels(rows)
    for temperature, (axes, *_) in parts:
        here = rows[rows["temperature"] == temperature]
        noise_band(axes, here)
        points = fixed(here)
        for draft, colour, first, own in lines(points):
            own = own[own["speedup"].notna()]
            axes.errorbar(
                own["k"],
                own["speedup"],
                yerr=whiskers(own, "speedup"),
                color=colour,
                marker=style.MARKERS["fixed"],
                capsize=2.5,
                label=style.word(draft) if first else None,
            )
        depth_axis(axes, sorted(points["k"].unique()))
        axes.set_ylim(bottom=0)
        axes.set_ylabel("speedup over the baseline")
    legend(figure, axes)
    return figure


def acceptance_by_k(frames: dict[str, pd.DataFrame]) -> plt.Figure:
    """Acceptance rate, and acceptance length, against K."""
    rows = fixed(frames["fixed_k"])
    figure, parts = panels(rows, count=2)
    for temperature, axes in parts:
        here = rows[rows["temperature"] == temperature]
        for place, column, name in zip(
            axes,
            ("acceptance_rate", "acceptance_length"),
            ("acceptance rate\n(accepted / drafted)", "acceptance length\n(accepted / rounds)"),
            strict=True,
        ):
            for draft, colour, first, own in lines(here):
                label = style.word(draft) if first else None
                place.plot(own["k"], own[column], color=colour, marker=style.MARKERS["fixed"], label=label)
            depth_axis(place, sorted(here["k"].unique()))
            place.set_ylim(bottom=0)
            place.set_ylabel(name)
        axes[0].set_ylim(0, 1)
    legend(figure, axes[0])
    return figure


def acceptance_by_position(frames: dict[str, pd.DataFrame]) -> plt.Figure:
    """Acceptance at each position of the deepest fixed draft: conditional on reaching it, and over all rounds."""
    rows = frames["positions"]
    rows = rows[rows["policy"] == "fixed"]
    rows = rows[rows["k"] == rows.groupby("draft")["k"].transform("max")].sort_values("position", kind="stable")
    figure, parts = panels(rows)
    for temperature, (axes, *_) in parts:
        for draft, colour, first, own in lines(rows[rows["temperature"] == temperature]):
            reached = own[own["reached"] > 0]
            solid = reached[reached["reached"] >= FEW]
            kind = {"color": colour, "marker": "o"}
            name = style.word(draft)
            axes.plot(reached["position"], reached["conditional"], **kind, markerfacecolor="white")
            label = f"{name}, of the rounds that reached it" if first else None
            axes.plot(solid["position"], solid["conditional"], **kind, label=label)
            label = f"{name}, of all rounds" if first else None
            axes.plot(own["position"], own["unconditional"], color=colour, linestyle="--", label=label)
        axes.set_xticks(sorted(rows["position"].unique()))
        axes.set_ylim(0, 1.03)
        axes.set_xlabel("position in the draft")
        axes.set_ylabel("share accepted")
    legend(figure, axes, columns=2)
    return figure
