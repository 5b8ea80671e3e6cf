"""Every exact rule, on every tree that can be drawn and every branch of the shipped code: the target's joint law.

The next depth + 1 tokens (what a round emits, continued by the target) are compared with rational products.
"""

import pytest

from specdec.decode import Request, speculative
from specdec.growth import Chain, build_rule
from specdec.sampling import Sampling
from specdec.tree import POINT, WITH_REPLACEMENT, WITHOUT_REPLACEMENT, Draft
from specdec.verifiers import VERIFIERS, build_verifier
from tests.helpers.enumerate import distance, walk
from tests.helpers.sampled import drawn, error, law_of_round, texts_of, trees
from tests.helpers.toy import DRAFT, TARGET, ToyDraft, ToyModel, law_of_texts

EXACT = 1e-12
SAMPLED = (WITH_REPLACEMENT, WITHOUT_REPLACEMENT)
CHAINS = ([1], [1, 1], [1, 1, 1])
TREES = ([2], [3], [2, 1], [1, 2], [2, 2], [3, 1], [1, 1, 2])
RULES = ("rejection", "sample_and_match", "recursive", "spectr", "block", "traversal")


def allowed(name: str, widths, law: str) -> bool:
    """What each rule is exact for, written out once more."""
    if all(width == 1 for width in widths):
        return True
    return {
        "rejection": False,
        "block": False,
        "spectr": law == WITH_REPLACEMENT,
        "sample_and_match": True,
        "recursive": True,
        "traversal": True,
    }[name]


CASES = [
    (name, widths, law)
    for name in RULES
    for widths in (*CHAINS, *TREES)
    for law in (POINT, *SAMPLED)
    if allowed(name, widths, law)
]


def label(value) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else value


@pytest.mark.parametrize("name, widths, law", CASES, ids=label)
def test_a_round_follows_the_targets_joint_law(name, widths, law):
    assert error(drawn(build_verifier(name), widths, law), len(widths) + 1) <= EXACT


SPARSE_DRAFT = ((0.0, 0.6, 0.4), (1.0, 0.0, 0.0), (0.5, 0.5, 0.0))
SPARSE_TARGET = ((0.5, 0.0, 0.5), (0.0, 0.7, 0.3), (0.0, 0.0, 1.0))
APART_DRAFT = ((0.0, 0.0, 1.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0))
APART_TARGET = ((0.5, 0.5, 0.0), (0.0, 0.4, 0.6), (0.9, 0.0, 0.1))
PAIRS = {
    "draft without some tokens": (SPARSE_DRAFT, TARGET),
    "target without some tokens": (DRAFT, SPARSE_TARGET),
    "both": (SPARSE_DRAFT, SPARSE_TARGET),
    "no overlap": (APART_DRAFT, APART_TARGET),
    "equal": (TARGET, TARGET),
    "certain": (DRAFT, ((0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0))),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", RULES)
def test_laws_that_share_little_or_everything_are_no_exception(name, pair):
    table, target = PAIRS[pair]
    for widths in ([1, 1], [2, 1], [3]):
        for law in (POINT, *SAMPLED):
            if allowed(name, widths, law):
                for root in range(3):
                    law_of = drawn(build_verifier(name), widths, law, table=table, target=target, root=root)
                    assert error(law_of, len(widths) + 1, target, root) <= EXACT


@pytest.mark.parametrize("law", SAMPLED)
@pytest.mark.parametrize("name", RULES)
def test_the_shape_may_depend_on_what_was_drawn(name, law):
    """Nothing hangs under token 1: a drafted end of text, or a rule that stops behind a token it keeps."""
    for widths in ([1, 1, 1], [2, 2]):
        if allowed(name, widths, law):
            law_of = drawn(build_verifier(name), widths, law, ends=frozenset({1}))
            assert error(law_of, len(widths) + 1) <= EXACT


RAGGED = Draft((1, 0, 2, 1, 0, 2, 2), (-1, -1, 0, 0, 1, 3, 5))


@pytest.mark.parametrize("name", ["sample_and_match", "recursive", "traversal"])
def test_points_of_any_shape_are_exact(name):
    assert error(law_of_round(build_verifier(name), [(RAGGED, 1.0)]), RAGGED.depth + 1) <= EXACT


@pytest.mark.parametrize("name", RULES)
def test_filters_of_the_target_hold_at_every_node(name):
    """They leave tokens 0 and 1 after 0, 1 after 1, and 2 after 2."""
    sampling, model = Sampling(temperature=1.3, top_k=2, top_p=0.6), ToyModel()
    for widths in ([1, 1], [2, 1]):
        for law in (POINT, *SAMPLED):
            if not allowed(name, widths, law):
                continue
            joint: dict[tuple[int, ...], float] = {}
            drafts = trees(DRAFT, 0, tuple(widths), law)
            for text, probability in law_of_round(build_verifier(name), drafts, sampling=sampling).items():
                count = 3 - len(text)
                more = law_of_texts(model, text[-1], count, sampling) if count else {(): 1.0}
                for rest, share in more.items():
                    joint[text + rest] = joint.get(text + rest, 0.0) + probability * share
            assert distance(joint, law_of_texts(model, 0, 3, sampling)) <= EXACT


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("draft_temperature", [None, 0.0], ids=["sampled", "points"])
def test_whole_texts_of_the_loop_follow_the_target(name, draft_temperature):
    target, sampling = ToyModel(), Sampling(temperature=1.0, draft_temperature=draft_temperature)

    def run(branch):
        drafter = Chain(ToyDraft(DRAFT), build_rule("fixed", 2))
        request = Request([0], 3, sampling, stream=lambda purpose: branch)
        return tuple(speculative(target, drafter, request, k=2, verifier=build_verifier(name)).run().output_ids)

    law = walk(run)
    assert distance(law, {text: float(share) for text, share in texts_of(TARGET, 0, 3).items()}) <= EXACT


@pytest.mark.parametrize("name", RULES)
def test_nothing_drafted_is_one_draw_from_the_target(name):
    assert error(law_of_round(build_verifier(name), [(Draft(), 1.0)]), 1) <= EXACT


def test_every_exact_rule_is_proven_here():
    lossless = {name for name, rule in VERIFIERS.items() if rule.lossless}
    assert lossless == {"greedy", *RULES}
