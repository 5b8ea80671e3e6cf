"""Builds a report from a results folder and reads it back: pages, plain text, and the seams of its prose."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pypdfium2

from tests.report.synthetic_results import CONFIG
from workflow.study.report import asked_for, build_report, render
from workflow.study.results import read_results
from workflow.study.values import build_values

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "report_templates"


def build(results: Path, config=CONFIG, templates: Path = TEMPLATES) -> Path:
    build_report(config, results, templates, results / "report.pdf", results / "report.html")
    return results / "report.pdf"


def pages(path: Path) -> list[str]:
    """The text of each page, with every run of white space as one space."""
    document = pypdfium2.PdfDocument(path)
    return [" ".join(page.get_textpage().get_text_bounded().replace("\ufffe", "").split()) for page in document]


def told(path: Path) -> str:
    """The text of an HTML file, every space a plain one."""
    return " ".join(re.sub(r"<[^>]+>", "", unescape(path.read_text(encoding="utf-8"))).split())


def rendered(folder: Path, config=CONFIG):
    results = read_results(folder, config["pair"], asked_for(config))
    values = build_values(config, results)
    return values, render(values, results, TEMPLATES)


def assert_seamless(html: str) -> None:
    block = "(?:p|li|figcaption|caption)"
    for paragraph in re.findall(rf"<{block}\b[^>]*>(.*?)</{block}>", html, re.S):
        text = " ".join(re.sub(r"<[^>]+>", "", paragraph).split())
        assert not re.search(r"[a-z)%\]]\.[A-Z]", text), text
        assert not re.search(r" [.,;:](?:\s|$)", text), text
        assert not re.search(r"\bNone\b|\bnan\b|{{|}}", text), text
