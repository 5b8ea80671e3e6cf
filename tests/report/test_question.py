"""The course's question in the report: words follow intervals, prices and records, with a small model and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdec.measure.cost_model import break_even, expected_tokens
from tests.report.reading import assert_seamless, rendered, told
from tests.report.synthetic_results import CONFIG, write_csv, write_results
from workflow.study.results import read_table

DRAFTS = "tables/drafts.csv"


def said(folder: Path) -> tuple:
    """The values of the comparison and the whole report as plain text."""
    values, html = rendered(folder)
    assert_seamless(html)
    (folder / "report.html").write_text(html, encoding="utf-8")
    return values["comparison"], told(folder / "report.html")


def edit(folder: Path, name: str, change) -> None:
    rows = read_table(folder / name)
    write_csv(folder / name, [row for row in rows if change(row) is not False])


def without(draft: str):
    return lambda row: row["draft"] != draft


def test_without_a_small_model_one_sentence_says_so_and_compares_what_there_is(tmp_path):
    folder = write_results(tmp_path, "faster")
    edit(folder, DRAFTS, without("small"))
    found, text = said(folder)
    assert found["state"] == "no_small"
    assert "This pair has no small model of the target's family yet, so the comparison is of what there is" in text
    assert "the EAGLE-3 head reaches" in text and "Both guess 4 tokens a round" not in text
    edit(folder, DRAFTS, without("eagle3"))
    found, text = said(folder)
    assert found["state"] == "neither" and "neither a head trained for its target nor a small model" in text


def test_without_a_head_it_is_the_head_that_is_missing(tmp_path):
    folder = write_results(tmp_path, "faster")
    edit(folder, DRAFTS, without("eagle3"))
    found, text = said(folder)
    assert found["state"] == "no_head" and "This pair has no head trained for its target yet" in text


@pytest.mark.parametrize(
    ("head", "small", "verdict", "words"),
    [
        (1.5, 1.1, "faster", "The trained head is the better draft here"),
        (1.1, 1.5, "slower", "The small model is the better draft here"),
        (1.3, 1.31, "open", "These prompts do not say which is better"),
    ],
)
def test_the_verdict_follows_whether_intervals_meet(tmp_path, head, small, verdict, words):
    folder = write_results(tmp_path, "faster")
    speeds = {"eagle3": head, "small": small}

    def change(row):
        if (speed := speeds.get(row["draft"])) is not None:
            # on one category alone the order is the other way round
            speed = 2.6 - speed if row["category"] == "code" else speed
            row |= {"decode_speedup": speed, "decode_speedup_low": speed - 0.1, "decode_speedup_high": speed + 0.1}

    edit(folder, DRAFTS, change)
    found, text = said(folder)
    assert found["verdict"] == verdict and words in text
    chat, code = {"faster": ("head", "small"), "slower": ("small", "head"), "open": ("open", "open")}[verdict]
    assert "chat" in found["categories"][chat] and "code" in found["categories"][code]
    names = {"head": "The head", "small": "The small model"}
    if verdict == "open":
        assert "In no category is the head surely ahead" in text and "Open are chat and code" in text
    else:
        assert f"{names[chat]} is surely ahead on chat" in text and f"{names[code]} is surely ahead on code" in text
    ahead, behind = ("eagle3", "small") if head > small else ("small", "eagle3")
    assert (found["ahead"]["draft"], found["behind"]["draft"]) == (ahead, behind)
    prices = read_table(folder / "tables" / "break_even.csv")
    (price,) = (row["price"] for row in prices if (row["draft"], row["k"], row["context"]) == (behind, 4, 128))
    needed = found["needed"].get("acceptance")
    assert needed == pytest.approx(break_even(price * speeds[ahead], 4))
    if needed is not None:
        assert expected_tokens(needed, 4) / price == pytest.approx(speeds[ahead])
        assert "of its guesses accepted, taken as independent, and has 60%" in text


def test_what_no_acceptance_could_reach_is_said(tmp_path):
    folder = write_results(tmp_path, "faster")

    def change(row):
        speed = {"eagle3": 4.0, "small": 1.0}.get(row["draft"])
        if speed:
            row |= {"decode_speedup": speed, "decode_speedup_low": speed - 0.1, "decode_speedup_high": speed + 0.1}

    edit(folder, DRAFTS, change)
    found, text = said(folder)
    assert not found["needed"].has("acceptance") and "no acceptance is enough at this depth" in text
    edit(folder, "tables/break_even.csv", without("small"))
    assert "Its steps were not timed" in said(folder)[1]


@pytest.mark.parametrize("found", [0.1, 0.99])
def test_a_draft_that_should_be_level_by_the_model_is_said_to_be(tmp_path, found):
    folder = write_results(tmp_path, "faster")

    def change(row):
        speed = {"eagle3": 1.2, "small": 1.0}.get(row["draft"])
        if speed:
            row |= {"decode_speedup": speed, "decode_speedup_low": speed - 0.1, "decode_speedup_high": speed + 0.1}

    edit(folder, DRAFTS, change)
    edit(folder, "tables/predicted.csv", lambda row: row.update(alpha=found) if row["draft"] == "small" else None)
    values, text = said(folder)
    needed = values["needed"]["acceptance"]
    assert 0.1 < needed < 0.99 and f"and has {100 * found:.0f}%" in text
    assert ("by the model it should be level" in text) == (found > needed)


@pytest.mark.parametrize(
    ("costs", "yields", "balance", "words"),
    [
        ((0.1, 0.2), (2.0, 1.8), "head", "So the head has both"),
        ((0.2, 0.1), (1.8, 2.0), "small", "So the small model has both"),
        ((0.1, 0.3), (1.8, 2.0), "small_pays_for_yield", "yields more and pays for it with 3.00 times"),
        ((0.3, 0.1), (2.0, 1.8), "head_pays_for_yield", "So the head yields more and pays for it with 3.00 times"),
    ],
)
def test_acceptance_stands_against_price(tmp_path, costs, yields, balance, words):
    folder = write_results(tmp_path, "faster")

    def change(row):
        if row["draft"] in ("eagle3", "small"):
            index = row["draft"] == "small"
            row |= {"cost_ratio": costs[index], "tokens_per_round": yields[index]}

    edit(folder, DRAFTS, change)
    found, text = said(folder)
    assert found["balance"] == balance and words in text


def test_trainings_are_compared_as_far_as_they_are_alike(tmp_path):
    folder = write_results(tmp_path, "faster")
    found, text = said(folder)
    assert found["training"]["same_text"] and found["training"]["same_passes"]
    assert "Text and length are the same for both" in text
    assert "is cut from the target, its layers 0, 1, 2, 3, 28 and 29" in text and "over the 8 192 tokens" in text
    for changes, words in (
        ({"token_passes": 1_000_000}, "the length is not, the head having been trained for longer"),
        ({"answer_tokens": 7}, "They did not learn from the same text"),
    ):
        rows = read_table(folder / "tables/training.csv")
        write_csv(folder / "tables/training.csv", [row | changes if row["draft"] == "small" else row for row in rows])
        assert words in said(folder)[1]
    edit(folder, "tables/training.csv", without("small"))
    assert "What did training buy" not in said(folder)[1]


def test_hours_and_passes_of_a_training_hold_those_of_the_one_it_went_on_from(tmp_path):
    folder = write_results(tmp_path, "faster")
    edit(folder, "tables/training.csv", lambda row: row.update(before_passes=2_000_000, before_hours=1.5))
    found, text = said(folder)
    rows = {row["draft"]: row for row in read_table(folder / "tables/training.csv")}
    for place, name in enumerate(("eagle3", "small")):
        assert found["training"]["passes"][place] == rows[name]["token_passes"] + 2_000_000
        assert found["training"]["hours"][place] == rows[name]["hours"] + 1.5
    assert f"{rows['small']['hours'] + 1.5:.1f} hours" in text


def test_each_draft_stands_at_the_depth_that_was_chosen_for_it(tmp_path):
    folder = write_results(tmp_path, "faster")
    assert "At the depth that the calibration prompts chose" not in said(folder)[1], "one draft alone has one"
    rows = [row for row in read_table(folder / DRAFTS) if row["category"] == "all" and row["prompt_set"] == "project"]
    chosen = {name: min(row["k"] for row in rows if row["draft"] == name) for name in ("eagle3", "small")}
    calibration = {"smollm2": {name: {"best_k": k} for name, k in chosen.items()}}
    values, html = rendered(folder, CONFIG | {"calibration": calibration})
    assert_seamless(html)
    found = values["comparison"]["chosen"]
    assert {row["draft"]: row["k"] for row in found} == chosen
    assert [row["decode_speedup"] for row in found] == sorted((row["decode_speedup"] for row in found), reverse=True)
    assert "At the depth that the calibration prompts chose for each" in html


def test_the_larger_pair_is_spoken_of_by_its_shapes(tmp_path):
    found, text = said(write_results(tmp_path, "faster"))
    pair = found["other_pair"]
    assert 0.34 < pair["ratio"] < 0.36, "0.6 of 1.7 billion weights"
    assert expected_tokens(pair["least"], 4) == pytest.approx(1 + 4 * pair["ratio"])
    assert "reads 0.35 of the weights of a target pass" in text
    pairs = {"qwen3": CONFIG["pairs"]["smollm2"]}
    _, html = rendered(tmp_path, CONFIG | {"pair": "qwen3", "pairs": pairs})
    assert "How far does this carry?" not in html


def test_the_head_behind_prompt_lookup_is_laid_beside_both_parts(tmp_path):
    folder = write_results(tmp_path, "faster")
    rows = read_table(folder / DRAFTS)
    grown = {"all": 1.2, "chat": 1.1, "code": 1.5}
    copies = [
        row | {"draft": "eagle3_lookup", "tokens_per_round": grown.get(row["category"], 1) * row["tokens_per_round"]}
        for row in rows
        if row["draft"] == "eagle3"
    ]
    write_csv(folder / DRAFTS, [*rows, *copies])
    found, text = said(folder)
    combined = found["combined"]
    assert combined["category"] == "code" and combined["lookup"]["draft"] == "ngram"
    before, after = (combined[name]["tokens_per_round"] for name in ("before", "after"))
    assert after == pytest.approx(1.5 * before)
    assert f"The yield grows most on code, from {before:.2f} to {after:.2f} tokens a round." in text
    assert "can be looked up at next to no cost. The EAGLE-3 head behind prompt lookup yields" in text


def test_nothing_is_said_of_looking_up_where_no_draft_does(tmp_path):
    found, text = said(write_results(tmp_path, "faster"))
    assert "combined" not in found and "can be looked up" not in text
