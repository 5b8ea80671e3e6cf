"""The target's own text: cut like its prompts, the same for the same seed, written once, and weeded."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import torch

from specdec.errors import UserError
from specdec.models import LoadedModel
from specdec.models.tokenizer import Tokenizer
from specdec.training.conversation import Conversation, Plan, Template, encode
from specdec.training.corpus import read_text
from specdec.training.judging import Judge, shingles
from specdec.training.rows import RowCache, step
from specdec.training.synthesise import Settings, estimate, given_plans, plans, synthesise, write
from tests.helpers import heads, tiny

TURN = "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
PLAIN = "{{ bos_token }}" + TURN + "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"
THINKING = (  # as Qwen3's: thinking off puts an empty block before the answer, which earlier answers lose
    "{{ bos_token }}" + TURN + "{% if add_generation_prompt %}<|im_start|>assistant:"
    "{% if enable_thinking is defined and not enable_thinking %}[no thought]:{% endif %}{% endif %}"
)
CHANGING = PLAIN.replace("m.content", "m.content|lower")


def tokenizer_of(template: str | None = PLAIN, adds_bos: bool = False) -> Tokenizer:
    """With more ends of text than one: random models would rarely find it."""
    return Tokenizer(tiny.tokenizer(adds_bos=adds_bos, template=template), [tiny.END, *range(20, 32)], "tiny")


def loaded(variant: str = "llama", template: str = PLAIN) -> LoadedModel:
    return LoadedModel(heads.target_of(variant), tokenizer_of(template), "tiny", "tiny")


SETTINGS = Settings(
    150, rows=4, max_user=12, max_answer=16, user_temperature=1.0, user_top_k=40, capacity=120, part=3, opener_share=0.5
)


# -- the template -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adds_bos", [False, True])
@pytest.mark.parametrize(("template", "modes"), [(PLAIN, [None]), (THINKING, [None, True, False])])
def test_a_conversation_begins_with_the_inference_prompt_token_for_token(template, modes, adds_bos):
    tokenizer = tokenizer_of(template, adds_bos)
    for mode in modes:
        pieces = Template.of(tokenizer, mode)
        text = "what is the quick brown fox?"
        prompt = tokenizer.chat([{"role": "user", "content": text}], enable_thinking=mode)
        assert [*pieces.opening, *encode(tokenizer, text), *pieces.to_answer] == prompt
        assert prompt.count(tiny.BOS) == 1
        if pieces.to_user is not None:
            turns = [{"role": "user", "content": text}, {"role": "assistant", "content": "the dog"}]
            again = tokenizer.chat([*turns, {"role": "user", "content": "and?"}], enable_thinking=mode)
            whole = [*prompt, *encode(tokenizer, "the dog"), tiny.END, *pieces.to_user]
            assert [*whole, *encode(tokenizer, "and?"), *pieces.to_answer] == again


def test_a_template_that_rewrites_earlier_answers_allows_one_turn():
    assert Template.of(tokenizer_of(THINKING), True).to_user is not None
    assert Template.of(tokenizer_of(THINKING), False).to_user is None
    settings = replace(SETTINGS, enable_thinking=False)
    plan = Plan(0, 0, ((9, 10), (11, 12)), given=True)
    conversation = next(write(loaded(template=THINKING), iter([plan]), settings))
    assert len(conversation.requests) == 1 and conversation.finished


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (None, "has no chat template"),
        (PLAIN.replace("<|im_end|>", "."), "ends an answer with no end-of-text token"),
        (CHANGING, "does not begin with the inference prompt, token for token"),
        ("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}", "puts nothing before a turn"),
    ],
)
def test_a_template_that_cannot_be_cut_is_refused(template, text):
    with pytest.raises(UserError, match=text):
        Template.of(tokenizer_of(template))


# -- one conversation -------------------------------------------------------------------------------------------------


def conversation_of(plan: Plan, script: list[int], **changes) -> Conversation:
    pieces = Template((1, 3), (4, 3), (3,))
    settings = {"max_user": 4, "max_answer": 3, "special": frozenset({3, 2})} | changes
    conversation = Conversation(plan, pieces, frozenset({4}), **settings)
    for token in script:
        assert not conversation.finished
        conversation.take(token)
    return conversation


def test_only_answers_are_trained_on_and_the_templates_end_replaces_the_sampled_one():
    plan = Plan(0, 0, ((9,), ()))
    c = conversation_of(plan, [10, 4, 20, 21, 4, 30, 4, 40, 4])
    assert c.ids == [1, 3, 9, 10, 4, 3, 20, 21, 4, 3, 30, 4, 3, 40, 4]
    assert [i for i, kept in enumerate(c.mask) if kept] == [6, 7, 8, 13, 14]
    assert c.requests == [[9, 10], [30]] and c.finished and c.dropped is None and c.answer == [20, 21, 4, 40, 4]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ([4], "empty_request"),
        ([10, 2], "special_token"),
        ([10, 11, 12, 13], "endless_request"),
        ([10, 4, 20, 21, 22], None),  # an answer that reaches its longest is cut and kept
    ],
)
def test_what_a_conversation_may_come_to(script, reason):
    c = conversation_of(Plan(0, 0), script)
    assert c.finished and c.dropped == reason


def test_a_request_at_its_longest_may_be_cut_instead():
    c = conversation_of(Plan(0, 0), [10, 11, 12, 13, 20, 4], cut_requests=True)
    assert c.ids == [1, 3, 10, 11, 12, 4, 3, 20, 4] and c.finished and c.dropped is None and c.answer == [20, 4]


def test_a_given_turn_is_kept_whole_and_answered_at_once():
    c = conversation_of(Plan(0, 0, ((5, 6), (7,)), given=True), [20, 4, 21, 4])
    assert c.ids == [1, 3, 5, 6, 4, 3, 20, 4, 3, 7, 4, 3, 21, 4] and c.finished


# -- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["llama", "qwen3", "qwen2"])
def test_rows_of_different_lengths_get_the_logits_of_their_own_text(variant):
    model = heads.target_of(variant)
    cache = RowCache(model, 3, 80)
    texts = [tiny.prompt_of(n, seed=n) for n in (70, 9, 30)]
    begins = [0, 61, 20]  # when a row's text begins; an earlier text is replaced
    junk = tiny.prompt_of(70, seed=99)
    for at in range(70):
        for row, begin in enumerate(begins):
            if at == begin:
                cache.lengths[row] = 0
        where = [at - begin for begin in begins]
        fed = [text[i] if 0 <= i < len(text) else junk[at] for text, i in zip(texts, where, strict=True)]
        logits = step(model, cache, fed)
        if at == 49:
            alone = model.forward(texts[2], model.new_cache(80)).logits[-1]
            torch.testing.assert_close(logits[2], alone, rtol=0, atol=1e-9)
    for row in (0, 1):
        alone = model.forward(texts[row], model.new_cache(80)).logits[-1]
        torch.testing.assert_close(logits[row], alone, rtol=0, atol=1e-9)


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_answers_in_refilled_rows_are_the_greedy_answers_of_each_text_alone(rows):
    target = loaded()
    settings = replace(SETTINGS, rows=rows, sampled_share=0.0)
    questions = [["the cat"], ["a dog and the fox.", "verify"], ["stop"], ["0123"], ["over the lazy dog"], ["x"]]
    found = list(write(target, given_plans(questions, target, settings, "t"), settings))
    assert sorted(c.plan.index for c in found) == list(range(6))
    for c in found:
        known = []
        for token, kept in zip(c.ids, c.mask, strict=True):
            if kept:
                logits = target.model.forward(known, target.model.new_cache(len(known))).logits
                assert token == int(logits[-1].argmax())
            known.append(token)


# -- whole texts ------------------------------------------------------------------------------------------------------


def text_of(folder) -> list[dict]:
    return [row for part in sorted(folder.glob("part-*.parquet")) for row in pq.read_table(part).to_pylist()]


def test_the_same_seed_gives_the_same_text_and_another_seed_another(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        synthesise(loaded(), tmp_path / name, replace(SETTINGS, seed=seed))
    a, b, c = (text_of(tmp_path / name) for name in "abc")
    assert a == b and a != c
    assert any(row["sampled"] for row in a) and not all(row["sampled"] for row in a)


def test_a_conversation_depends_on_the_seed_and_its_index_alone():
    def texts(rows):
        pending = itertools.islice(plans(SETTINGS, [(9, 10), (11,)]), 10)
        return {c.plan.index: (c.ids, c.dropped) for c in write(loaded(), pending, replace(SETTINGS, rows=rows))}

    assert len(texts(1)) == 10 and texts(1) == texts(4) == texts(16)


class Killed(Exception):
    pass


def test_a_killed_run_goes_on_and_writes_no_conversation_twice(tmp_path):
    folder, calls = tmp_path / "text", itertools.count()

    def kill(tokens):
        if next(calls) == 8:
            raise Killed

    with pytest.raises(Killed):
        synthesise(loaded(), folder, SETTINGS, progress=kill)
    before = text_of(folder)
    assert 0 < len(before) < 8 + 1
    counts = synthesise(loaded(), folder, SETTINGS)
    after = text_of(folder)
    assert after[: len(before)] == before
    indices = [row["index"] for row in after]
    assert len(indices) == len(set(indices))
    assert counts["answer_tokens"] == sum(sum(row["loss_mask"]) for row in after) >= 150
    assert sum(v for k, v in counts.items() if k not in ("answer_tokens", "seconds", "tokens_per_s")) == len(after)
    again = synthesise(loaded(), folder, SETTINGS)
    assert text_of(folder) == after and again["answer_tokens"] == counts["answer_tokens"], "enough is enough"


def test_more_may_be_asked_of_a_folder_and_nothing_else_changed(tmp_path):
    synthesise(loaded(), tmp_path, SETTINGS)
    first = text_of(tmp_path)
    synthesise(loaded(), tmp_path, replace(SETTINGS, answer_tokens=250, rows=2))
    assert text_of(tmp_path)[: len(first)] == first and len(text_of(tmp_path)) > len(first)
    with pytest.raises(UserError, match="its text was written with seed = 0, not 5"):
        synthesise(loaded(), tmp_path, replace(SETTINGS, seed=5))
    with pytest.raises(UserError, match="its text was written with target = tiny, not other"):
        synthesise(replace(loaded(), model_id="other"), tmp_path, SETTINGS)


def test_given_conversations_are_answered_anew_and_what_is_too_long_is_counted(tmp_path):
    target = loaded()
    questions = [["the cat"], ["the quick brown fox " * 40], ["a dog", "and a cat"]]
    counts = synthesise(target, tmp_path, SETTINGS, pending=given_plans(questions, target, SETTINGS, "mine"))
    rows = {row["index"]: row for row in text_of(tmp_path)}
    assert set(rows) == {0, 1, 2} and rows[1]["dropped"] == "too_long" and counts["too_long"] == 1
    assert {row["source"] for row in rows.values()} == {"mine"}
    for index in (0, 2):
        if rows[index]["dropped"] is None:
            text = target.tokenizer.inner.decode(rows[index]["ids"])
            assert text.startswith(f"<bos><|im_start|>user:{questions[index][0]}<|im_end|>")
    assert counts["kept"] == len(read_text(tmp_path))


def test_the_estimate_grows_with_what_is_asked():
    small, large = (estimate(loaded(), replace(SETTINGS, answer_tokens=n), 2) for n in (1000, 10**6))
    assert large.bytes == 1000 * small.bytes and large.seconds > small.seconds > 0


def test_a_capacity_beyond_the_context_is_refused():
    with pytest.raises(UserError, match="capacity = 9999: the target's context holds 256"):
        next(write(loaded(), iter([]), replace(SETTINGS, capacity=9999)))


# -- what is kept -----------------------------------------------------------------------------------------------------


def judged(judge: Judge, request: list[int], answer: list[int]) -> str | None:
    conversation = Conversation(
        Plan(0, 0, (tuple(request),), given=True), Template((1,), (3,), None), frozenset({4}), 99, 200
    )
    for token in [*answer, 4]:
        conversation.take(token)
    return judge.reason(conversation)


def test_loops_duplicates_and_near_copies_are_dropped_by_name():
    tokenizer = tokenizer_of()
    copied = "the quick brown fox jumps over the lazy dog and the cat"
    judge = Judge(tokenizer, [copied, "stop here"])
    ask = lambda text: list(encode(tokenizer, text))  # noqa: E731
    long = tiny.prompt_of(60, seed=1)
    assert judged(judge, ask("what is a fox?"), long) is None
    assert judged(judge, ask("what is a fox?"), tiny.prompt_of(60, seed=2)) == "duplicate", "the same request"
    assert judged(judge, ask("another thing"), [*long[:50], 7, 8]) == "duplicate", "the same beginning of an answer"
    assert judged(judge, ask("and this"), [20, 21, 22] * 12) == "loop"
    assert judged(judge, [20, 21] * 20, tiny.prompt_of(20, seed=3)) == "loop"
    assert judged(judge, ask("Please say: " + copied), tiny.prompt_of(20, seed=4)) == "near_evaluation"
    assert judged(judge, ask("STOP here!"), tiny.prompt_of(20, seed=5)) == "near_evaluation", "short ones as a whole"
    assert judged(judge, ask("my cat sat on one mat over there"), tiny.prompt_of(20, seed=6)) is None


def test_a_run_that_goes_on_remembers_what_it_kept(tmp_path):
    synthesise(loaded(), tmp_path, SETTINGS)
    judge = Judge(tokenizer_of())
    judge.remember(tmp_path)
    for row in text_of(tmp_path):
        if row["dropped"] is None:
            first = row["loss_mask"].index(True)
            assert ("asked", *row["ids"][:first]) in judge._seen


def test_shingles_are_runs_of_five_words_whatever_their_case():
    assert shingles("One two, three four FIVE six") == {
        ("one", "two", "three", "four", "five"),
        ("two", "three", "four", "five", "six"),
    }
    assert shingles("two words") == {("two", "words")} and shingles(" ,") == set()


def test_settings_are_stored_with_the_text(tmp_path):
    synthesise(loaded(), tmp_path, SETTINGS)
    stored = json.loads((tmp_path / "settings.json").read_text())
    assert stored["target"] == "tiny" and stored["max_answer"] == 16 and stored["enable_thinking"] is None
    assert stored["tokenizer"] == tokenizer_of().fingerprint
