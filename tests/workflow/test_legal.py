"""What goes together is told from the configuration alone, and agrees with what the engine declares and does."""

from __future__ import annotations

import itertools

import pytest

from specdec.drafters import NODES_MAX
from specdec.errors import UserError
from specdec.growth import GROWERS, LEVEL_RULES, RULES
from specdec.verifiers import VERIFIERS
from workflow.study import legal
from workflow.study.cells import POLICIES, Cell
from workflow.study.config import experiments, trees
from workflow.study.experiments import all_cells


def test_verifiers_declare_what_is_written_down():
    assert list(legal.VERIFIERS) == list(VERIFIERS)
    for name, rule in VERIFIERS.items():
        assert legal.VERIFIERS[name] == legal.Declared(rule.lossless, rule.laws, rule.shapes, rule.greedy_only)
    assert set(trees.Verifier.__args__) == set(VERIFIERS)


def test_policies_and_shapes_are_those_of_the_engine():
    assert set(POLICIES) == {"ar", *RULES, *LEVEL_RULES}
    assert set(legal.CHAIN_POLICIES) == set(RULES)
    assert {rule for rule, kind in RULES.items() if kind.range} == {*experiments.THRESHOLD_RULES, "cost"}
    assert set(experiments.Rule.__args__) == set(RULES) - {"fixed"}
    assert set(legal.POLICIES) - {"sequoia"} == set(GROWERS)
    assert trees.MAX_NODES == NODES_MAX


@pytest.mark.parametrize("rule", experiments.THRESHOLD_RULES)
def test_a_threshold_of_the_grid_is_one_the_rule_takes(config, rule):
    low, high = RULES[rule].range
    assert all(low <= threshold <= high for threshold in config.experiments.dynamic_k.thresholds.of(rule))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"draft": "ngram", "shape": "eagle2"}, "proposes in one go"),
        ({"draft": "ngram", "policy": "history"}, "proposes in one go"),
        ({"shape": "eagle2", "policy": "cost"}, "policy cost cannot stop the shape eagle2; allowed: fixed, ddd"),
        ({"policy": "ddd"}, "policy ddd cannot stop the shape chain"),
        ({"nodes": 3}, "3 nodes are K = 3"),
        ({"shape": "static", "verifier": "rejection"}, "verifier rejection is not exact for a tree; allowed: chain"),
        ({"shape": "sampled", "temperature": 1.0, "verifier": "block"}, "block is not exact for a tree"),
        ({"temperature": 1.0, "verifier": "greedy"}, "exact at temperature 0 only"),
        ({"shape": "sampled", "temperature": 1.0, "verifier": "spectr"}, "drawn without_replacement"),
        ({"shape": "eagle2", "temperature": 1.0, "verifier": "spectr"}, "drawn point; allowed: with_replacement"),
        ({"shape": "coarse_fine", "temperature": 1.0, "verifier": "spectr"}, "drawn point"),
        ({"verifier": "traversl"}, 'did you mean "traversal"'),
        ({"shape": "eagle"}, 'did you mean "eagle2"'),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_reason(config, change, reason):
    cell = Cell(**({"pair": "smollm2", "draft": "layer_skip", "policy": "fixed", "k": 4} | change))
    with pytest.raises(UserError) as caught:
        legal.check(config, cell)
    assert reason in str(caught.value) and "\n" not in str(caught.value)


def test_every_cell_of_both_sizes_is_legal_and_most_products_are_not(config, changed):
    for size in ("default", "full"):
        for cell in all_cells(changed("study", size)):
            assert legal.check(config, cell) is cell
    found = {True: 0, False: 0}
    for shape, verifier in itertools.product(["chain", *config.shapes], legal.VERIFIERS):
        try:
            legal.check(config, Cell("smollm2", "layer_skip", "fixed", 4, None, 1.0, shape=shape, verifier=verifier))
        except UserError:
            found[False] += 1
        else:
            found[True] += 1
    assert min(found.values()) > 10


def test_measurements_are_needed_where_a_method_reads_them(config):
    needed = {cell.name for cell in all_cells(config) if legal.needs_calibration(config, cell)}
    assert {name.split("-")[1] for name in needed} == {"cost", "ddd"} and len(needed) == 3
    assert legal.needs_calibration(config, Cell("smollm2", "layer_skip", "fixed", 4, shape="sequoia", nodes=8))
