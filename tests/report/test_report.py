"""The report: built from results alone, and it says what they say."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zlib
from html import unescape
from pathlib import Path

import pypdfium2
import pytest

from tests.helpers import measured_tables
from tests.report.synthetic_results import CONFIG, write_csv, write_results
from tests.report.synthetic_trees import distribution_rows
from workflow.study.named import ReportError
from workflow.study.report import asked_for, build_report, render
from workflow.study.results import read_results, read_table
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


@pytest.fixture(scope="module")
def slower(tmp_path_factory) -> Path:
    return build(write_results(tmp_path_factory.mktemp("slower"), "slower", extra_cells=250)).parent


@pytest.fixture(scope="module")
def faster(tmp_path_factory) -> Path:
    return build(write_results(tmp_path_factory.mktemp("faster"), "faster", differing=1)).parent


HEADINGS = (
    *("Question and terms", "Background and method", "Setup", "Implementation", "Fixed depth", "Where the time goes"),
    *("What the machine allows", "The cost model"),
    *("Trained drafts", "Which draft", "Acceptance by position", "Dynamic depth", "Draft trees", "Verification rules"),
    *("Ablation", "Losslessness", "Limits", "What did not work", "The answer so far"),
    *("References", "Appendix"),
)


def test_every_section_is_there_and_in_the_contents(slower):
    text = pages(slower / "report.pdf")
    for heading in HEADINGS:
        assert heading in text[0], f"{heading} is not in the contents"
        assert any(heading in page for page in text[1:]), f"{heading} is no section"
    assert f"page 2 of {len(text)}" in text[1]


@pytest.mark.parametrize("variant", ["slower", "faster"])
def test_key_numbers_come_from_the_tables(variant, request):
    folder = request.getfixturevalue(variant)
    rows = [row for row in read_table(folder / "tables" / "fixed_k.csv") if row["policy"] == "fixed"]
    best = max(rows, key=lambda row: row["speedup"])
    first = pages(folder / "report.pdf")[0]
    assert f"{best['speedup']:.2f}×" in first
    assert f"{best['speedup_low']:.2f}" in first and f"{best['speedup_high']:.2f}" in first
    assert "SmolLM2-135M-Instruct" in first and "AMD EPYC 9354P" in first


def test_wording_follows_the_verdict(tmp_path):
    """The same report with every speed-up divided or multiplied: the sentences turn with the numbers."""
    said = {}
    for name, factor in (("slow", 0.5), ("fast", 2.0), ("open", None)):
        folder = write_results(tmp_path / name, "slower")
        for table in ("fixed_k", "dynamic_k"):
            rows = read_table(folder / "tables" / f"{table}.csv")
            for row in rows:
                if row["policy"] == "ar":
                    continue
                middle = 1.0 if factor is None else factor
                row |= {"speedup": middle, "speedup_low": middle * 0.9, "speedup_high": middle * 1.1}
                row["verdict"] = {"slow": "slower", "fast": "faster", "open": "not distinguishable"}[name]
            write_csv(folder / "tables" / f"{table}.csv", rows)
        values, html = rendered(folder)
        said[name] = html
        assert values["fixed"]["counts"]["summary"] == {"slow": "slower", "fast": "faster", "open": "open"}[name]
    assert "Every draft at every depth is slower" in said["slow"] and "No fixed depth is faster" in said["slow"]
    assert "Not at all:" in said["slow"]
    assert "Every draft at every depth is faster" in said["fast"] and "Not at all" not in said["fast"]
    assert "No combination is distinguishable" in said["open"] and "Not measurably" in said["open"]


def test_trained_drafts_are_told_and_compared(slower, faster):
    untrained, trained = (told(folder / "report.html") for folder in (slower, faster))
    assert "No draft of this study was trained" in untrained
    assert "Is a draft trained for its target better" not in untrained and "From the third position" not in untrained
    assert "is left out, since its weights were not there" in untrained
    for words in (
        "Of 7 400 conversations written, 5 110 were kept",
        "1 200 ran into a loop, 1 000 had a request without end and 90 repeated another",
        "The heads differ in the learning rate and the length of the training",
        "tokens per round in place of 1.40",
        "Is a draft trained for its target better than a small model of the same family? Here it is",
        "From the third position on EAGLE-3 is ahead throughout",
        "They were not trained for as long: 6 000 000 answer tokens against 2 000 000",
        "drafts up to K = 8; deeper guesses are beyond what it has practised",
        "The target's weights and tokenizer are those of the training",
        "the processor of this study",
    ):
        assert words in trained, words


def told(path: Path) -> str:
    """The text of an HTML file, every space a plain one."""
    return " ".join(re.sub(r"<[^>]+>", "", unescape(path.read_text(encoding="utf-8"))).split())


def rendered(folder: Path, config=CONFIG):
    results = read_results(folder, config["pair"], asked_for(config))
    values = build_values(config, results)
    return values, render(values, results, TEMPLATES)


def test_identical_is_said_only_when_nothing_differs(slower, faster):
    assert "All outputs are identical" in " ".join(pages(slower / "report.pdf"))
    text = " ".join(pages(faster / "report.pdf"))
    assert "All outputs are identical" not in text and "near tie" in text


def test_prose_has_no_seams(slower, faster):
    """No sentence runs into the next, no space stands before a full stop."""
    for folder in (slower, faster):
        assert_seamless((folder / "report.html").read_text(encoding="utf-8"))


def assert_seamless(html: str) -> None:
    block = "(?:p|li|figcaption|caption)"
    for paragraph in re.findall(rf"<{block}\b[^>]*>(.*?)</{block}>", html, re.S):
        text = " ".join(re.sub(r"<[^>]+>", "", paragraph).split())
        assert not re.search(r"[a-z)%\]]\.[A-Z]", text), text
        assert not re.search(r" [.,;:](?:\s|$)", text), text
        assert not re.search(r"\bNone\b|\bnan\b|{{|}}", text), text


def test_rare_branches_read_well_too(tmp_path):
    """Another pair, a draft of a user's own, a baseline that misses itself, real mismatches, loops, temperatures."""
    folder = write_results(tmp_path, "faster")
    for name in ("fixed_k", "dynamic_k", "losslessness", "positions", "time_shares", "cells"):
        path = folder / "tables" / f"{name}.csv"
        rows = read_table(path)
        for row in rows:
            row |= {"draft": "my_draft"} if row["draft"] == "small" else {}
            row |= {"real_mismatches": 1, "identical": 7} if name == "losslessness" else {}
            row |= {"rows_looped": 1, "rows_unequal": 1} if name == "cells" else {}
            row |= {"speedup_low": 1.01} if row["draft"] == "none" and name == "fixed_k" else {}
        if name in ("fixed_k", "time_shares", "cells"):
            rows += [row | {"temperature": 1.0, "seed": seed} for row in rows for seed in (0, 1)]
        write_csv(path, rows)
    training = read_table(folder / "tables" / "training.csv")
    for head in training:
        head |= {"target_id": "another", "dtype": "float32", "answer_tokens": len(head["draft"])}
        head |= {"processor": "another"}
    training[1] |= {"answer_tokens": 7}
    write_csv(folder / "tables" / "training.csv", training)
    own = {"kind": "eagle9"}
    pair = {"target": "qwen3-1.7b", "drafts": {"my_draft": own, "ngram": {"kind": "ngram", "max_ngram": 2}}}
    config = CONFIG | {"pair": "qwen3", "pairs": {"qwen3": pair}}
    _, html = rendered(folder, config)
    for words in ("guesses for another model", "did not all learn from the same text", "not necessarily the machine"):
        assert words in html
    for words in ("Qwen3-1.7B", "my_draft", "misses 1", "defect of the implementation", "left out of both arms"):
        assert words in html
    assert "dequantised" not in html
    assert_seamless(html)


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


def test_missing_fingerprint_and_intervals_are_said_not_hidden(tmp_path):
    folder = write_results(tmp_path)
    for path in folder.rglob("*.parquet"):
        path.unlink()
    for table in ("fixed_k", "dynamic_k"):
        rows = read_table(folder / "tables" / f"{table}.csv")
        for row in rows:
            row |= {name: None for name in row if name.endswith(("_low", "_high", "_holm"))}
            row["verdict"] = "not distinguishable"
        write_csv(folder / "tables" / f"{table}.csv", rows)
    _, html = rendered(folder)
    assert "an unrecorded processor" in html and "too few prompts for an interval" in html


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


def test_the_worked_example_is_right(slower):
    p, q = (0.6, 0.4), (1.0, 0.0)
    accepted = [b * min(1, a / b) if b else 0 for a, b in zip(p, q, strict=True)]
    rest = [max(0, a - b) for a, b in zip(p, q, strict=True)]
    law = [a + (1 - sum(accepted)) * r / sum(rest) for a, r in zip(accepted, rest, strict=True)]
    assert law == pytest.approx(p)
    text = " ".join(pages(slower / "report.pdf"))
    assert f"which is ({law[0]:.1f}, {law[1]:.1f})" in text.replace("\u2009", " ")
    tau = (1 - 0.8**5) / (1 - 0.8)
    for value in (tau, tau / (1 + 4 * 0.05), tau / (1 + 4 * 1)):
        assert f"{value:.2f}" in text


def test_trees_rules_and_ablation_speak_by_their_intervals(tmp_path):
    """The words of the three sections turn with gains, verdicts, beliefs and what a lossy rule did to the text."""
    _, slow = rendered(write_results(tmp_path / "slow", "slower"))
    values, fast = rendered(write_results(tmp_path / "fast", "faster"))
    for html in (slow, fast):
        assert_seamless(html)
        assert "Typical acceptance (lossy)" in html and "<b>lossy</b>" in html and "It cannot be exact." in html
    assert "too sure of itself" in slow and "may be believed on average" in fast
    assert "Every shape at every budget is slower" in slow and "less surprising to the target" in slow
    assert "gains 1.20×" in slow and "cannot be told from nothing" in fast
    assert values["ablation"]["shape"]["gain_verdict"] in ("faster", "slower", "not distinguishable")
    for gain, words in ((2.0, "helps, 2.00×"), (0.5, "harms, 0.50×"), (1.0, "cannot be told from no change, 1.00×")):
        folder = write_results(tmp_path / str(gain), "slower")
        rows = read_table(folder / "tables" / "ablation.csv")
        for row in rows:
            if row["improvement"] not in (None, "none"):
                row |= {"gain": gain, "gain_low": gain * 0.9, "gain_high": gain * 1.1}
        write_csv(folder / "tables" / "ablation.csv", rows)
        _, html = rendered(folder)
        assert f"The shape alone {words}" in html
        assert ("None of the three is a sure gain" in html) == (gain <= 1)


def test_a_distribution_test_is_reported_where_it_was_asked_for(tmp_path):
    folder = write_results(tmp_path, "slower")
    config = CONFIG | {"experiments": {"verification": {"distribution": {"continuations": 2000}}}}
    with pytest.raises(ReportError, match="distribution"):
        read_results(folder, "smollm2", asked_for(config))
    verification = read_table(folder / "tables" / "verification.csv")
    for p_value, words in ((0.4, "No rule can be told from the target"), (0.001, "This is a defect.")):
        write_csv(folder / "tables" / "distribution.csv", distribution_rows(verification, p_value))
        results = read_results(folder, "smollm2", asked_for(config))
        assert words in render(build_values(config, results), results, TEMPLATES)
    assert asked_for(CONFIG) == [] and "A test on the target itself" not in rendered(folder)[1]


ASKED = CONFIG | {"experiments": {"peers": {"in_report": True}, "long_context": {"in_report": True}}}


def test_other_tools_and_long_texts_are_shown_where_they_are_asked_for(tmp_path):
    folder = write_results(tmp_path, "faster")
    _, html = rendered(folder)
    assert "Against other tools" not in html and "Long texts" not in html
    values, html = rendered(folder, ASKED)
    assert "The fastest other arm in the same precision is llama.cpp" in html and "1.33\u00d7 that" in html
    assert "not installed" in html and "Time grows no faster than the cache" in html
    assert values["peers"]["limit_tokens_per_s"] == pytest.approx(80 / 0.7)
    assert_seamless(html)


def test_the_cost_model_says_what_its_tables_say(tmp_path):
    """Predictions that are close and far, passes that are cheap and dear, a pair of random weights and none."""
    said = {}
    for name, error in (("close", 0.03), ("apart", 0.4)):
        folder = write_results(tmp_path / name, "faster")
        drafts = {"small": 0.18, "ngram": 0.01}
        measured_tables.write(folder / "tables", {"predicted": measured_tables.predicted_rows(drafts, error)})
        _, said[name] = rendered(folder)
        assert_seamless(said[name])
    assert "explain the speed-ups" in said["close"] and "something beside the price" in said["apart"]
    assert "Up to 5 tokens are scored within 1.25 times" in said["close"]
    assert "timing only" in said["close"] and "absent" in said["close"]
    folder = write_results(tmp_path / "plain", "slower")
    rows = read_table(folder / "tables" / "cost_model.csv")
    for row in rows:
        row["cost_ratio"] = row["width"] if row["role"] == "target" else row["cost_ratio"]
    write_csv(folder / "tables" / "cost_model.csv", rows)
    _, html = rendered(folder)
    assert "no wider pass stays within" in html and "timing only" not in html
    assert_seamless(html)
