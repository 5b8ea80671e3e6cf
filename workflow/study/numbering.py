"""Numbers of sections, figures and tables, given in the order of the text and known in all of it.

The document is rendered twice: in the first pass a reference to something later has no number yet; in the second every
reference must name something that exists.
"""

from __future__ import annotations

from workflow.study.named import ReportError


class Numbering:
    """One counter a kind, and the outline for the contents."""

    def __init__(self):
        self._known: dict[tuple[str, str], str] = {}
        self._passes = 0
        self.outline: list[dict] = []

    def begin_pass(self) -> None:
        self._passes += 1
        self.outline, self._fresh = (self._pending if self._passes > 1 else []), {}
        self._pending: list[dict] = []
        self._counters: dict[str, int] = {}

    def give(self, kind: str, name: str) -> str:
        """The number of a new figure, table or equation."""
        self._counters[kind] = self._counters.get(kind, 0) + 1
        return self._keep(kind, name, str(self._counters[kind]))

    def section(self, name: str, title: str, level: int = 1) -> str:
        """The number of a new section, noted in the outline: 3, or 3.2 at level 2."""
        self._counters["section"] = self._counters.get("section", 0) + (level == 1)
        if level == 1:
            self._counters["subsection"] = 0
            number = str(self._counters["section"])
        else:
            self._counters["subsection"] += 1
            number = f"{self._counters['section']}.{self._counters['subsection']}"
        self._pending.append({"name": name, "number": number, "title": title, "level": level})
        return self._keep("section", name, number)

    def plain(self, name: str, title: str) -> str:
        """A section without a number."""
        self._pending.append({"name": name, "number": "", "title": title, "level": 1})
        return ""

    def of(self, kind: str, name: str) -> str:
        """The number of something, earlier or later in the text."""
        number = self._known.get((kind, name))
        if number is None and self._passes > 1:
            raise ReportError(f"the text refers to {kind} {name!r}, which does not exist")
        return number or ""

    def _keep(self, kind: str, name: str, number: str) -> str:
        if (kind, name) in self._fresh:
            raise ReportError(f"{kind} {name!r} is defined twice")
        self._fresh[kind, name] = self._known[kind, name] = number
        return number
