"""Figures read tables only, say the same in the same bytes, and survive tables with holes."""

from __future__ import annotations

import csv
import hashlib
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from specdec.errors import UserError
from tests.helpers import measured_tables
from tests.workflow import synthetic
from tests.workflow.conftest import ROOT, put
from workflow.study import columns, figures, tables
from workflow.study.config import StudyConfig, load_mapping
from workflow.study.experiments import all_cells
from workflow.study.figures import style
from workflow.study.plan import FIGURES


def make_tables(root: Path, config: StudyConfig) -> Path:
    synthetic.write_cells(root, config, all_cells(config), ROOT)
    synthetic.write_heads(root, config)
    folder = root / "results" / "tables"
    measured_tables.write(folder, measured_tables.every({"layer_skip": 0.8, "ngram": 0.01}))
    for name in sorted({table for needed in FIGURES.values() for table in needed if table in columns.COLUMNS}):
        columns.write(tables.build(config, name, root), folder / f"{name}.csv", folder / f"{name}.parquet")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory, raw) -> Path:
    return make_tables(tmp_path_factory.mktemp("study"), load_mapping(raw))


def test_every_planned_figure_has_a_maker():
    assert set(figures.FIGURES) == set(FIGURES)


@pytest.mark.parametrize("name", list(FIGURES))
def test_a_figure_fits_the_column_and_carries_no_date(folder, tmp_path, name):
    figures.draw(name, folder, tmp_path / "a.svg")
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    width = float(root.get("width").removesuffix("pt"))
    assert width == pytest.approx(style.WIDTH * 72, abs=1)
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "dc:date" not in text
    assert "<image" not in text, "a figure is drawn, not painted"


def test_two_processes_draw_the_same_bytes(folder, tmp_path):
    code = (
        "import sys; from workflow.study.figures import FIGURES, draw\n"
        "for name in FIGURES: draw(name, sys.argv[1], f'{sys.argv[2]}/{name}.svg')"
    )
    found = []
    for run in ("one", "two"):
        out = tmp_path / run
        subprocess.run([sys.executable, "-c", code, str(folder), str(out)], cwd=ROOT, check=True)
        found.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.iterdir())})
    assert found[0] == found[1]
    assert len(found[0]) == len(FIGURES)


def test_figures_on_one_page_share_no_clip_paths(folder, tmp_path):
    seen: set[str] = set()
    for name in FIGURES:
        figures.draw(name, folder, tmp_path / "a.svg")
        ids = set(re.findall(r'<clipPath id="(\w+)"', (tmp_path / "a.svg").read_text(encoding="utf-8")))
        assert ids and not ids & seen
        seen |= ids


def test_several_temperatures_and_seeds(tmp_path, raw):
    data = put(raw, "studies/default/temperatures", [0.0, 1.0])
    data["studies"]["default"]["seeds"] = [0, 1]
    data["experiments"]["fixed_k"]["k"] = [1, 4]
    data["experiments"]["dynamic_k"]["rules"] = ["margin", "history"]
    data["studies"]["default"] |= {"rules": None, "trees": {"contenders": None, "nodes": None}}
    tables_folder = make_tables(tmp_path, load_mapping(data))
    for name in FIGURES:
        figures.draw(name, tables_folder, tmp_path / f"{name}.svg")


def test_holes_are_left_open(tmp_path, folder):
    """Everything looped: ratios are empty, and the figure is still drawn."""
    for name in sorted({table for needed in FIGURES.values() for table in needed}):
        text = (folder / f"{name}.csv").read_text(encoding="utf-8")
        rows = list(csv.reader(text.splitlines()))
        if name in ("confidence", "example_tree", "training_curves"):
            rows = rows[:1]  # nothing drafted: no rows at all; and no draft was trained
        known = {*columns.CELL, *columns.FORM, "prompt_set", "category"}
        keep = [column in known for column in rows[0]]
        rows[1:] = [[value if kept else "" for kept, value in zip(keep, row, strict=True)] for row in rows[1:]]
        if name == "positions":
            place = rows[0].index("position")
            rows[1:] = [[*row[:place], "1", "0", "0", "", ""] for row in rows[1:]]
        (tmp_path / f"{name}.csv").write_text("\n".join(",".join(row) for row in rows) + "\n", encoding="utf-8")
    for name in (name for name, needed in FIGURES.items() if set(needed) <= set(columns.COLUMNS)):
        figures.draw(name, tmp_path, tmp_path / f"{name}.svg")


def test_missing_tables_and_unknown_figures(tmp_path, folder):
    with pytest.raises(UserError, match="fixed_k.csv: no such table"):
        figures.draw("speedup_by_k", tmp_path, tmp_path / "a.svg")
    with pytest.raises(UserError, match="speedup_by_k"):
        figures.draw("speedup_by_kk", folder, tmp_path / "a.svg")
    (tmp_path / "fixed_k.csv").write_text("pair,draft\np,d\n")
    with pytest.raises(UserError, match="column policy is missing"):
        figures.draw("speedup_by_k", tmp_path, tmp_path / "a.svg")


def test_a_draft_keeps_its_colour():
    assert style.colours(["ngram"])["ngram"] == style.colours(["small", "ngram", "other"])["ngram"]
