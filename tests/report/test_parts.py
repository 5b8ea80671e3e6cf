"""The report's parts: citations, formulas, named values, numbering, formats, and what WeasyPrint must not lose."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pypdfium2
import pytest

from workflow.study import formatting, setting
from workflow.study.citations import Citations, polish
from workflow.study.formulas import Formulas
from workflow.study.named import ReportError, Values
from workflow.study.numbering import Numbering
from workflow.study.rendering import write_pdf
from workflow.study.results import convert
from workflow.study.values import verdict_of

TEMPLATES = Path(__file__).resolve().parents[2] / "report_templates"
CSS = (TEMPLATES / "report.css").read_text(encoding="utf-8")


def page(body: str, lang: str = "en") -> str:
    return f'<!DOCTYPE html><html lang="{lang}"><head><title>t</title></head><body>{body}</body></html>'


def texts(path: Path) -> list[str]:
    return [p.get_textpage().get_text_bounded() for p in pypdfium2.PdfDocument(path)]


# --- citations -------------------------------------------------------------------------------


def test_citations_are_numbered_in_order_of_first_use():
    citations = Citations(TEMPLATES / "references.json")
    assert "[1]" in citations.cite("chen2023") and "[2]" in citations.cite("leviathan2023")
    again = citations.cite("leviathan2023", "chen2023")
    assert again.index("[2]") < again.index("[1]") and 'href="#ref-chen2023"' in again
    entries = citations.bibliography()
    assert [entry["key"] for entry in entries] == ["chen2023", "leviathan2023"]
    assert entries[1]["text"].startswith("Y. Leviathan, M. Kalman, and Y. Matias, “Fast inference from transformers")


def test_unknown_and_uncited_references_fail(tmp_path):
    path = tmp_path / "references.json"
    path.write_text(json.dumps([{"id": "a", "type": "book", "title": "A"}, {"id": "b", "type": "book", "title": "B"}]))
    citations = Citations(path)
    with pytest.raises(ReportError, match="'c' is not in references.json"):
        citations.cite("c")
    citations.cite("a")
    with pytest.raises(ReportError, match="never cited: b"):
        citations.check()


def test_every_reference_has_what_a_reader_needs():
    entries = json.loads((TEMPLATES / "references.json").read_text(encoding="utf-8"))
    for entry in entries:
        assert entry["author"] and entry["title"] and entry["issued"]["date-parts"][0][0] >= 1979, entry["id"]
        if "arXiv" in entry.get("container-title", ""):
            assert entry["container-title"].split(":")[1] == entry["URL"].rsplit("/", 1)[1], entry["id"]


def test_polish_mends_what_the_formatter_leaves():
    assert polish("[3]A. B, “Title”, 2020, [Online]. Q & A..") == "A. B, “Title,” 2020. [Online]. Q &amp; A."
    assert polish("Available: https://a.b/c.") == 'Available: <a href="https://a.b/c">https://a.b/c</a>.'


# --- formulas --------------------------------------------------------------------------------


def test_every_formula_is_drawn_or_set_and_has_an_alternative():
    path = TEMPLATES / "formulas.toml"
    formulas, display = Formulas(path), Formulas(path, display=True)
    for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
        for drawn in (formulas[name], display[name]):
            assert entry.get("text", "alt=") in drawn, name
            if "latex" in entry:
                assert "vertical-align:" in drawn and entry["alt"] in drawn
    with pytest.raises(ReportError, match="'omega'"):
        formulas["omega"]


# --- named values, numbering, formats --------------------------------------------------------


def test_named_values_name_what_is_missing():
    values = Values({"a": {"b": [{"c": 1, "d": None}, {"e": float("nan")}]}})
    assert values["a"]["b"][0]["c"] == 1
    for ask, name in ((lambda: values["a"]["b"][0]["d"], r"a\.b\[0\]\.d"), (lambda: values["a"]["x"], r"a\.x")):
        with pytest.raises(ReportError, match=name):
            ask()
    assert values["a"]["b"][1].get("e") is None and not values["a"].has("x")


def test_numbering_knows_what_comes_later_and_refuses_what_does_not_come():
    numbering = Numbering()
    for _ in range(2):
        numbering.begin_pass()
        later = numbering.of("table", "second")
        numbering.give("table", "first")
        numbering.give("table", "second")
        assert numbering.section("s", "S") == "1" and numbering.section("t", "T", 2) == "1.1"
    assert later == "2" and [entry["title"] for entry in numbering.outline] == ["S", "T"]
    with pytest.raises(ReportError, match="'third'"):
        numbering.of("table", "third")
    with pytest.raises(ReportError, match="twice"):
        numbering.give("table", "first")


def test_formats():
    assert formatting.number(-1234.5, 1) == "−1\u2009234.5"
    assert formatting.times(0.984) == "0.98×" and formatting.percent(0.256) == "26%"
    assert formatting.cell(None, "number") == "–" and formatting.cell("x") == "x"
    assert formatting.p_value(0.0001) == "<0.001" and formatting.plain(0.30) == "0.3"
    assert formatting.bytes_(269_000_000) == "269\u00a0MB"
    assert formatting.breakable("a<b.c") == "a&lt;b.<wbr>c"
    with pytest.raises(ReportError):
        formatting.number(None)


def test_cells_of_csv_keep_their_types():
    assert [convert(x) for x in ("3", "3.0", "", "True", "eagle3", None)] == [3, 3.0, None, True, "eagle3", None]
    assert isinstance(convert("3"), int) and isinstance(convert("3.0"), float)


def test_verdict_of_an_interval():
    assert verdict_of(1.01, 1.2) == "faster" and verdict_of(0.8, 0.99) == "slower"
    assert verdict_of(0.9, 1.1) == verdict_of(None, None) == "not distinguishable"


def test_configuration_in_force_leaves_other_pairs_out():
    config = {
        "pair": "a",
        "study": "s",
        "pairs": {"a": {"target": "m"}, "b": {"target": "n"}},
        "models": {"m": 1, "n": 2},
    }
    keys = [item["key"] for item in setting.flatten(setting.in_force(config))]
    assert keys == ["pair", "study", "pairs.a.target", "models.m"]


# --- nothing is lost on the way to the PDF ---------------------------------------------------


def test_chinese_text_and_code_have_their_glyphs(tmp_path):
    sentence, code = "推测解码让草稿模型先猜若干个词元，再由目标模型一次验证。", "接受率 = 接受 / 草稿"
    body = f'<h1 id="a">标题</h1><p lang="zh">{sentence}</p><pre><code>{code}</code></pre>'
    body += '<p style="break-before: page">二</p>'
    write_pdf(page(body, "zh"), CSS, TEMPLATES, tmp_path / "zh.pdf")
    first, second = ("".join(text.split()) for text in texts(tmp_path / "zh.pdf"))
    assert "标题" in first and sentence in first and "".join(code.split()) in first
    assert "标题" in second, "the running head lost its text"


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("<p>\U000e0fff \U0010fffd</p>", "notdef"),
        ('<img src="nowhere.svg" alt="x">', "nowhere.svg"),
        ('<img src="data:image/svg+xml,%3Csvg" alt="x">', "lose content"),
        ('<p><a href="#gone">x</a></p>', "gone"),
    ],
)
def test_lost_content_stops_the_build(tmp_path, body, complaint):
    with pytest.raises(ReportError, match=complaint):
        write_pdf(page(body), CSS, TEMPLATES, tmp_path / "x.pdf")
    assert list(tmp_path.iterdir()) == []


def test_a_long_table_repeats_its_header_and_keeps_every_row(tmp_path):
    rows = "".join(f"<tr><td>key-{i:03d}</td><td>{i}</td></tr>" for i in range(80))
    body = f"<table class='data'><thead><tr><th>Heading</th><th>n</th></tr></thead><tbody>{rows}</tbody></table>"
    write_pdf(page(body), CSS, TEMPLATES, tmp_path / "t.pdf")
    found = texts(tmp_path / "t.pdf")
    assert len(found) > 1 and all("Heading" in text for text in found)
    assert all(f"key-{i:03d}" in " ".join(found) for i in range(80))
