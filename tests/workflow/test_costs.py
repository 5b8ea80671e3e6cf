"""Measuring a pair on tiny random models: the rows that come out, not the times in them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from specdec.errors import UserError
from specdec.models.config import ModelConfig
from tests.helpers import tiny
from tests.workflow.conftest import put
from workflow.study import columns, costs, profiling, timing_only
from workflow.study.cells import Cell
from workflow.study.config import load_mapping
from workflow.study.long_context import Window, measure, rows_of, straight
from workflow.study.measure_columns import TIMING_ONLY
from workflow.study.run_cell import Bench


@pytest.fixture(scope="module")
def small(tmp_path_factory, raw):
    """The other pair's entry on tiny models, one of whose drafts is missing."""
    folder = tmp_path_factory.mktemp("models")
    tiny.checkpoint(folder / "target", "qwen3", layers=3, max_position_embeddings=1024)
    tiny.checkpoint(folder / "draft", "qwen3", layers=1, max_position_embeddings=1024)
    data = put(raw, "pair", "qwen3")
    data["models"]["qwen3-1.7b"]["path"] = str(folder / "target")
    data["models"]["qwen3-0.6b"]["path"] = str(folder / "draft")
    data["pairs"]["qwen3"]["drafts"]["layer_skip"]["layers"] = 1
    data["pairs"]["qwen3"]["drafts"]["head"] = {"kind": "eagle", "head": str(folder / "nowhere")}
    data["run"] |= {"dtype": "float32", "threads": 1}
    data["experiments"]["cost_model"] = {"widths": [1, 4], "contexts": [16, 48, 4096], "repeats": 3}
    data["experiments"]["profile"] = {"tokens": 4, "k": 2, "widths": [1, 4], "context": 16, "repeats": 3}
    return load_mapping(data)


def test_target_and_drafts_are_timed_and_a_missing_one_says_so(small):
    rows = costs.cost_rows(small)
    columns.to_arrow("cost_model", rows)
    timed = [row for row in rows if row["ms"] is not None]
    places = {(row["model"], row["role"], row["width"], row["context"]) for row in timed}
    names = (("qwen3-1.7b", "target"), ("small", "draft"), ("layer_skip", "draft"), ("ngram", "draft"))
    # 4,096 tokens are more than the target has positions for
    assert places == {(*name, width, context) for name in names for width in (1, 4) for context in (16, 48)}
    assert all(row["ms_low"] <= row["ms"] <= row["ms_high"] for row in timed)
    units = {row["context"]: row["ms"] for row in timed if row["role"] == "target" and row["width"] == 1}
    assert all(row["cost_ratio"] == pytest.approx(row["ms"] / units[row["context"]]) for row in timed)
    absent = {row["model"]: row["note"] for row in rows if row["ms"] is None}
    assert absent["head"].startswith("missing: ") and "nowhere" in absent["head"]
    # heads that the pair names and nobody has trained here
    assert set(absent) == {"head", "eagle3", "eagle3_public"}


def test_contexts_that_no_position_is_left_for_are_refused(small):
    settings = small.experiments.cost_model.model_copy(update={"contexts": [4096]})
    config = small.model_copy(update={"experiments": small.experiments.model_copy(update={"cost_model": settings})})
    with pytest.raises(UserError, match="contexts is \\[4096\\].*end at 1024"):
        costs.cost_rows(config)


def test_widths_without_one_token_are_refused(raw):
    with pytest.raises(UserError, match="1 must be among the widths"):
        load_mapping(put(raw, "experiments/cost_model", {"widths": [2, 4]}))


def test_the_random_weight_pair_has_the_published_shapes():
    target, draft = (timing_only.shape_of(name) for name in (timing_only.TARGET, timing_only.DRAFT))
    shapes = [timing_only.expected_shapes(config).values() for config in (target, draft)]
    sizes = [sum(map(math.prod, found)) for found in shapes]
    assert sizes == [1_720_574_976, 596_049_920]
    assert timing_only.shortage((timing_only.TARGET,) * 1000, "bfloat16").endswith("are free")


def test_random_weight_rows_are_marked(small, monkeypatch):
    def tiny_model(name, dtype, device):
        config = ModelConfig.from_dict(tiny.reference("qwen3", 2, max_position_embeddings=1024).config.to_dict(), "t")
        return timing_only.fill(replace(config, layers=2 if name == timing_only.TARGET else 1), dtype, device)

    monkeypatch.setattr(costs, "random_model", tiny_model)
    monkeypatch.setattr(costs, "shortage", lambda names, dtype: None)
    rows = costs._timing_only(small)
    assert {(row["model"], row["role"], row["note"]) for row in rows} == {
        (timing_only.TARGET, "target", TIMING_ONLY),
        (timing_only.DRAFT, "draft", TIMING_ONLY),
    }
    monkeypatch.setattr(costs, "shortage", lambda names, dtype: "too little")
    rows = costs._timing_only(small)
    assert [row["note"] for row in rows] == ["missing: too little"] * 2


# -- profile --------------------------------------------------------------------------------------


def test_profile_tables_of_both_arms(small, monkeypatch):
    monkeypatch.setattr(profiling, "bandwidth_of", lambda device, threads: profiling.Limits(1e10, 0))
    monkeypatch.setattr(profiling, "matmul_peak", lambda dtype, size, device: 1e11)
    tables = profiling.profile_tables(small)
    for name, rows in tables.items():
        columns.to_arrow(name, rows)
    for arm in ("ar", "speculative"):
        own = [row for row in tables["operators"] if row["arm"] == arm]
        assert sum(row["share"] for row in own) == pytest.approx(1)
        assert {row["phase"] for row in own} == {"prefill", "draft", "target", "other"}
        assert {"products", "python"} <= {row["group"] for row in own}
    parts = {(row["arm"], row["part"]) for row in tables["memory"]}
    usual = ("target_weights", "cache", "activations")
    shared = {(arm, part) for arm in ("ar", "speculative") for part in usual}
    assert parts == shared | {("speculative", "draft_weights")}
    assert all(row["bytes"] > 0 for row in tables["memory"])
    assert [row["point"] for row in tables["roofline"]] == ["memory_limit", "arithmetic_limit", "ar", "verification"]


def test_a_pass_reads_each_weight_once_and_multiplies_it_for_every_token():
    model = tiny.transformer("llama-tied")
    c, weights = model.config, model.weight_bytes()
    size, operations = profiling.pass_work(model, 1, 0)
    row = 2 * c.layers * c.kv_heads * c.head_dim * 8
    assert size == weights + row and operations == 2 * weights // 8 + 4 * c.layers * c.heads * c.head_dim
    wide, more = profiling.pass_work(model, 3, 10)
    assert wide == weights + 13 * row
    assert more == 3 * 2 * weights // 8 + 4 * c.layers * c.heads * c.head_dim * (11 + 12 + 13)


def test_the_nearer_limit_counts():
    limits = profiling.Limits(bytes_per_s=10, operations_per_s=100)
    assert limits.seconds(100, 100) == 10 and limits.seconds(10, 1000) == 10
    found = profiling.Median(20.0, 19.0, 21.0)
    assert profiling.point_row(limits, 1, 0, (100, 100), found)["share_of_limit"] == 0.5


def test_operators_are_sorted_into_kinds():
    kinds = {"mkldnn::_linear_pointwise": "products", "native::products": "products", "native::attention": "attention"}
    kinds |= {"native::rows": "rows", "native::threads": "small", "python": "python", "aten::select": "small"}
    assert {name: profiling.group_of(name) for name in kinds} == kinds


# -- long texts -----------------------------------------------------------------------------------


def test_generations_of_all_lengths_advance_by_turns():
    model = tiny.transformer("llama")
    order = []
    forward = model.forward

    def watched(tokens, cache, **options):
        if len(tokens) == 1:
            order.append(cache.length)
        return forward(tokens, cache, **options)

    model.forward = watched
    try:
        windows = measure(model, [10, 40], outputs=6, window=3)
    finally:
        del model.forward
    assert order == [9, 39, 10, 40, 11, 41, 12, 42, 13, 43, 14, 44]
    found = [(window.context, window.generated, len(window.seconds)) for window in windows]
    assert found == [(11, 1, 2), (14, 4, 3), (41, 1, 2), (44, 4, 3)]


def rows_from(time):
    windows = [Window(n, 1, (time(n),) * 5) for n in (100, 300, 500, 700, 900)]
    return rows_of(windows, weights=1000, row=2)


def test_linear_growth_passes_and_faster_growth_does_not():
    linear, square = rows_from(lambda n: 1 + 0.01 * n), rows_from(lambda n: 1 + 0.0001 * n * n)
    assert [row["grows_no_faster"] for row in linear] == [None, None, None, True, True]
    assert [row["grows_no_faster"] for row in square] == [None, None, None, False, False]
    assert linear[-1]["bytes_ratio"] == (1000 + 1800) / (1000 + 200)
    assert linear[-1]["time_ratio"] == pytest.approx(10 / 2)
    assert linear[-1]["ns_per_cached_kb"] == pytest.approx(1e12 * 8 / 1600)
    columns.to_arrow("long_context", linear)


def test_a_falling_line_is_level_and_one_place_is_no_line():
    assert straight([(0, 3.0), (2, 1.0)])(100) == 2.0
    assert straight([(1, 3.0), (1, 1.0)]) is None


def test_a_bench_can_share_its_target(small):
    first = Bench.of(small, Cell("qwen3", "none", "ar", 0, dtype="float32"))
    second = Bench.of(small, Cell("qwen3", "small", "fixed", 2, dtype="float32"), target=first.target)
    assert second.target is first.target
    ids = [5, 6, 7, 8]
    plain, drafted = first.endless(None, ids, 9).run(), second.endless(second.drafter(), ids, 9).run()
    assert plain.output_ids == drafted.output_ids and len(plain.output_ids) == 9
