"""Trees of a fixed shape, drawn and ranked."""

import itertools

import pytest
import torch

from specdec.errors import UserError
from specdec.growth import Chain, SampledTree, StaticTree, build_rule
from specdec.growth.rank_paths import EAGLE1, PRESETS, fitting, rank_paths, symmetric
from specdec.sampling import Sampling, warp
from specdec.tree import POINT, ROOT, WITH_REPLACEMENT, WITHOUT_REPLACEMENT
from tests.helpers.enumerate import walk
from tests.helpers.growing_models import PathModel, draft_tree, paths_of

HOT = Sampling(temperature=1.0)


# -- shapes -----------------------------------------------------------------------------------------------------------


def test_eagle1_has_25_nodes_of_five_levels():
    assert len(EAGLE1) == len(set(EAGLE1)) == 25
    assert [sum(len(path) == level for path in EAGLE1) for level in range(1, 7)] == [4, 8, 8, 3, 2, 0]
    assert rank_paths("eagle1") == rank_paths([list(path) for path in EAGLE1]) == EAGLE1


def test_widths_give_every_path():
    assert rank_paths([3, 2, 1]) == PRESETS["medusa"] == symmetric((3, 2, 1))
    assert set(symmetric((3, 2))) == {(a,) for a in range(3)} | set(itertools.product(range(3), range(2)))
    assert len(symmetric((3, 2, 1))) == 3 + 6 + 6


@pytest.mark.parametrize("depth", range(1, 6))
@pytest.mark.parametrize("nodes", [1, 2, 7, 24, 25, 99])
def test_a_part_of_a_shape_is_closed_under_parents_and_within_bounds(depth, nodes):
    for shape in (EAGLE1, symmetric((2, 2, 2)), ((0,), (0, 0), (1,), (0, 0, 2), (1, 3))):
        part = fitting(shape, depth, nodes)
        assert len(part) == min(nodes, sum(len(path) <= depth for path in shape))
        assert all(len(path) <= depth and (len(path) == 1 or path[:-1] in part) for path in part)


@pytest.mark.parametrize(
    "shape, words",
    [
        ("eagle", r'unknown tree "eagle" \(did you mean "eagle1"\?\)'),
        ([], "at least one node"),
        ([2, 0], "width 0: must be"),
        ([[0], [0]], r"path \[0\] stands there twice"),
        ([[0], [1, 0], [1]], r"path \[1, 0\]: its parent \[1\] must stand before it"),
        ([[0], [-1]], r"path \[-1\]: must be a list of ranks"),
        ([[]], r"path \[\]: must be"),
    ],
)
def test_a_shape_that_is_none_is_refused(shape, words):
    with pytest.raises(UserError, match=words):
        StaticTree(PathModel(), shape)


def test_a_sampled_shape_may_not_leave_a_draw_out():
    with pytest.raises(UserError, match=r"path \[2\]: the draw before it"):
        SampledTree(PathModel(), [[0], [2]])


# -- ranked -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["eagle1", (3, 2, 1), ((0,), (2,), (0, 1), (2, 0), (0, 1, 3))])
@pytest.mark.parametrize("sampling", [Sampling(), HOT])
def test_each_node_is_the_token_of_its_rank(shape, sampling):
    model = PathModel(seed=3)
    proposal = draft_tree(StaticTree(model, shape), 5, 40, sampling)
    expected = set()
    for path in rank_paths(shape):
        text = ()
        for rank in path:
            text += (int(model.after(text).argsort(descending=True)[rank]),)
        expected.add(text)
    assert set(paths_of(proposal)) == expected and len(proposal) == len(expected)
    assert proposal.law == POINT and proposal.q is None


def test_siblings_stand_in_order_of_rank():
    model = PathModel(seed=3)
    proposal = draft_tree(StaticTree(model, (4, 3)), 2, 40)
    for node in range(-1, 4):
        tokens = [proposal.tokens[child] for child in proposal.children(node)]
        text = () if node == ROOT else (proposal.tokens[node],)
        assert tokens == model.after(text).argsort(descending=True)[: len(tokens)].tolist()


def test_ranks_beyond_the_vocabulary_are_left_out():
    assert len(draft_tree(StaticTree(PathModel(columns=3), (5, 4)), 2, 99)) == 3 + 9


def test_equal_logits_rank_by_id():
    class Flat(PathModel):
        def after(self, path):
            return torch.tensor([0.0, 1.0, 1.0, 1.0, 0.0])

    assert draft_tree(StaticTree(Flat(), (4,)), 1, 9).tokens == (1, 2, 3, 0)
    assert draft_tree(StaticTree(Flat(), (1, 1)), 2, 9).tokens == (1, 1)


def test_only_nodes_with_children_are_fed():
    model = PathModel()
    draft_tree(StaticTree(model, "eagle1"), 5, 25)
    assert model.widths == [1, 4, 4, 1, 1]


@pytest.mark.parametrize("grower", [StaticTree, SampledTree])
@pytest.mark.parametrize("sampling", [Sampling(), HOT])
def test_nothing_hangs_under_an_end_of_text(grower, sampling):
    for seed in range(6):
        proposal = draft_tree(grower(PathModel(seed=seed), (3, 2, 2)), 3, 99, sampling, eos=frozenset({1, 2}))
        assert not any(parent != ROOT and proposal.tokens[parent] in (1, 2) for parent in proposal.parents)


def test_why_it_stopped():
    tree = StaticTree(PathModel(), (2, 1, 1))
    assert [draft_tree(tree, depth, 9).stopped for depth in (2, 3, 4)] == ["depth", "depth", "shape"]
    assert draft_tree(StaticTree(PathModel(room=2), (2, 1, 1)), 3, 9).stopped == "context"
    assert draft_tree(tree, 3, 9, eos=frozenset(range(5))).stopped == "end_of_text"


@pytest.mark.parametrize("grower", [StaticTree, SampledTree])
def test_a_reduced_vocabulary_proposes_the_targets_ids(grower):
    ids = [1, 4, 5, 8, 9]
    for sampling in (Sampling(), HOT):
        proposal = draft_tree(grower(PathModel(vocabulary=ids), (3, 2)), 2, 9, sampling, vocabulary=11)
        assert set(proposal.tokens) <= set(ids)
        if proposal.q is not None:
            assert proposal.q.shape == (9, 11)
            assert not proposal.q[:, [i for i in range(11) if i not in ids]].any()


# -- drawn ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_each_row_is_the_law_in_force_when_its_node_was_drawn(replacement, temperature):
    sampling = Sampling(temperature=temperature, top_k=4)
    for seed in range(5):
        model = PathModel(seed=seed)
        proposal = draft_tree(SampledTree(model, (3, 2, 1), replacement), 3, 99, sampling)
        assert proposal.law == (WITH_REPLACEMENT if replacement else WITHOUT_REPLACEMENT) and len(proposal) == 15
        texts = paths_of(proposal)
        for node in range(-1, len(proposal)):
            law = warp(model.after(() if node == ROOT else texts[node]), sampling)
            for child in proposal.children(node):
                torch.testing.assert_close(proposal.q[child], law)
                assert proposal.q[child][proposal.tokens[child]] > 0
                if not replacement:
                    law = law.clone()
                    law[proposal.tokens[child]] = 0
                    law = law / law.sum()


@pytest.mark.parametrize("replacement", [False, True])
def test_children_are_drawn_with_the_probability_of_their_rows(replacement):
    """Every ordered pair of draws, walked branch by branch."""
    model = PathModel(columns=3)
    q = model.after(()).softmax(0).tolist()

    def run(branch):
        return draft_tree(SampledTree(model, (2,), replacement), 1, 2, HOT, stream=branch).tokens

    law = walk(run)
    for a, b in itertools.product(range(3), repeat=2):
        expected = q[a] * q[b] if replacement else (0.0 if a == b else q[a] * q[b] / (1 - q[a]))
        assert abs(law.get((a, b), 0.0) - expected) < 1e-12


def test_repeated_draws_are_nodes_with_subtrees_of_their_own_and_are_fed_once():
    found = False
    for seed in range(8):
        model = PathModel(columns=2, seed=seed)
        proposal = draft_tree(SampledTree(model, (3, 2), replacement=True), 2, 9, HOT)
        assert len(proposal) == 9 and [len(proposal.children(node)) for node in range(3)] == [2, 2, 2]
        found |= len(set(paths_of(proposal))) < 9
        assert model.widths[1] == len(set(proposal.tokens[:3])) < 3
    assert found


def test_drawing_ends_when_no_mass_is_left():
    proposal = draft_tree(SampledTree(PathModel(columns=5), (4,)), 1, 9, Sampling(temperature=1.0, top_k=2))
    assert len(proposal) == 2
    assert proposal.q[1].max() == 1.0


def test_how_many_are_drawn_does_not_depend_on_other_branches():
    """Whether a branch ends the text changes nothing beside it: the shape is cut before anything is drawn."""
    for nodes in range(3, 9):
        shape = {}
        for seed in range(12):
            proposal = draft_tree(SampledTree(PathModel(seed=seed), (2, 2, 1)), 3, nodes, HOT, eos=frozenset({0, 1}))
            for node in (0, 1):
                if proposal.tokens[node] not in (0, 1):
                    shape.setdefault(node, set()).add(len(proposal.children(node)))
        assert all(len(counts) == 1 for counts in shape.values())


def test_a_greedy_draft_takes_the_likeliest():
    ranked = draft_tree(StaticTree(PathModel(), (3, 2)), 2, 9)
    for sampling in (Sampling(), Sampling(temperature=1.0, draft_temperature=0.0)):
        proposal = draft_tree(SampledTree(PathModel(), (3, 2)), 2, 9, sampling)
        assert (proposal.tokens, proposal.parents, proposal.law) == (ranked.tokens, ranked.parents, POINT)


@pytest.mark.parametrize("sampling", [Sampling(), HOT])
def test_a_width_of_one_is_the_chain(sampling):
    model = PathModel(seed=2)
    chain = draft_tree(Chain(model, build_rule("fixed", 4)), 4, 4, sampling)
    tree = draft_tree(SampledTree(model, (1, 1, 1, 1)), 4, 4, sampling)
    assert (tree.tokens, tree.parents, tree.law, tree.stopped) == (chain.tokens, chain.parents, chain.law, "depth")
    assert (tree.q is None) == (chain.q is None) and (tree.q is None or torch.equal(tree.q, chain.q))
