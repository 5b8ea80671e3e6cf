"""The report: built from results alone, and it says what they say."""

from __future__ import annotations

import pytest

from tests.helpers import measured_tables
from tests.report.reading import TEMPLATES, assert_seamless, pages, rendered, told
from tests.report.synthetic_results import CONFIG, write_csv, write_results
from tests.report.synthetic_trees import distribution_rows
from workflow.study.named import ReportError
from workflow.study.report import asked_for, render
from workflow.study.results import read_results, read_table
from workflow.study.values import build_values

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


def test_identical_is_said_only_when_nothing_differs(slower, faster):
    assert "All outputs are identical" in " ".join(pages(slower / "report.pdf"))
    text = " ".join(pages(faster / "report.pdf"))
    assert "All outputs are identical" not in text and "near tie" in text


def test_prose_has_no_seams(slower, faster):
    """No sentence runs into the next, no space stands before a full stop."""
    for folder in (slower, faster):
        assert_seamless((folder / "report.html").read_text(encoding="utf-8"))


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
