"""Every grower says how likely it holds each path to be: the product of the draft's probabilities along it."""

from __future__ import annotations

import math

import pytest

from specdec.growth import GROWERS, build_grower
from specdec.sampling import GREEDY, Sampling
from specdec.tree import Draft
from tests.helpers.growing_models import PathModel, draft_tree, paths_of


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("shape", [*GROWERS, {"kind": "sampled_tree", "replacement": True}], ids=str)
@pytest.mark.parametrize("vocabulary", [None, (8, 1, 4, 6, 2)], ids=["whole", "reduced"])
def test_confidence_is_the_product_along_the_path(shape, sampling, vocabulary):
    model = PathModel(vocabulary=vocabulary)
    draft = draft_tree(build_grower(shape, model, k=3), 3, 9, sampling, vocabulary=9)
    assert len(draft.confidence) == len(draft) > 0
    for path, confidence in zip(paths_of(draft), draft.confidence, strict=True):
        column = {token: index for index, token in enumerate(vocabulary or range(5))}
        expected = sum(float(model.after(path[:i]).log_softmax(0)[column[token]]) for i, token in enumerate(path))
        assert confidence == pytest.approx(math.exp(expected), rel=1e-6)


def test_a_confidence_belongs_to_a_node():
    with pytest.raises(ValueError, match="2 tokens but 1 confidences"):
        Draft.chain([1, 2], confidence=[0.5])
    assert Draft.chain([1, 2]).confidence == ()
