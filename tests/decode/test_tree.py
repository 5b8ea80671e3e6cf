"""Drafts as trees."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.tree import POINT, WITH_REPLACEMENT, WITHOUT_REPLACEMENT, Draft


@st.composite
def trees(draw):
    count = draw(st.integers(0, 12))
    parents = tuple(draw(st.integers(-1, j - 1)) for j in range(count))
    return Draft(tuple(range(count)), parents)


def path(tree: Draft, node: int) -> list[int]:
    nodes = []
    while node >= 0:
        nodes.insert(0, node)
        node = tree.parents[node]
    return nodes


@given(trees())
def test_a_row_sees_the_root_its_ancestors_and_itself_alone(tree):
    mask = tree.mask()
    assert mask[0].tolist() == [True] + [False] * len(tree)
    for node in range(len(tree)):
        seen = {row - 1 for row in range(len(tree) + 1) if mask[node + 1, row]}
        assert seen == {-1, *path(tree, node)}


@given(trees(), st.integers(0, 50))
def test_depths_and_positions_count_ancestors(tree, root):
    assert list(tree.depths) == [len(path(tree, node)) for node in range(len(tree))]
    assert tree.positions(root) == [root, *(root + depth for depth in tree.depths)]
    assert tree.depth == max(tree.depths, default=0)


@given(trees())
def test_children_are_in_draw_order_and_every_node_has_one_parent(tree):
    found = [child for node in range(-1, len(tree)) for child in tree.children(node)]
    assert sorted(found) == list(range(len(tree)))
    assert all(tree.children(node) == sorted(tree.children(node)) for node in range(-1, len(tree)))


def test_a_chain_is_a_tree_with_one_child_a_node():
    chain = Draft.chain([5, 6, 7])
    assert chain.is_chain and chain.parents == (-1, 0, 1) and chain.depth == 3
    assert torch.equal(chain.mask(), torch.ones(4, 4).tril().bool())
    assert Draft().is_chain and not Draft() and Draft.chain([]).law == POINT
    assert not Draft((1, 2), (-1, -1)).is_chain


@pytest.mark.parametrize("parents", [(0,), (-1, 1), (-2,), (-1, 2, 0)])
def test_parents_come_before_their_children(parents):
    with pytest.raises(ValueError, match="parents come before"):
        Draft(tuple(range(len(parents))), parents)


def test_equal_siblings_are_refused_where_the_law_cannot_make_them():
    q = torch.full((2, 3), 1 / 3)
    for law, rows in ((POINT, None), (WITHOUT_REPLACEMENT, q)):
        with pytest.raises(ValueError, match="equal siblings"):
            Draft((1, 1), (-1, -1), law, rows)
    assert len(Draft((1, 1), (-1, -1), WITH_REPLACEMENT, q)) == 2
    assert len(Draft((1, 1), (-1, 0))) == 2  # the same token deeper is another text


def test_a_sampled_law_has_its_rows_and_a_point_law_has_none():
    q = torch.full((1, 3), 1 / 3)
    for law, rows in ((POINT, q), (WITHOUT_REPLACEMENT, None)):
        with pytest.raises(ValueError, match="q rows"):
            Draft((1,), (-1,), law, rows)
    with pytest.raises(ValueError, match="none of"):
        Draft((1,), (-1,), "beam", q)
    with pytest.raises(ValueError, match="2 tokens but 1 parents"):
        Draft((1, 2), (-1,))
