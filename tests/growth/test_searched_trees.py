"""EAGLE-2 and OPT-Tree against brute force."""

import itertools
import math

import pytest

from specdec.errors import UserError
from specdec.growth import Always, Chain, Ddd, Eagle2, OptTree, build_rule
from specdec.growth.levels import mass
from specdec.sampling import Sampling
from specdec.tree import POINT, ROOT
from tests.helpers.growing_models import PathModel, draft_tree, log_confidence, paths_of


def value(model, paths) -> float:
    """Expected accepted tokens if the draft were right."""
    return math.fsum(math.exp(log_confidence(model, path)) for path in paths)


def every_path(columns, depth):
    return [path for level in range(1, depth + 1) for path in itertools.product(range(columns), repeat=level)]


def beam_search(model, width, depth):
    """The slow EAGLE-2: everything that its expansion makes."""
    beam, made = [()], []
    for _ in range(depth):
        level = []
        for path in beam:
            order = model.after(path).argsort(descending=True)[:width].tolist()
            level += [(*path, token) for token in order]
        made += level
        beam = sorted(level, key=lambda path: -log_confidence(model, path))[:width]
    return made


@pytest.mark.parametrize("width, depth, nodes", [(2, 3, 5), (3, 3, 8), (3, 4, 20), (4, 2, 6), (1, 4, 4), (5, 3, 1)])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.3)])
def test_eagle2_keeps_the_best_connected_part_of_what_it_made(width, depth, nodes, sampling):
    for seed in range(6):
        model = PathModel(seed=seed)
        proposal = draft_tree(Eagle2(model, width, nodes), depth, 99, sampling)
        made = beam_search(model, width, depth)
        best = sorted(made, key=lambda path: -log_confidence(model, path))[:nodes]
        assert sorted(paths_of(proposal)) == sorted(best)
        assert proposal.law == POINT and len(model.widths) == depth


@pytest.mark.parametrize("nodes", range(1, 7))
def test_no_connected_part_of_what_eagle2_made_is_better(nodes):
    """Every subset, connected or not, of a small expansion."""
    model = PathModel(columns=3, seed=4)
    made = beam_search(model, 2, 3)
    best = max(
        value(model, chosen)
        for chosen in itertools.combinations(made, nodes)
        if all(len(path) == 1 or path[:-1] in chosen for path in chosen)
    )
    assert value(model, paths_of(draft_tree(Eagle2(model, 2, nodes), 3, 99))) == pytest.approx(best)


def test_of_equally_confident_nodes_the_shallower_stays():
    class Certain(PathModel):
        def after(self, path):
            logits = super().after(path) * 0 - 1000
            logits[0] = 1000
            return logits

    for grower in (Eagle2(Certain(), 2, 2), OptTree(Certain(), 2, 0.0)):
        proposal = draft_tree(grower, 3, 99)
        assert (proposal.tokens, proposal.parents) == ((0, 0), (-1, 0))


def test_eagle2_feeds_no_more_than_its_beam():
    model = PathModel()
    draft_tree(Eagle2(model, 3, 10), 4, 99)
    assert model.widths == [1, 3, 3, 3]


def test_eagle2_does_not_extend_an_end_of_text():
    model = PathModel(seed=1)
    proposal = draft_tree(Eagle2(model, 3), 3, 99, eos=frozenset({0, 2, 3}))
    assert all(parent == ROOT or proposal.tokens[parent] not in (0, 2, 3) for parent in proposal.parents)
    assert draft_tree(Eagle2(model, 3), 3, 99, eos=frozenset(range(5))).stopped == "end_of_text"


@pytest.mark.parametrize("seed", range(4))
def test_a_beam_of_one_is_the_greedy_chain(seed):
    chain = draft_tree(Chain(PathModel(seed=seed), build_rule("fixed", 5)), 5, 5)
    for grower in (Eagle2(PathModel(seed=seed), 1), OptTree(PathModel(seed=seed), 1, 0.0)):
        tree = draft_tree(grower, 5, 5)
        expected = chain.tokens if isinstance(grower, Eagle2) else chain.tokens[:1]
        assert tree.tokens == expected and tree.is_chain


# -- how many levels --------------------------------------------------------------------------------------------------


def test_mass_is_the_log_of_summed_probabilities():
    assert mass([math.log(0.5), math.log(0.25)]) == pytest.approx(math.log(0.75))
    assert mass([-2000.0, -2000.0]) == pytest.approx(-2000 + math.log(2))


def test_ddd_looks_at_its_levels_only():
    rule = Ddd((2, 4), -0.3)
    poor, rich = [math.log(0.7)], [math.log(0.5), math.log(0.26)]
    assert [rule.more(level, poor) for level in range(1, 6)] == [True, False, True, False, True]
    assert all(rule.more(level, rich) for level in range(1, 6))
    assert all(Always().more(level, poor) for level in range(1, 6))


@pytest.mark.parametrize("threshold", [-0.1, -0.5, -1.0, -2.0, -4.0])
def test_ddd_stops_where_the_beams_mass_is_first_too_small(threshold):
    for seed in range(5):
        model, width, depth = PathModel(seed=seed), 2, 5
        proposal = draft_tree(Eagle2(model, width, level_rule=Ddd((1, 3, 4), threshold)), depth, 99)
        levels = depth
        for level in (1, 3, 4):
            made = [path for path in beam_search(model, width, level) if len(path) == level]
            beam = sorted((log_confidence(model, path) for path in made), reverse=True)[:width]
            if mass(beam) < threshold:
                levels = level
                break
        assert len(model.widths) == levels
        assert proposal.stopped == ("depth" if levels == depth else "ddd")


@pytest.mark.parametrize("options", [{"levels": (0,)}, {"levels": (1.5,)}, {"threshold": 0.1}, {"threshold": math.nan}])
def test_impossible_levels_and_thresholds_are_refused(options):
    with pytest.raises(UserError, match="ddd: "):
        Ddd(**options)


# -- OPT-Tree ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", range(1, 8))
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_opt_tree_has_the_largest_expected_accepted_length(nodes, depth):
    for seed in range(6):
        model = PathModel(columns=4, seed=seed)
        proposal = draft_tree(OptTree(model, nodes, delta=0.0), depth, 99)
        best = sorted((log_confidence(model, path) for path in every_path(4, depth)), reverse=True)[:nodes]
        assert value(model, paths_of(proposal)) == pytest.approx(math.fsum(map(math.exp, best)))
        assert len(proposal) == min(nodes, len(every_path(4, depth)))


def test_opt_tree_beats_every_connected_tree_of_its_size():
    """Not only the sum of the best nodes: every connected tree, listed."""
    model, nodes, depth = PathModel(columns=2, seed=5), 4, 3
    connected = (
        chosen
        for chosen in itertools.combinations(every_path(2, depth), nodes)
        if all(len(path) == 1 or path[:-1] in chosen for path in chosen)
    )
    best = max(value(model, chosen) for chosen in connected)
    assert value(model, paths_of(draft_tree(OptTree(model, nodes, 0.0), depth, 99))) == pytest.approx(best)


@pytest.mark.parametrize("delta", [0.0, 0.05, 0.2, 0.5, 0.8, 2.0])
def test_opt_tree_stops_when_a_level_brings_less_than_it_costs(delta):
    for seed in range(6):
        model, nodes, depth = PathModel(columns=3, seed=seed), 5, 4
        proposal = draft_tree(OptTree(model, nodes, delta), depth, 99)
        reached, before = depth, 0.0
        for level in range(1, depth + 1):
            values = sorted((math.exp(log_confidence(model, path)) for path in every_path(3, level)), reverse=True)
            expected = math.fsum(values[:nodes])
            if expected - before <= delta:
                reached = level
                break
            before = expected
        if proposal.stopped != "complete":
            assert len(model.widths) == reached
            assert proposal.stopped == ("depth" if reached == depth else "delta")
        assert proposal.depth <= reached


def test_opt_tree_extends_no_node_whose_descendants_could_not_stay():
    model = PathModel(columns=5, seed=2)
    draft_tree(OptTree(model, 6, 0.0), 4, 99)
    assert sum(model.widths[1:]) < 6 * 3 and all(width <= 6 for width in model.widths)


@pytest.mark.parametrize("make", [lambda m: Eagle2(m, 4, 30), lambda m: OptTree(m, 30, 0.0), lambda m: Eagle2(m, 4)])
@pytest.mark.parametrize("depth, nodes", [(1, 1), (1, 9), (3, 2), (4, 7), (6, 25)])
def test_budgets_are_respected(make, depth, nodes):
    for seed in range(3):
        assert len(draft_tree(make(PathModel(seed=seed)), depth, nodes)) >= min(nodes, 4)


def test_reduced_vocabularies_propose_the_targets_ids():
    ids = [1, 4, 5, 8, 9]
    for make in (lambda m: Eagle2(m, 3), lambda m: OptTree(m, 8, 0.0)):
        plain = draft_tree(make(PathModel()), 1, 8)
        mapped = draft_tree(make(PathModel(vocabulary=ids)), 1, 8, vocabulary=11)
        assert mapped.tokens == tuple(ids[token] for token in plain.tokens)


@pytest.mark.parametrize("options", [{"width": 0}, {"nodes": 0}, {"width": 2.5}, {"nodes": True}])
def test_impossible_sizes_are_refused(options):
    with pytest.raises(UserError, match="must be an integer of 1 or more"):
        Eagle2(PathModel(), **options)


def test_an_impossible_delta_is_refused():
    for delta in (-0.1, math.nan, math.inf):
        with pytest.raises(UserError, match="opt_tree: delta"):
            OptTree(PathModel(), 5, delta)
