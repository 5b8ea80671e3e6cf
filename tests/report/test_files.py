"""The report as files: the same bytes from the same results, whole by themselves, none where something is missing."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pypdfium2
import pytest

from tests.report.reading import ROOT, TEMPLATES, build, pages
from tests.report.synthetic_results import write_csv, write_results
from workflow.study.named import ReportError
from workflow.study.results import read_table


def test_a_missing_value_stops_the_build_and_is_named(tmp_path):
    folder = write_results(tmp_path)
    path = folder / "tables" / "fixed_k.csv"
    rows = read_table(path)
    rows[1]["tokens_per_round"] = None
    write_csv(path, rows)
    with pytest.raises(ReportError, match=r"fixed_k\[layer_skip fixed K=1\]\.tokens_per_round"):
        build(folder)
    assert not (folder / "report.pdf").exists() and not (folder / "report.html").exists()


def test_a_value_a_template_invents_stops_the_build(tmp_path):
    folder, templates = write_results(tmp_path / "results"), copy_templates(tmp_path)
    section = templates / "sections" / "limits.html.j2"
    section.write_text(section.read_text(encoding="utf-8") + "{{ v.fixed.best.elegance }}", encoding="utf-8")
    with pytest.raises(ReportError, match="fixed.best.elegance"):
        build(folder, templates=templates)


def copy_templates(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TEMPLATES, tmp_path / "templates"))


@pytest.mark.parametrize("name", ["tables/positions.csv", "figures/time_shares.svg"])
def test_a_missing_file_is_named(tmp_path, name):
    folder = write_results(tmp_path)
    (folder / name).unlink()
    with pytest.raises(ReportError, match=Path(name).stem):
        build(folder)


def test_long_tables_are_cut_and_say_so(slower):
    text = " ".join(pages(slower / "report.pdf"))
    assert "the first 200 of 267" in text


def test_two_builds_are_byte_identical_from_any_directory(tmp_path):
    """Two processes, one of them elsewhere with relative paths given from there."""
    write_results(tmp_path)
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}]\n"
        "from tests.report.synthetic_results import CONFIG\n"
        "from workflow.study.report import build_report\n"
        "build_report(CONFIG, sys.argv[1], sys.argv[2], sys.argv[3] + '.pdf', sys.argv[3] + '.html')\n"
    )
    environment = os.environ | {"SOURCE_DATE_EPOCH": "0", "PYTHONHASHSEED": "random"}
    builds = [
        subprocess.Popen([sys.executable, "-c", code, results, str(TEMPLATES), output], cwd=folder, env=environment)
        for folder, results, output in ((tmp_path, ".", "a"), (ROOT, str(tmp_path), str(tmp_path / "b")))
    ]
    assert [build.wait() for build in builds] == [0, 0]
    for end in (".pdf", ".html"):
        first, second = (hashlib.sha256((tmp_path / f"{name}{end}").read_bytes()).hexdigest() for name in "ab")
        assert first == second


def test_pdf_carries_bookmarks_title_and_embedded_fonts(slower):
    document = pypdfium2.PdfDocument(slower / "report.pdf")
    titles = [bookmark.get_title() for bookmark in document.get_toc()]
    assert any("Fixed depth" in title for title in titles) and any("References" in title for title in titles)
    metadata = document.get_metadata_dict()
    assert metadata["Title"].startswith("Speculative decoding of SmolLM2-135M-Instruct")
    assert "smollm2" in metadata["Keywords"] and not metadata["Author"]
    objects = inflated((slower / "report.pdf").read_bytes())
    assert b"/Lang" in objects and b"/StructTreeRoot" in objects
    assert 3 <= len(re.findall(rb"/Type ?/FontDescriptor", objects)) == len(re.findall(rb"/FontFile\d? ", objects))


def inflated(data: bytes) -> bytes:
    """The file with its compressed object streams unpacked."""
    out = [data]
    for match in re.finditer(rb"stream\r?\n(.*?)endstream", data, re.S):
        with contextlib.suppress(zlib.error):
            out.append(zlib.decompress(match[1]))
    return b"\n".join(out)


def test_html_stands_alone(slower):
    html = (slower / "report.html").read_text(encoding="utf-8")
    sources = re.findall(r'<img[^>]+src="([^"]{0,30})', html)
    assert sources and all(source.startswith("data:image/svg+xml") for source in sources)
    assert "<style>" in html and 'rel="stylesheet"' not in html
    targets = set(re.findall(r'href="#([^"]+)"', html))
    assert targets <= set(re.findall(r'id="([^"]+)"', html))
