"""What the report says of trainings beside the drafts: small ones, by group, and that of the target itself."""

from __future__ import annotations

from tests.report.reading import assert_seamless, rendered, told
from tests.report.synthetic_results import write_csv, write_results
from workflow.study.results import read_table

OWN = "tables/training_layerskip.csv"


def said(folder) -> str:
    _, html = rendered(folder)
    assert_seamless(html)
    (folder / "report.html").write_text(html, encoding="utf-8")
    return told(folder / "report.html")


def change(folder, name: str, **values) -> None:
    write_csv(folder / name, [row | values for row in read_table(folder / name)])


def test_losses_of_a_small_model_are_a_group_of_the_small_trainings(tmp_path):
    text = said(write_results(tmp_path, "faster"))
    losses = (
        "With 100 000 passes each (distillation), against forward_kl: what costs most to leave out or change is one_hot"
    )
    assert losses in text and "loss = one_hot" in text and "With 50 000 passes each (EAGLE-3), against base" in text


def test_methods_are_said_to_be_compared_at_equal_length_only_where_a_group_has_both(tmp_path):
    folder = write_results(tmp_path, "faster")
    text = said(folder)
    assert "So the comparison is of these two heads and not of the two methods." in text
    rows = read_table(folder / "tables/training_ablations.csv")
    other = rows[1] | {"name": "eagle1", "method": "eagle1", "changes": "method = eagle1"}
    write_csv(folder / "tables/training_ablations.csv", [*rows[:2], other, *rows[2:]])
    assert "compares those at equal length" in said(folder)


def test_a_training_that_stood_still_is_not_said_to_bring_more(tmp_path):
    folder = write_results(tmp_path, "faster")
    assert "so a longer one might bring more" in said(folder)
    change(folder, "tables/training_curves.csv", tokens_per_round=2.0)
    text = said(folder)
    assert "the second half of the training brings nothing more" in text and "might bring more" not in text


def test_another_size_is_laid_beside_the_small_model_at_as_many_passes(tmp_path):
    text = said(write_results(tmp_path, "faster"))
    assert "Three drafts were trained for this target." in text
    assert "A model of three of the target's layers, trained to the same end and not kept, reaches 1.90" in text
    assert (
        "after 4 000 000 tokens in 2.0 hours, the small language model with its six layers 1.80 after 3 000 000" in text
    )
    assert "The second half of these tokens brought 0.30 and 0.15." in text


def test_a_target_that_was_trained_is_said_to_be_another_one(tmp_path):
    folder = write_results(tmp_path, "faster")
    text = said(folder)
    assert (
        "A draft that brings its own target" in text
        and "on 100 000 answer tokens of the same text in 8 minutes" in text
    )
    assert "An exit after 6 of 30 layers then reaches 1.62 tokens per round" in text and "against 1.03 before." in text
    assert "that of the target of this study in 90.0% of positions" in text and "0.125 nats away" in text
    assert "did not help" not in text
    change(folder, OWN, tokens_per_round=1.01)
    assert "1.03 before, so this training did not help it." in said(folder)
    assert "A draft that brings its own target" not in said(write_results(tmp_path / "none", "slower"))
