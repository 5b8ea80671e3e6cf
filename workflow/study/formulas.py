"""Formulas as vector graphics.

WeasyPrint renders MathML wrongly without a word, so every formula is drawn by ziamath (STIX Two Math, bundled) as SVG
and placed as an image: sized in em, so that it follows the text, lowered by its depth, so that it stands on the
baseline, and with a text alternative, because its glyphs are outlines.

A plain symbol is set as text, so that it can be searched and copied.

LaTeX, texts and alternatives live in `formulas.toml` beside the templates: alternatives are language.
"""

from __future__ import annotations

import base64
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import ziamath
from markupsafe import Markup

from workflow.study.named import ReportError

INK = "#1b1b1b"
EM = 12.0
"""Size at which ziamath draws; every length is divided by it."""


class Formulas:
    """Formulas by name: `formulas["residual"]` is an `<img>`; with `display` in display style, on a line of its own."""

    def __init__(self, path: Path, *, display: bool = False):
        self._path = path
        self._display = display
        self._entries = tomllib.loads(path.read_text(encoding="utf-8"))
        self._drawn: dict[str, Markup] = {}

    def __getitem__(self, name: str) -> Markup:
        if name not in self._entries:
            raise ReportError(f"formula {name!r} is used by a template but not defined in {self._path.name}")
        if name not in self._drawn:
            self._drawn[name] = self._draw(name)
        return self._drawn[name]

    def _draw(self, name: str) -> Markup:
        entry = self._entries[name]
        if "text" in entry:
            return Markup(f'<span class="symbol">{entry["text"]}</span>')
        for key in ("latex", "alt"):
            if not entry.get(key):
                raise ReportError(f"{self._path.name}: formula {name!r} has no {key!r}")
        svg = ziamath.Latex(entry["latex"], size=EM, inline=not self._display, color=INK).svg()
        _, top, width, height = (float(x) for x in ElementTree.fromstring(svg).attrib["viewBox"].split())
        data = base64.b64encode(svg.encode()).decode()
        image = Markup(
            '<img class="math" alt="{alt}" src="data:image/svg+xml;base64,{data}" '
            'style="width:{width:.4f}em;height:{height:.4f}em;vertical-align:{shift:.4f}em">'
        ).format(alt=entry["alt"], data=data, width=width / EM, height=height / EM, shift=-(top + height) / EM)
        return Markup('<div class="equation">{}</div>').format(image) if self._display else image
