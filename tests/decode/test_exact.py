"""Above temperature 0 the loop emits the target's law: every branch of it is walked, nothing is estimated."""

import pytest
import torch
from scipy.stats import chisquare

from specdec.decode import Request, autoregressive, speculative
from specdec.drafters import Chain, LanguageModel, LookupFirst, NGram, Nothing
from specdec.growth import build_rule
from specdec.sampling import Sampling
from specdec.verifiers import Rejection, Verdict
from tests.helpers.enumerate import distance, walk
from tests.helpers.oracle import AlwaysEos, RandomTokens
from tests.helpers.toy import DRAFT, ToyDraft, ToyModel, law_of_texts

EXACT = 1e-12
PLAIN = Sampling(temperature=1.0)
RULES = {"fixed": None, "max_prob": 0.45, "margin": 0.12, "entropy": 1.0, "history": None}
SAMPLINGS = {
    "plain": PLAIN,
    "cold": Sampling(temperature=0.7),
    "hot": Sampling(temperature=1.7),
    "top-k": Sampling(temperature=1.0, top_k=2),
    "top-p": Sampling(temperature=1.0, top_p=0.6),
    "hot draft": Sampling(temperature=1.0, draft_temperature=2.5),
    "cold draft": Sampling(temperature=1.0, draft_temperature=0.4),
    "greedy draft": Sampling(temperature=1.0, draft_temperature=0.0),
    "all at once": Sampling(temperature=1.3, top_k=2, top_p=0.9, draft_temperature=0.5),
    "greedy": Sampling(),
}


def texts(make_drafter, sampling=PLAIN, *, k=2, count=3, prompt=(0,), eos=frozenset(), verifier=None):
    """The law of whole texts of `count` tokens, and the target's own."""
    target = ToyModel()

    def run(branch):
        request = Request(prompt, count, sampling, eos_ids=eos, stream=lambda purpose: branch)
        return tuple(speculative(target, make_drafter(), request, k=k, verifier=verifier).run().output_ids)

    return walk(run), law_of_texts(target, prompt[-1], count, sampling, eos)


def chain(rule="fixed", k=2, table=DRAFT, vocabulary=None):
    return lambda: Chain(ToyDraft(table, vocabulary), build_rule(rule, k, RULES[rule]))


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_the_baseline_emits_the_targets_law(sampling):
    law, expected = texts(Nothing, sampling, k=0)
    assert distance(law, expected) <= EXACT


@pytest.mark.parametrize("rule", RULES)
def test_whole_texts_follow_the_target_under_every_depth_rule(rule):
    law, expected = texts(chain(rule))
    assert len(expected) == 27 and distance(law, expected) <= EXACT


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_whole_texts_follow_the_target_under_every_setting(sampling):
    law, expected = texts(chain("max_prob"), sampling)
    assert distance(law, expected) <= EXACT


@pytest.mark.parametrize("root", [0, 1, 2])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_one_round_continued_by_the_target_follows_the_target(rule, k, root):
    """What the first round emits, continued by the target alone, is the target's law of K + 1 tokens."""
    target, count = ToyModel(), k + 1

    def run(branch):
        request = Request([root], 9, PLAIN, stream=lambda purpose: branch)
        return next(iter(speculative(target, chain(rule, k)(), request, k=k))).tokens

    law: dict[tuple[int, ...], float] = {}
    for tokens, probability in walk(run).items():
        rest = {(): 1.0}
        if len(tokens) < count:
            rest = law_of_texts(target, tokens[-1], count - len(tokens), PLAIN)
        for more, share in rest.items():
            law[tokens + more] = law.get(tokens + more, 0.0) + probability * share
    assert distance(law, law_of_texts(target, root, count, PLAIN)) <= EXACT


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_looking_up_first_emits_the_targets_law(sampling):
    """Copied drafts have a point law and guessed ones the draft's own, which of the two the text decides."""
    law, expected = texts(lambda: LookupFirst(NGram(min_ngram=2), chain()()), sampling, prompt=(0, 1, 0), count=4)
    assert distance(law, expected) <= EXACT


def test_a_second_model_with_its_cache_emits_the_targets_law():
    law, expected = texts(lambda: Chain(LanguageModel(ToyModel(DRAFT)), build_rule("fixed", 2)))
    assert distance(law, expected) <= EXACT


@pytest.mark.parametrize("eos", [{0}, {1}, {1, 2}])
@pytest.mark.parametrize("rule", ["fixed", "margin", "history"])
def test_an_end_of_text_inside_a_draft_leaves_the_targets_law(rule, eos):
    law, expected = texts(chain(rule), eos=frozenset(eos))
    assert distance(law, expected) <= EXACT
    assert any(len(text) < 3 for text in law)


@pytest.mark.parametrize("rule", ["fixed", "max_prob", "entropy"])
@pytest.mark.parametrize("columns", [(0, 2), (2, 1), (1,)])
def test_a_draft_that_knows_some_of_the_ids_leaves_the_targets_law(rule, columns):
    table = torch.tensor(DRAFT, dtype=torch.float64)[:, : len(columns)]
    table = (table / table.sum(-1, keepdim=True)).tolist()
    law, expected = texts(chain(rule, table=table, vocabulary=columns))
    assert distance(law, expected) <= EXACT


def test_a_model_with_fewer_ids_than_the_target_leaves_the_targets_law():
    table = [[0.3, 0.7], [0.6, 0.4]]
    law, expected = texts(lambda: Chain(LanguageModel(ToyModel(table), 3), build_rule("fixed", 2)))
    assert distance(law, expected) <= EXACT


@pytest.mark.parametrize("rule", ["fixed", "max_prob", "entropy"])
@pytest.mark.parametrize("sampling", [PLAIN, SAMPLINGS["all at once"]], ids=["plain", "all at once"])
@pytest.mark.parametrize("ids", [(0, 2), (1, 2), (1,)])
def test_a_model_whose_head_is_cut_leaves_the_targets_law(ids, sampling, rule):
    """Ids outside the head come from the target alone, and are fed to the model like any other."""
    table = torch.tensor(DRAFT, dtype=torch.float64)[:, list(ids)]
    table = (table / table.sum(-1, keepdim=True)).tolist()

    def make():
        return Chain(LanguageModel(ToyModel(table, head_ids=ids), 3), build_rule(rule, 2, RULES[rule]))

    law, expected = texts(make, sampling)
    assert distance(law, expected) <= EXACT
    assert sampling is not PLAIN or {token for text in law for token in text} == {0, 1, 2}


@pytest.mark.parametrize("sampling", [PLAIN, SAMPLINGS["top-p"], SAMPLINGS["all at once"]])
def test_a_draft_without_any_overlap_leaves_the_targets_law(sampling):
    law, expected = texts(chain(table=[[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), sampling)
    assert distance(law, expected) <= EXACT


@pytest.mark.parametrize("rule", ["first", "first_full", "longest"])
def test_prompt_lookup_leaves_the_targets_law(rule):
    law, expected = texts(lambda: NGram(rule), prompt=(0, 1, 2, 0, 1))
    assert distance(law, expected) <= EXACT


@pytest.mark.parametrize(
    "make", [lambda: RandomTokens(3, seed=1), lambda: AlwaysEos(2)], ids=["random", "always the end"]
)
@pytest.mark.parametrize("sampling", [PLAIN, SAMPLINGS["top-k"]], ids=["plain", "top-k"])
def test_hostile_points_leave_the_targets_law(make, sampling):
    law, expected = texts(make, sampling, eos=frozenset({2}))
    assert distance(law, expected) <= EXACT


def test_tokens_outside_the_nucleus_are_never_emitted():
    law, _ = texts(chain(), Sampling(temperature=1.0, top_p=0.6))
    assert all(text[0] != 2 for text in law)  # after id 0 the law is .5, .3, .2


# -- the instrument sees what it should -------------------------------------------------------------------------------


class WrongResidual(Rejection):
    """Accepts with min(1, p / q), then only zeroes the token: a known mistake."""

    def verify(self, draft, rows, stream):
        for i, token in enumerate(draft.tokens):
            p, q = rows.law(i), draft.q[i]
            if not stream.accept(min(1.0, float(p[token] / q[token]))):
                rest = p.clone()
                rest[token] = 0
                return Verdict(tuple(range(i)), stream.draw(rest / rest.sum()), "correction")
        return Verdict(tuple(range(len(draft))), stream.draw(rows.law(len(draft))), "bonus")


def test_a_wrong_residual_is_seen():
    law, expected = texts(chain(), verifier=WrongResidual())
    assert distance(law, expected) > 1e-3


def test_a_draft_that_drops_tokens_it_dislikes_is_seen():
    class Dropping(Chain):
        def propose(self, budget):
            draft = super().propose(budget)
            keep = next((i for i, token in enumerate(draft.tokens) if token == 2), len(draft))
            return type(draft).chain(draft.tokens[:keep], draft.law, draft.q[:keep] if keep else None)

    law, expected = texts(lambda: Dropping(ToyDraft(DRAFT), build_rule("fixed", 2)))
    assert distance(law, expected) > 1e-3


# -- the streams that ship --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make, k", [(Nothing, 0), (chain(), 2)], ids=["baseline", "speculative"])
def test_seeded_draws_follow_the_targets_law(make, k):
    target, count = ToyModel(), 3000
    law = law_of_texts(target, 0, 2, PLAIN)
    seen = dict.fromkeys(law, 0)
    for seed in range(count):
        request = Request([0], 2, PLAIN, seed=seed, prompt_id="x")
        generation = speculative(target, make(), request, k=k) if k else autoregressive(target, request)
        seen[tuple(generation.run().output_ids)] += 1
    assert min(seen.values()) > 0
    assert chisquare([seen[text] for text in law], [count * p for p in law.values()]).pvalue > 1e-3
