"""From HTML to PDF by WeasyPrint, with nothing lost in silence.

WeasyPrint goes on after a missing image, a glyph no font has, or a broken style sheet, and says so only in its log.
Here the log is read: whatever means lost content fails the build.  Latin type comes from the fonts inside the pinned
matplotlib (`fonts:` addresses in the style sheet), so that pages look the same on every machine; Chinese falls back to
the system's Noto CJK.  Under `SOURCE_DATE_EPOCH` two builds are byte-identical.
"""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from urllib.parse import unquote

import matplotlib

from workflow.study.named import ReportError

FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"

HARMLESS = ("Ignored ", "Expected a media type", "Using fontTools instead of HarfBuzz-Subset")
"""Notes that lose nothing: properties meant for browsers, and the slower font subsetter."""


def write_pdf(html: str, css: str, base: Path, output: Path) -> None:
    """Render to `output`, whole or not at all.  Raises `ReportError` with every complaint of the renderer."""
    try:
        import weasyprint
        from weasyprint.text.fonts import FontConfiguration
    except OSError as error:
        raise ReportError(
            f"WeasyPrint cannot load its system libraries ({error}); Pango 1.44 or newer is needed, "
            "on Debian and Ubuntu: apt-get install libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0"
        ) from error

    class Fetcher(weasyprint.urls.URLFetcher):
        def fetch(self, url, headers=None):
            if url.startswith("fonts:"):
                path = FONTS / Path(unquote(url.removeprefix("fonts:"))).name
                return weasyprint.urls.URLFetcherResponse(url, path.read_bytes(), {"Content-Type": "font/ttf"})
            return super().fetch(url, headers)

    fetcher = Fetcher(allowed_protocols={"file", "data"})
    with Complaints() as complaints:
        fonts = FontConfiguration()
        sheet = weasyprint.CSS(string=css, base_url=str(base), font_config=fonts, url_fetcher=fetcher)
        document = weasyprint.HTML(string=html, base_url=str(base), url_fetcher=fetcher)
        data = document.write_pdf(
            stylesheets=[sheet], font_config=fonts, pdf_identifier=b"specdec-study", pdf_tags=True
        )
    if complaints.found:
        raise ReportError("the PDF would lose content: " + "; ".join(complaints.found))
    write_whole(output, data)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file under a temporary name beside it, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as sink:
            sink.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


class Complaints(logging.Handler):
    """Collects what WeasyPrint logs while it is entered, harmless notes left out."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.found: list[str] = []
        self._logger = logging.getLogger("weasyprint")

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        harmless = record.levelno < logging.ERROR and any(note in message for note in HARMLESS)
        if not harmless and message not in self.found:
            self.found.append(message)

    def __enter__(self) -> Complaints:
        self._saved = (self._logger.propagate, self._logger.level, list(self._logger.handlers))
        self._logger.propagate = False
        self._logger.setLevel(logging.WARNING)
        self._logger.handlers = [self]
        return self

    def __exit__(self, *_) -> None:
        self._logger.propagate, level, self._logger.handlers = self._saved
        self._logger.setLevel(level)
