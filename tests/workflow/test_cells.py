"""A cell has one path and a path one cell; experiments share what they have in common."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.errors import UserError
from workflow.study import legal, tables
from workflow.study.cells import LONGEST_PATH, Cell
from workflow.study.config import load_mapping
from workflow.study.experiments import EXPERIMENTS, TABLES, all_cells, cells_for_table, cells_of

words = st.from_regex(r"[a-z][a-z0-9_]{0,31}", fullmatch=True).filter(lambda word: word != "none")
numbers = st.integers(0, 20_000_000).map(lambda millionths: millionths / 1_000_000)


@st.composite
def cells(draw) -> Cell:
    pair = draw(st.from_regex(r"[a-z0-9][a-z0-9_]{0,23}", fullmatch=True))
    temperature, seed = draw(numbers), draw(st.integers(0, 2**31 - 1))
    policy = draw(st.sampled_from(["ar", "fixed", "max_prob", "margin", "entropy", "history"]))
    if policy == "ar":
        return Cell(pair, "none", "ar", 0, None, temperature, seed)
    threshold = draw(numbers) if policy in ("max_prob", "margin", "entropy") else None
    rest = {"shape": draw(st.sampled_from(["chain", "eagle2"])), "nodes": draw(st.none() | st.integers(1, 64))}
    rest["verifier"] = draw(st.sampled_from([None, "greedy", "rejection", "block"]))
    rest["dtype"] = draw(st.sampled_from(["bfloat16", "float32"]))
    return Cell(pair, draw(words), policy, draw(st.integers(1, 32)), threshold, temperature, seed, **rest)


@given(cells())
def test_path_to_cell_to_path(cell: Cell):
    assert Cell.from_path(cell.path) == cell
    assert Cell.from_path(f"/some where/{cell.path}") == cell
    assert len(cell.path) <= LONGEST_PATH
    assert cell.path.count("/") == 3


def test_spellings_of_a_threshold_are_one_path():
    paths = {Cell("p", "d", "max_prob", 8, threshold, 0).path for threshold in (0.3, 0.30, 3e-1, float("0.300"))}
    assert paths == {"results/cells/p/d-max_prob-k8-h0.3-t0-s0.parquet"}


def test_usual_values_are_left_out_and_others_are_not():
    plain = Cell("p", "d", "fixed", 4)
    assert plain.name == "d-fixed-k4-t0-s0"
    assert (plain.shape, plain.nodes, plain.verifier, plain.dtype) == ("chain", 4, "greedy", "bfloat16")
    assert Cell("p", "d", "fixed", 4, temperature=1).verifier == "rejection"
    other = Cell("p", "d", "fixed", 4, temperature=1.0, shape="eagle2", nodes=16, verifier="block", dtype="float32")
    assert other.name == "d-fixed-k4-t1-s0-shape_eagle2-nodes_16-verifier_block-dtype_float32"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "d",
        "d-fixed-k4",
        "d-fixed-k04-t0-s0",
        "d-fixed-k4-t0.0-s0",
        "d-fixed-k4-t0-s0-dtype_bfloat16",
        "D-fixed-k4-t0-s0",
    ],
)
def test_other_spellings_are_no_cells(name: str):
    with pytest.raises(UserError):
        Cell.from_name("p", name)


@pytest.mark.parametrize(
    "arguments",
    [
        ("p", "none", "fixed", 4),
        ("p", "d", "ar", 0),
        ("p", "none", "ar", 1),
        ("p", "d", "fixed", 33),
        ("p", "d", "fixed", 0),
        ("p", "d", "max_prob", 4),
        ("p", "d", "history", 4, 0.3),
        ("p", "d", "max_prop", 4, 0.3),
        ("p", "d", "max_prob", 4, 0.1234567),
        ("p", "d", "max_prob", 4, -0.5),
        ("p", "d-e", "fixed", 4),
    ],
)
def test_impossible_cells_are_refused(arguments: tuple):
    with pytest.raises(UserError):
        Cell(*arguments)


def test_the_default_study(config):
    names = [cell.name for cell in all_cells(config)]
    # the baseline, four drafts at four depths, four dynamic rules for three of them, four others at one depth and two
    # of them at their calibrated one, every draft on prompts of its own kind, trees, the ablation, rules of
    # verification at temperature 1, and float32
    assert len(names) == len(set(names)) == 1 + 4 * 4 + 3 * 4 + 5 + 9 + 4 + 2 + 9 + 1
    assert names[0] == "none-ar-k0-t0-s0"
    assert names == [cell.name for cell in all_cells(config)]


def test_shared_cells_are_the_same_file(config):
    fixed, dynamic = cells_of(config, "fixed_k"), cells_of(config, "dynamic_k")
    assert set(fixed) & set(dynamic) == {cell for cell in fixed if cell.draft != "ngram"}
    assert len(all_cells(config)) < sum(len(cells_of(config, name)) for name in EXPERIMENTS)


def test_the_trees_share_cells_with_depth_and_ablation(config):
    trees, ablation = cells_of(config, "trees"), cells_of(config, "ablation")
    chain = Cell("smollm2", "eagle3", "fixed", 8)
    assert chain in trees and chain in cells_of(config, "fixed_k"), "a chain of 8 nodes is K = 8"
    assert {cell.shape for cell in set(trees) & set(ablation)} == {"chain", "eagle2", "opt_tree"}
    assert {cell.nodes for cell in trees if cell.policy != "ar"} == {8}
    rules = {cell.verifier for cell in cells_of(config, "verification") if cell.policy != "ar"}
    assert rules == set(legal.VERIFIERS) - {"greedy"}
    assert {cell.temperature for cell in cells_of(config, "verification")} == {1.0}


def test_full_sweeps_budgets_temperatures_and_rules(changed):
    config = changed("study", "full")
    assert {cell.nodes for cell in cells_of(config, "trees") if cell.policy != "ar"} == {4, 8, 16}
    assert {cell.temperature for cell in cells_of(config, "verification")} == {0.5, 1.0}
    assert {cell.policy for cell in cells_of(config, "dynamic_k")} >= {"svip", "adaedl", "pid", "cost", "token_type"}


def test_a_tree_draft_of_its_own(changed):
    config = changed("pairs/smollm2/drafts/other", {"kind": "layer_skip", "layers": 12})
    data = config.model_dump()
    data["pairs"]["smollm2"]["trees"] = "other"
    config = load_mapping(data)
    assert {cell.draft for cell in cells_of(config, "ablation")} == {"none", "other"}
    assert {cell.draft for cell in cells_of(config, "dynamic_k")} == {"none", "eagle3", "eagle3_lookup", "small"}


def test_at_temperature_0_one_seed_and_above_all(changed):
    config = changed("study", "full")
    baselines = [cell for cell in cells_of(config, "fixed_k") if cell.policy == "ar"]
    assert [(cell.temperature, cell.seed) for cell in baselines] == [(0, 0), (1, 0), (1, 1), (1, 2)]
    assert all(cell.temperature == 0 for cell in cells_of(config, "losslessness"))


def test_the_draft_of_trees_is_compared_in_float32(config, changed):
    def drafts(config):
        return [cell.draft for cell in cells_of(config, "losslessness") if cell.dtype == "float32"]

    assert drafts(config) == ["eagle3"]
    assert drafts(changed("pairs/smollm2/trees", None)) == ["small"]


def test_float32_in_force_stands_in_the_path(changed):
    names = [cell.name for cell in all_cells(changed("run/dtype", "float32"))]
    assert all(name.endswith("-dtype_float32") for name in names)


def test_unknown_names_are_refused_with_the_nearest(config):
    with pytest.raises(UserError, match="fixed_k"):
        cells_of(config, "fixed")
    with pytest.raises(UserError, match="dynamic_k"):
        cells_for_table(config, "dynamic")


def test_every_table_has_a_maker():
    assert sorted(tables.BUILDERS) == sorted(TABLES)
