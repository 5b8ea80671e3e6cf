"""How every figure looks, in one place: sizes for a column of 16 cm, colours that colour-blind readers can tell apart.

A draft keeps its colour and a policy its marker through all figures; colour is never the only difference.
"""

from __future__ import annotations

from collections.abc import Iterable

CM = 1 / 2.54
WIDTH = 16 * CM
HEIGHT = 7.2 * CM

# Okabe and Ito's palette, wine instead of its yellow, which is too pale for lines on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#882255")
GREY, BAND = "#555555", "#DDDDDD"

# Fixed places for the usual drafts, so that a pair without one of them changes no colour of the others.
DRAFTS = ("small", "layer_skip", "ngram", "eagle3", "eagle1")

LINES = ("-", "--", "-.", ":")

MARKERS = {"fixed": "o", "max_prob": "^", "margin": "s", "entropy": "D", "history": "v", "ar": "x"}

PHASES = {"draft": "#0072B2", "target": "#E69F00", "other": "#999999", "prefill": "#D8D8D8"}

WORDS = {
    "ngram": "n-gram",
    "eagle3": "EAGLE-3",
    "eagle3_whole": "EAGLE-3 whole",
    "eagle3_lookup": "EAGLE-3 + n-gram",
    "eagle1": "EAGLE-1",
    "ar": "baseline",
    "max_prob": "max probability",
    "fixed": "fixed K",
    "eagle2": "EAGLE-2",
    "ddd": "DDD",
    "coarse_fine": "in turns",
    "opt_tree": "OPT-Tree",
    "sequoia": "fitted",
    "cost": "cost rule",
}

SETTINGS = {
    "figure.dpi": 100,
    "figure.constrained_layout.use": True,
    "font.family": "DejaVu Sans",  # comes with matplotlib, so every machine draws the same
    "font.size": 8.5,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.5,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "lines.linewidth": 1.4,
    "lines.markersize": 5,
    "svg.fonttype": "path",  # text as outlines: the PDF looks the same whatever fonts it is made with
}


def word(name: str) -> str:
    """A name of the configuration as a reader's word."""
    return WORDS.get(name, name.replace("_", " "))


def colours(drafts: Iterable[str]) -> dict[str, str]:
    """A colour for each draft."""
    known = list(DRAFTS)
    known += sorted(set(drafts) - set(known))
    return {draft: COLOURS[known.index(draft) % len(COLOURS)] for draft in drafts}


def looks(labels: Iterable[str]) -> dict[str, dict]:
    """Colour, marker and line for each of several contenders of one draft, in their order."""
    marks = ("o", "^", "s", "D", "v", "P", "X", "*")
    return {
        label: {
            "color": COLOURS[index % len(COLOURS)],
            "marker": marks[index % len(marks)],
            "linestyle": LINES[index // len(COLOURS) % len(LINES)],
        }
        for index, label in enumerate(labels)
    }
