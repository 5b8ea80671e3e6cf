"""Growers by name, and two of them taking turns."""

import pytest

from specdec import cli
from specdec.drafters import build_drafter, check_nodes
from specdec.drafters.base import Budget, Context
from specdec.errors import UserError
from specdec.growth import (
    GROWERS,
    LEVEL_RULES,
    RULES,
    Chain,
    CoarseFine,
    Ddd,
    Eagle2,
    SampledTree,
    StaticTree,
    build_grower,
    build_rule,
)
from specdec.growth.rank_paths import EAGLE1
from specdec.sampling import GREEDY, RandomStream
from tests.helpers import tiny
from tests.helpers.growing_models import PathModel, Target


def test_the_command_line_knows_every_name():
    assert set(cli.POLICIES) == {*RULES, *LEVEL_RULES} and set(cli.SHAPES) == set(GROWERS)


@pytest.mark.parametrize("name", GROWERS)
def test_every_shape_can_be_built_by_its_name(name):
    assert type(build_grower(name, PathModel(), k=4)) is GROWERS[name]
    target = tiny.transformer("llama", layers=3)
    built = build_drafter({"kind": "layer_skip", "layers": 2}, target, policy="fixed", k=4, shape=name)
    assert type(built) is GROWERS[name]


def test_options_reach_the_grower():
    model = PathModel()
    assert build_grower({"kind": "static_tree", "paths": [2, 1]}, model, k=4).paths == ((0,), (1,), (0, 0), (1, 0))
    assert build_grower("static_tree", model, k=4).paths == EAGLE1
    assert build_grower({"kind": "sampled_tree", "replacement": True}, model, k=4).replacement
    tree = build_grower({"kind": "eagle2", "width": 3, "levels": [1, 2]}, model, k=4, policy="ddd", threshold=-1.0)
    assert isinstance(tree, Eagle2) and tree.width == 3 and isinstance(tree.level_rule, Ddd)
    assert tree.level_rule.levels == {1, 2} and tree.level_rule.threshold == -1.0
    tree = build_grower({"kind": "opt_tree", "nodes": 7, "delta": 0.5}, model, k=4)
    assert (tree.nodes, tree.delta) == (7, 0.5)
    fine = {"kind": "chain", "policy": "max_prob", "threshold": 0.5}
    both = build_grower({"kind": "coarse_fine", "coarse": "eagle2", "fine": fine, "fine_rounds": 2}, model, k=4)
    assert isinstance(both.coarse, Eagle2) and both.fine.rule.threshold == 0.5 and both.fine_rounds == 2


@pytest.mark.parametrize(
    "shape, options, words",
    [
        ("eagle", {}, r'unknown shape "eagle" \(did you mean "eagle2"\?\)'),
        ({"kind": "eagle2", "widht": 3}, {}, r'unknown option of shape eagle2 "widht" \(did you mean "width"\?\)'),
        ({"kind": "chain", "width": 3}, {}, 'unknown option of shape chain "width"'),
        ("static_tree", {"policy": "entropy"}, "static_tree: policy entropy cannot stop it; allowed: fixed"),
        ("opt_tree", {"threshold": 0.5}, "opt_tree: takes no threshold, got 0.5"),
        ("eagle2", {"policy": "entropy"}, 'unknown level rule "entropy"'),
        ("eagle2", {"threshold": 0.5}, "level rule fixed: takes neither"),
        ({"paths": [1]}, {}, 'unknown shape "None"'),
    ],
)
def test_what_does_not_fit_is_refused_by_name(shape, options, words):
    with pytest.raises(UserError, match=words):
        build_grower(shape, PathModel(), k=4, **options)


def test_a_lookup_has_no_shape():
    with pytest.raises(UserError, match="so shape eagle2 cannot grow it"):
        build_drafter({"kind": "ngram"}, tiny.transformer("llama"), policy="fixed", k=4, shape="eagle2")


@pytest.mark.parametrize("nodes", [0, -1, 513, 2.5, True, None])
def test_an_impossible_number_of_nodes_is_refused(nodes):
    with pytest.raises(UserError, match="must be an integer between 1 and 512"):
        check_nodes(nodes)
    assert check_nodes(25) == 25


# -- taking turns -----------------------------------------------------------------------------------------------------


class Watched(PathModel):
    started = 0

    def start(self, prompt, features, context):
        self.started += 1


def test_growers_take_turns_over_one_model_which_is_started_once():
    model, rule = Watched(), build_rule("history", 4)
    both = CoarseFine(StaticTree(model, (2, 1)), Chain(model, rule), coarse_rounds=2, fine_rounds=1)
    observed = []
    rule.observe = lambda drafted, accepted: observed.append((drafted, accepted))
    for _ in range(2):
        both.start([0], None, Context(GREEDY, RandomStream(0, "p", "draft"), Target(5), None, frozenset(), 64, 9))
        chains = []
        for _ in range(6):
            proposal = both.propose(Budget(4, 9))
            chains.append(proposal.is_chain)
            both.commit([proposal.tokens[0], 0], None, None)
        assert chains == [False, False, True] * 2
        assert rule.text[0] == 0 and len(rule.text) == 13
    assert model.started == 2 and [drafted for drafted, _ in observed] == [2] * 4
    assert both.rows(4, 9) == 9


def test_two_models_are_refused():
    with pytest.raises(UserError, match="must share one draft model"):
        CoarseFine(StaticTree(PathModel()), SampledTree(PathModel()))
    model = PathModel()
    with pytest.raises(UserError, match="fine_rounds = 0"):
        CoarseFine(StaticTree(model), SampledTree(model), fine_rounds=0)
