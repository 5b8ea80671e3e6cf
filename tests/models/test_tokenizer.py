"""Ids, ends of text and stop strings."""

import warnings
from copy import copy
from pathlib import Path

import pytest

from specdec.decode import STOP_STRING, Request, autoregressive, speculative
from specdec.errors import UserError
from specdec.models.plain_tokenizer import PlainTokenizer, plain
from specdec.models.tokenizer import StopStrings, Tokenizer, check_shared
from tests.helpers import tiny
from tests.helpers.oracle import Oracle

REAL = Path(__file__).resolve().parents[2] / "resources" / "models" / "smollm2-135m-instruct"


def saved(folder, **options) -> Tokenizer:
    tiny.tokenizer(**options).save_pretrained(folder)
    return Tokenizer.load(folder)


def swapped(folder, first: int, second: int, **options) -> Tokenizer:
    """The same tokens, two of them under each other's id."""
    tokenizer = saved(folder, **options)
    tokenizer.inner = copy(tokenizer.inner)  # which tokenizers of equal files share
    convert = tokenizer.inner.convert_ids_to_tokens
    other = {first: second, second: first}
    tokenizer.inner.convert_ids_to_tokens = lambda ids: convert([other.get(i, i) for i in ids])
    return tokenizer


def test_equal_tokenizers_share_all_their_ids(tmp_path):
    assert check_shared(saved(tmp_path / "a"), saved(tmp_path / "b")) == tiny.VOCABULARY


def test_equal_files_are_read_once(tmp_path):
    ours, theirs = saved(tmp_path / "a"), saved(tmp_path / "b")
    assert ours.inner is theirs.inner and (ours.origin, theirs.origin) == (str(tmp_path / "a"), str(tmp_path / "b"))
    assert saved(tmp_path / "c", vocabulary=92).inner is not ours.inner


def test_a_shorter_tokenizer_shares_its_ids_when_it_is_a_prefix(tmp_path):
    long, short = saved(tmp_path / "a", vocabulary=97), saved(tmp_path / "b", vocabulary=92)
    assert check_shared(long, short) == check_shared(short, long) == 92


def test_the_first_id_that_differs_is_named_with_both_tokens(tmp_path):
    ours, theirs = saved(tmp_path / "target"), swapped(tmp_path / "draft", 7, 40)
    assert len(ours) == len(theirs)
    with pytest.raises(UserError) as caught:
        check_shared(ours, theirs)
    message = str(caught.value)
    assert f'id 7 is "{ours.token(40)}" in the draft and "{ours.token(7)}" in the target' in message
    assert str(tmp_path / "draft") in message and str(tmp_path / "target") in message


def test_the_fingerprint_tells_tokenizers_and_templates_apart(tmp_path):
    prints = {
        saved(tmp_path / "a").fingerprint,
        saved(tmp_path / "b", vocabulary=92).fingerprint,
        saved(tmp_path / "c", template="{{ messages[0].content }}").fingerprint,
        swapped(tmp_path / "d", 7, 40).fingerprint,
    }
    assert len(prints) == 4
    assert saved(tmp_path / "e").fingerprint == saved(tmp_path / "a").fingerprint


# -- without Transformers ---------------------------------------------------------------------------------------------

TEXTS = ("the quick brown fox <|im_end|> STOP", "", "  two\n\nlines\t", "caf\u00e9 \U0001f600 \ufffd", "a" * 50)
CALLS = """{%- for m in messages -%}{% if loop.index > 2 %}{% break %}{% endif %}
    {{ bos_token }}{{ m | tojson }}{{ m.content | trim }}{% if tools %}{{ tools }}{% endif %}
{% endfor %}{% if add_generation_prompt %}{{ eos_token }}{{ pad_token is defined }}{% endif %}"""


@pytest.mark.parametrize("options", [{}, {"adds_bos": True}, {"template": None}, {"template": CALLS}])
def test_a_plain_tokenizer_answers_as_transformers_does(tmp_path, options):
    from transformers import AutoTokenizer

    ours, theirs = saved(tmp_path, **options).inner, AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(ours, PlainTokenizer)
    _answer_alike(ours, theirs)


@pytest.mark.skipif(not REAL.is_dir(), reason="the embedded target is not there")
def test_the_embedded_targets_tokenizer_answers_as_transformers_does():
    from transformers import AutoTokenizer

    ours = Tokenizer.load(REAL).inner
    assert isinstance(ours, PlainTokenizer)
    _answer_alike(ours, AutoTokenizer.from_pretrained(REAL))


def _answer_alike(ours, theirs):
    assert ours.get_vocab() == theirs.get_vocab() and ours.chat_template == theirs.chat_template
    assert ours.eos_token_id == theirs.eos_token_id and sorted(ours.all_special_ids) == sorted(theirs.all_special_ids)
    every = list(range(len(theirs)))
    assert ours.convert_ids_to_tokens(every) == theirs.convert_ids_to_tokens(every)
    assert ours.convert_ids_to_tokens(3) == theirs.convert_ids_to_tokens(3)
    for text in TEXTS:
        for special in (False, True):
            ids = ours.encode(text, add_special_tokens=special)
            assert ids == list(theirs.encode(text, add_special_tokens=special))
            options = {"skip_special_tokens": special, "clean_up_tokenization_spaces": False}
            assert ours.decode(ids, **options) == theirs.decode(ids, **options)
    few = [[i] for i in every[::7]]
    assert ours.batch_decode(few) == theirs.batch_decode(few, clean_up_tokenization_spaces=False)
    if ours.chat_template is None:
        return
    turns = [{"role": ("user", "assistant")[i % 2], "content": f" {text} "} for i, text in enumerate(TEXTS)]
    for count, opened in ((1, True), (3, True), (2, False)):
        options = {"add_generation_prompt": opened, "enable_thinking": False}
        for form in ({"tokenize": False}, {"return_dict": False}):
            asked = [t.apply_chat_template(turns[:count], **options, **form) for t in (ours, theirs)]
            assert asked[0] == asked[1]


def test_what_a_plain_tokenizer_saves_is_read_by_transformers(tmp_path):
    from transformers import AutoTokenizer

    ours = saved(tmp_path / "a").inner
    ours.save_pretrained(tmp_path / "b")
    assert AutoTokenizer.from_pretrained(tmp_path / "b").get_vocab() == ours.get_vocab()


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer_class": "Qwen2Tokenizer"},
        {"add_prefix_space": True},
        {"auto_map": {"AutoTokenizer": ["x.X", None]}},
        {"extra_special_tokens": {"x": "y"}},
        {"eos_token": {"content": "x"}},
    ],
)
def test_whoever_asks_for_more_goes_to_transformers(tmp_path, change):
    saved(tmp_path)
    assert plain(tmp_path)
    tiny.edit_json(tmp_path / "tokenizer_config.json", **change)
    assert not plain(tmp_path)


@pytest.mark.parametrize("file", ["added_tokens.json", "special_tokens_map.json"])
def test_whoever_holds_more_goes_to_transformers(tmp_path, file):
    saved(tmp_path)
    (tmp_path / file).write_text("{}", "utf-8")
    assert not plain(tmp_path)


def test_a_plain_tokenizer_without_a_token_that_it_names_is_refused(tmp_path):
    saved(tmp_path)
    tiny.edit_json(tmp_path / "tokenizer_config.json", eos_token="<nowhere>")
    with pytest.raises(UserError, match='names "<nowhere>", which'):
        Tokenizer.load(tmp_path)


def test_a_template_that_refuses_says_why(tmp_path):
    tokenizer = saved(tmp_path, template="{{ raise_exception('no such role') }}")
    with pytest.raises(Exception, match="no such role"):
        tokenizer.chat([{"role": "user", "content": "x"}])


# -- ends of text -----------------------------------------------------------------------------------------------------


def test_either_of_two_ends_of_text_in_the_generation_configuration_counts(tmp_path):
    saved(tmp_path)
    tiny.edit_json(tmp_path / "generation_config.json", eos_token_id=[tiny.END, tiny.EOS])
    tiny.edit_json(tmp_path / "config.json", eos_token_id=tiny.EOS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Tokenizer.load(tmp_path).eos_ids == (tiny.EOS, tiny.END)


def test_the_models_configuration_counts_where_there_is_no_generation_configuration(tmp_path):
    saved(tmp_path)
    tiny.edit_json(tmp_path / "config.json", eos_token_id=[tiny.EOS, tiny.END])
    assert Tokenizer.load(tmp_path).eos_ids == (tiny.EOS, tiny.END)


def test_the_tokenizers_own_end_of_text_is_the_fallback(tmp_path):
    assert saved(tmp_path).eos_ids == (tiny.EOS,)


def test_a_disagreement_about_the_end_of_text_is_said_aloud(tmp_path):
    saved(tmp_path)
    tiny.edit_json(tmp_path / "generation_config.json", eos_token_id=tiny.END)
    with pytest.warns(UserWarning, match=rf"{tiny.END}.*{tiny.EOS}"):
        assert Tokenizer.load(tmp_path).eos_ids == (tiny.END,)


# -- prompts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adds_bos", [False, True])
def test_a_prompt_holds_at_most_one_beginning_of_text(tmp_path, adds_bos):
    tokenizer = saved(tmp_path, adds_bos=adds_bos)
    conversation = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
    assert tokenizer.chat(conversation).count(tiny.BOS) == 1
    assert tokenizer.encode("the cat").count(tiny.BOS) == int(adds_bos)


def test_a_prompt_opens_the_assistants_turn(tmp_path):
    tokenizer = saved(tmp_path)
    ids = tokenizer.chat([{"role": "user", "content": "the cat"}])
    assert ids.count(tiny.START) == 2 and ids.count(tiny.END) == 1
    assert tokenizer.decode(ids) == "user: the catassistant: "


def test_the_template_is_told_about_thinking_only_when_asked(tmp_path):
    template = "{% if enable_thinking is defined %}{{ enable_thinking }}{% else %}unset{% endif %}"
    tokenizer, messages = saved(tmp_path, template=template), [{"role": "user", "content": "x"}]
    said = [tokenizer.decode(tokenizer.chat(messages, enable_thinking=value)) for value in (None, True, False)]
    assert said == ["unset", "True", "False"]


def test_without_a_template_a_prompt_is_its_text(tmp_path):
    tokenizer = saved(tmp_path, template=None)
    assert tokenizer.decode(tokenizer.chat([{"role": "user", "content": "the cat"}])) == "the cat"


# -- stop strings -----------------------------------------------------------------------------------------------------


def test_a_stop_string_may_span_tokens(tmp_path):
    tokenizer = saved(tmp_path)
    ids, tail = tokenizer.encode("the cat STOP"), tokenizer.encode(" here.")
    stop = StopStrings(tokenizer, ["STOP"])
    assert len(tokenizer.encode("STOP")) > 1
    for count in range(len(ids)):
        assert stop(ids[:count]) is None
    assert stop([*ids, *tail]) == len(ids)
    assert stop.trim(tokenizer.decode([*ids, *tail])) == "the cat "


def test_of_several_stop_strings_the_earliest_ends_the_text(tmp_path):
    tokenizer = saved(tmp_path)
    ids = tokenizer.encode("the lazy dog and the cat")
    stop = StopStrings(tokenizer, ["cat", "dog"])
    assert tokenizer.decode(ids[: stop(ids)]).rstrip().endswith("dog")
    assert stop.trim("a cat, a dog") == "a "


@pytest.mark.parametrize("strings", [[""], ["a", ""], [None], [3]])
def test_an_empty_stop_string_is_refused(tmp_path, strings):
    with pytest.raises(UserError, match="stop strings"):
        StopStrings(saved(tmp_path), strings)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 7])
def test_a_stop_string_that_spans_two_rounds_ends_the_text_where_the_baseline_ends(tmp_path, k):
    tokenizer, model = saved(tmp_path), tiny.transformer("qwen3")
    prompt = tiny.prompt_of(9)
    answer = autoregressive(model, Request(prompt, 24)).run().output_ids
    for at in range(2, 16):
        text = tokenizer.decode(answer[at : at + 2])
        if len(text) < 2 or text in tokenizer.decode(answer[: at + 1]):
            continue

        def request(text=text):
            return Request(prompt, 24, stop=StopStrings(tokenizer, [text]))

        baseline = autoregressive(model, request()).run()
        record = speculative(model, Oracle(answer), request(), k=k).run()
        assert baseline.output_ids == record.output_ids == answer[: at + 2]
        assert baseline.stop_reason == record.stop_reason == STOP_STRING


def test_one_stop_object_serves_several_generations(tmp_path):
    tokenizer, model, prompt = saved(tmp_path), tiny.transformer("qwen3"), tiny.prompt_of(9)
    answer = autoregressive(model, Request(prompt, 24)).run().output_ids
    request = Request(prompt, 24, stop=StopStrings(tokenizer, [tokenizer.decode(answer[4:6])]))
    outputs = [autoregressive(model, request).run().output_ids]
    outputs += [speculative(model, Oracle(answer), request, k=k).run().output_ids for k in (1, 2, 4, 7)]
    assert all(output == outputs[0] for output in outputs)
