"""Sequoia's dynamic programme against all trees; chains merged into one tree; why branches may not rejoin."""

import itertools
import math

import pytest
import torch

from specdec.errors import UserError
from specdec.growth import StaticTree
from specdec.growth.sequoia import fit
from specdec.growth.trie import merge
from specdec.tree import POINT
from tests.helpers import tiny
from tests.helpers.growing_models import PathModel, draft_tree, paths_of


def every_tree(ranks, nodes, depth):
    """All sets of rank paths closed under parents and earlier siblings."""
    paths = [p for level in range(1, depth + 1) for p in itertools.product(range(ranks), repeat=level)]
    for chosen in itertools.combinations(paths, nodes):
        have = set(chosen)
        if all((len(p) == 1 or p[:-1] in have) and (p[-1] == 0 or (*p[:-1], p[-1] - 1) in have) for p in chosen):
            yield chosen


def tokens(acceptance, paths):
    return 1 + math.fsum(math.prod(acceptance[rank] for rank in path) for path in paths)


@pytest.mark.parametrize("acceptance", [(0.6, 0.2), (0.9, 0.05), (0.4, 0.4), (0.1, 0.7), (0.5, 0.0), (0.0, 0.0)])
@pytest.mark.parametrize("nodes, depth", [(1, 1), (2, 1), (3, 2), (4, 3), (5, 3)])
def test_the_programme_finds_the_best_tree(acceptance, nodes, depth):
    fitted = fit(acceptance, nodes, depth)
    best = max(tokens(acceptance, tree) for n in range(1, nodes + 1) for tree in every_tree(2, n, depth))
    assert fitted.tokens == pytest.approx(best)
    assert fitted.tokens == pytest.approx(tokens(acceptance, fitted.paths))
    assert len(fitted.paths) <= nodes and max(map(len, fitted.paths)) <= depth


@pytest.mark.parametrize("draft_cost, row_cost", [(0.0, 0.0), (0.1, 0.0), (0.3, 0.02), (0.02, 0.2), (5.0, 5.0)])
def test_the_programme_weighs_costs(draft_cost, row_cost):
    acceptance, nodes, depth = (0.7, 0.2), 5, 3

    def verify(rows):
        return 1 + row_cost * rows

    fitted = fit(acceptance, nodes, depth, draft_cost, verify)
    best = min(
        (draft_cost * max(map(len, tree)) + verify(n + 1)) / tokens(acceptance, tree)
        for n in range(1, nodes + 1)
        for tree in every_tree(2, n, depth)
    )
    assert fitted.cost / fitted.tokens == pytest.approx(best)


def test_a_larger_tree_holds_the_largest_products():
    """With falling acceptance the best tree is the set of largest products: another way to the same number."""
    acceptance, nodes, depth = (0.55, 0.2, 0.1, 0.05), 40, 6
    products, level = [], [1.0]
    for _ in range(depth):
        level = [value * a for value in level for a in acceptance]
        products += level
    assert fit(acceptance, nodes, depth).tokens == pytest.approx(1 + math.fsum(sorted(products)[-nodes:]))


def test_fitted_paths_are_a_static_tree():
    fitted = fit((0.6, 0.2, 0.1), 12, 4)
    assert len(draft_tree(StaticTree(PathModel(), fitted.paths), 4, 12)) == 12


@pytest.mark.parametrize("arguments", [((), 3, 2), ((1.2,), 3, 2), ((0.5,), 0, 2), ((0.5,), 3, 0)])
def test_impossible_measurements_are_refused(arguments):
    with pytest.raises(UserError, match="sequoia: "):
        fit(*arguments)


# -- merged chains ----------------------------------------------------------------------------------------------------


def test_common_beginnings_are_merged():
    draft = merge([[1, 2, 3], [1, 2, 4], [1, 5], [6]])
    assert draft.law == POINT
    assert paths_of(draft) == [(1,), (1, 2), (1, 2, 3), (1, 2, 4), (1, 5), (6,)]


def test_a_merged_draft_holds_every_prefix_once():
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        chains = [torch.randint(0, 3, (5,), generator=generator).tolist() for _ in range(6)]
        prefixes = {tuple(chain[:n]) for chain in chains for n in range(1, 6)}
        assert sorted(paths_of(merge(chains))) == sorted(prefixes)
        for nodes, depth in ((4, 5), (9, 2), (1, 1)):
            cut = merge(chains, depth=depth, nodes=nodes)
            assert len(cut) == min(nodes, sum(len(p) <= depth for p in prefixes)) and cut.depth <= depth
            assert set(paths_of(cut)) <= prefixes


def test_one_chain_is_itself_and_no_chain_is_no_draft():
    assert merge([[4, 4, 5]], stopped="no_match").is_chain
    assert not merge([]) and not merge([[], []]) and not merge([[1]], nodes=0)


# -- branches that rejoin ---------------------------------------------------------------------------------------------


def test_a_node_with_two_prefixes_cannot_be_exact():
    """One row for `x` after `a` and after `b`: whatever it sees, it is the target's row of at most one of the texts."""
    model, prompt = tiny.transformer("qwen3"), tiny.prompt_of(6)
    a, b, x = 10, 20, 30

    def row(text):
        return model.forward([*prompt, *text], model.new_cache(64)).logits[-1]

    after_a, after_b = row([a, x]), row([b, x])
    assert (after_a - after_b).abs().max() > 0.1
    for seen in ([1, 0, 1], [0, 1, 1], [1, 1, 1]):
        cache = model.new_cache(64)
        model.forward(prompt, cache, logits=False)
        mask = torch.tensor([[1, 0, 0], [0, 1, 0], seen]).bool()
        shared = model.forward([a, b, x], cache, positions=[6, 6, 7], mask=mask).logits[-1]
        wrong = [text for text, truth in (("a", after_a), ("b", after_b)) if (shared - truth).abs().max() > 0.1]
        assert wrong, "the row is right for both"
        assert len(wrong) == (2 if all(seen) else 1)
    with pytest.raises(TypeError):
        paths_of(merge([[a, x], [b, x]]).__class__((a, b, x), (-1, -1, (0, 1))))
