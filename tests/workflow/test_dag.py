"""What runs and what does not: dry runs over synthetic cells, and a few real jobs with a stand-in for decoding."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tests.helpers import measured_tables
from tests.workflow import synthetic
from tests.workflow.conftest import ROOT
from workflow.study import readme
from workflow.study.config import load
from workflow.study.experiments import TABLES, all_cells, cells_for_table, cells_of
from workflow.study.measure_columns import ALWAYS, ON_REQUEST
from workflow.study.plan import FIGURES, Plan, code_hash

pytestmark = pytest.mark.workflow

STAND_IN = """
import json, os, sys, time
from pathlib import Path
from specdec.errors import UserError
from tests.workflow.synthetic import write_cell
from workflow.study.prompts import evaluation_slice

def run_cell(config, cell, output, calibration=None):
    if cell.k == 7:
        raise UserError("planted mistake")
    start = time.time()
    print(f"{cell.name}: prompt 1 of 1, 40.0 tokens/s", file=sys.stderr)
    time.sleep(0.3)
    write_cell(Path("."), config, cell, evaluation_slice(config))
    threads = os.environ["OMP_NUM_THREADS"]
    Path(f"{cell.name}.json").write_text(json.dumps([start, time.time(), threads]))
"""


def copy_project(folder: Path) -> Path:
    """A working copy in a folder whose name has a space and Chinese in it."""
    project = folder / "dir with space" / "推测"
    project.mkdir(parents=True)
    leave = shutil.ignore_patterns("__pycache__", "*.gguf", "*.safetensors")
    for name in ("workflow", "specdec", "env", "tests/workflow"):
        shutil.copytree(ROOT / name, project / name, ignore=leave)
    shutil.copy(ROOT / "Snakefile", project)
    text = (ROOT / "config.yaml").read_text("utf-8")
    # stand-ins for the trained ones are written below, for every draft
    (project / "config.yaml").write_text(text.replace("    optional: [eagle1]\n", ""), "utf-8")
    for name in ("prompts", "report_templates", "checkpoints/smollm2/text"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        os.symlink(ROOT / name, project / name)
    synthetic.write_heads(project, load(project / "config.yaml"))
    (project / "workflow" / "study" / "run_cell.py").write_text(STAND_IN)
    return project


def snakemake(project: Path, *arguments: str, check: bool = True) -> str:
    command = [sys.executable, "-m", "snakemake", *arguments]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, env=os.environ | {"NO_COLOR": "1"})
    output = done.stdout + done.stderr
    assert (done.returncode == 0) == check, output
    return output


def jobs(output: str) -> dict[str, int]:
    """The table of jobs of a dry run."""
    kinds = "all|model|text|head|assemble|vocabulary|own_prompts|calibrate|decode|distribution|table|figure|report"
    found = re.findall(rf"^({kinds}|cost_model|predicted|profile|peers) +(\d+)$", output, re.MULTILINE)
    return {name: int(count) for name, count in found}


def decoded(output: str) -> list[str]:
    return sorted(set(re.findall(r"decoding (\S+)", output)))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A project whose study has run, as far as Snakemake can tell."""
    project = copy_project(tmp_path_factory.mktemp("finished"))
    config = load(project / "config.yaml")
    made = ("models/smollm2-135m-instruct/specdec.json", "assembled/smollm2/shipped/smollm2-small/specdec.json")
    for name in (*made, "vocabulary/smollm2.txt"):
        (project / "resources" / name).parent.mkdir(parents=True)
        (project / "resources" / name).write_text("{}")
    own = project / "resources/prompts/smollm2/own_kind.jsonl"
    own.parent.mkdir(parents=True)
    own.write_text('{"question_id": "own_kind_0", "category": "own_kind", "turns": ["text"]}')
    synthetic.write_cells(project, config, all_cells(config), project)
    measured = project / "results/calibration/smollm2/eagle3.json"
    measured.parent.mkdir(parents=True)
    measured.write_text("{}")
    tables = [f"{table}.{end}" for table in (*TABLES, *ALWAYS) for end in ("csv", "parquet")]
    for folder, names in (("tables", tables), ("figures", FIGURES)):
        (project / "results" / folder).mkdir()
        for name in names:
            (project / "results" / folder / (name if "." in name else f"{name}.svg")).write_text("x")
    for name in ("report.pdf", "report.html"):
        (project / "results" / name).write_text("x")
    snakemake(project, "--touch", "--forceall", "--cores", "1")
    return project


@pytest.fixture
def edited(finished: Path):
    """A function that replaces text in a file of the finished project; undone afterwards."""
    before: dict[Path, str] = {}

    def edit(name: str, old: str, new: str) -> None:
        path = finished / name
        text = path.read_text(encoding="utf-8")
        before.setdefault(path, text)
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    yield edit
    for path, text in before.items():
        path.write_text(text, encoding="utf-8")


def plan_of(project: Path, *arguments: str) -> str:
    return snakemake(project, "--dry-run", *arguments)


def test_a_second_run_has_nothing_to_do_and_comments_count_for_nothing(finished, edited):
    edited("config.yaml", "study: default", "# a remark\nstudy:   default")
    edited("specdec/errors.py", "import difflib", "# a remark\nimport difflib")
    assert "Nothing to be done" in plan_of(finished)


def test_a_changed_k_reruns_only_its_rows(finished, edited):
    edited("config.yaml", "k: [1, 2, 4, 8]", "k: [1, 2, 3, 4, 8]")
    output = plan_of(finished)
    assert decoded(output) == [f"{draft}-fixed-k3-t0-s0" for draft in ("eagle3", "eagle3_lookup", "ngram", "small")]


def test_a_changed_draft_reruns_only_its_cells(finished, edited):
    edited("config.yaml", "max_ngram: 3", "max_ngram: 4")
    output = plan_of(finished)
    assert {name.split("-")[0] for name in decoded(output)} == {"ngram"}


def test_a_change_inside_the_package_reruns_what_was_decoded_by_it(finished, edited):
    edited("specdec/errors.py", "cutoff=0.6", "cutoff=0.7")
    assert jobs(plan_of(finished))["decode"] == len(all_cells(load(finished / "config.yaml")))


def test_a_calibrated_value_reruns_only_its_tables(finished, edited):
    known = load(finished / "config.yaml").calibrated("ngram").best_k
    edited("config.yaml", f"best_k: {known}", "best_k: 4")
    output = plan_of(finished, "results/tables/dynamic_k.csv", "results/tables/fixed_k.csv")
    assert jobs(output) == {"table": 1}


def test_the_default_study_is_planned_from_nothing(tmp_path):
    project = copy_project(tmp_path)
    output = plan_of(project)
    once = ("all", "model", "assemble", "vocabulary", "calibrate", "own_prompts", "cost_model", "predicted", "profile")
    once += ("report",)
    assert jobs(output) == dict.fromkeys(once, 1) | {
        "decode": len(all_cells(load(project / "config.yaml"))),
        "table": len(TABLES),
        "figure": len(FIGURES) - len(ON_REQUEST),
    }
    partial = plan_of(project, "results/tables/dynamic_k.csv")
    names = {cell.name for cell in cells_of(load(project / "config.yaml"), "dynamic_k")}
    assert jobs(partial) == {"model": 1, "assemble": 1, "vocabulary": 1, "decode": len(names), "table": 1}
    assert set(decoded(partial)) == names and not any(name.startswith("ngram") for name in names)


def test_peers_are_planned_only_where_they_are_asked_for(finished, edited):
    assert jobs(plan_of(finished, "results/tables/peers.csv")) == {"peers": 1}
    edited("config.yaml", "in_report: false\n    prompts: 6", "in_report: true\n    prompts: 6")
    assert jobs(plan_of(finished)) == {"all": 1, "peers": 1, "figure": 1, "report": 1}


def test_a_cost_setting_reruns_costs_and_what_is_made_of_them(finished, edited):
    edited("config.yaml", "repeats: 9 # of each", "repeats: 7 # of each")
    assert jobs(plan_of(finished)) == {"all": 1, "cost_model": 1, "predicted": 1, "figure": 3, "report": 1}


def test_the_other_pair_is_planned_without_weights_and_stops_before_any_job(finished):
    planned = jobs(plan_of(finished, "--config", "pair=qwen3"))
    assert (planned["decode"], planned["calibrate"]) == (42, 1)
    output = snakemake(finished, "--cores", "1", "--config", "pair=qwen3", check=False)
    assert "hf download Qwen/Qwen3-1.7B --local-dir" in output
    assert "resources/models/qwen3-0.6b" in output
    assert "Traceback" not in output
    assert "decoding" not in output.split("error:")[0]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("pair=qwen", 'error: config: pair is "qwen": unknown pair (did you mean "qwen3"?)'),
        ("study=True", "error: config: study is true"),
    ],
)
def test_settings_of_the_command_line_are_typed(finished, setting, expected):
    output = snakemake(finished, "--dry-run", "--config", setting, check=False)
    assert expected in output
    assert "Traceback" not in output


def test_methods_that_need_measurements_wait_for_them_and_others_do_not(finished, monkeypatch):
    monkeypatch.chdir(finished)
    plan = Plan(yaml.safe_load((finished / "config.yaml").read_text("utf-8")), finished)
    cells = all_cells(plan.config)
    waiting = {cell for cell in cells if "calibration" in plan.decode_inputs(SimpleNamespace(cell=cell.name))}
    assert waiting == {cell for cell in cells if cell.policy in ("cost", "ddd")} and waiting


@pytest.mark.parametrize("table", ["trees", "verification", "ablation"])
def test_each_new_table_needs_its_own_cells_only(tmp_path_factory, finished, table):
    made = [finished / f"results/tables/{table}.{end}" for end in ("csv", "parquet")]
    for path in (finished / "results/cells/smollm2").iterdir():
        path.rename(path.with_suffix(".away"))
    for path in made:
        path.rename(f"{path}.away")
    try:
        output = plan_of(finished, f"results/tables/{table}.csv")
        config = load(finished / "config.yaml")
        assert decoded(output) == sorted(cell.name for cell in cells_for_table(config, table))
    finally:
        for path in (finished / "results/cells/smollm2").iterdir():
            path.rename(path.with_suffix(".parquet"))
        for path in made:
            Path(f"{path}.away").rename(path)


def test_a_distribution_test_runs_on_request(finished, edited):
    edited("config.yaml", "distribution: null", "distribution: { continuations: 200, tokens: 2, shift: 0.1 }")
    output = plan_of(finished, "results/tables/distribution.csv")
    assert jobs(output)["distribution"] == 8, "the baseline and seven pairs of shape and exact rule"


def test_jobs_run_one_at_a_time_and_mistakes_are_one_line(finished):
    """With eight cores and no other flag timed jobs do not overlap; K = 7 is planted to fail."""
    good = [f"results/cells/smollm2/layer_skip-fixed-k{k}-t0-s0.parquet" for k in (5, 6)]
    output = snakemake(finished, "--cores", "8", *good)
    assert "2 cells to decode: up to" in output
    assert "layer_skip-fixed-k5-t0-s0: prompt 1 of 1" in output
    spans = [json.loads((finished / f"layer_skip-fixed-k{k}-t0-s0.json").read_text()) for k in (5, 6)]
    spans.sort()
    assert spans[0][1] <= spans[1][0]
    assert {span[2] for span in spans} == {str(load(finished / "config.yaml").threads())}
    log = (finished / "logs/decode/smollm2/layer_skip-fixed-k5-t0-s0.log").read_text(encoding="utf-8")
    assert "prompt 1 of 1" in log
    bad = "results/cells/smollm2/layer_skip-fixed-k7-t0-s0.parquet"
    output = snakemake(finished, "--cores", "8", bad, check=False)
    assert "\nerror: planted mistake\n" in output
    assert "failed: logs/decode/smollm2/layer_skip-fixed-k7-t0-s0.log: error: planted mistake" in output
    assert "Traceback" not in output


def test_the_lock_holds_against_another_process(finished):
    """A job that finds the lock taken says so and waits."""
    target = "results/cells/smollm2/layer_skip-fixed-k9-t0-s0.parquet"
    code = (
        "import sys, time; from filelock import FileLock; from pathlib import Path\n"
        "lock = FileLock(next(Path('resources').glob('timed-*.lock')))\n"
        "lock.acquire(); print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], cwd=finished, stdout=subprocess.PIPE, text=True)
    command = [sys.executable, "-m", "snakemake", "--cores", "1", target]
    try:
        assert holder.stdout.readline().strip() == "held"
        job = subprocess.Popen(command, cwd=finished, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in job.stdout:
            if "waiting for another timed job" in line:
                break
        assert not (finished / target).exists()
        released = time.time()
    finally:
        holder.kill()
        holder.wait()
    job.communicate()
    assert job.returncode == 0
    start, _, _ = json.loads((finished / "layer_skip-fixed-k9-t0-s0.json").read_text())
    assert start >= released


def test_tables_figures_and_the_page_of_snakemake(finished):
    for path in [*(finished / "results/tables").iterdir(), *(finished / "results/figures").iterdir()]:
        if "fixed_k" in path.name or "speedup_by_k" in path.name:
            path.unlink()
    snakemake(finished, "--cores", "2", "results/figures/speedup_by_k.svg")
    assert (finished / "results/tables/fixed_k.csv").read_text().startswith("pair,draft,policy,k,")
    assert "<svg" in (finished / "results/figures/speedup_by_k.svg").read_text()[:500]
    page = "results/snakemake-report.html"
    snakemake(finished, "--report", page, "results/figures/speedup_by_k.svg")
    assert "Speedup against the number of drafted tokens K" in (finished / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("profile", ["default", "slurm"])
def test_profiles_parse(finished, profile):
    output = plan_of(finished, "--workflow-profile", f"workflow/profiles/{profile}", "results/tables/fixed_k.csv")
    assert f"profile workflow/profiles/{profile}" in output


def test_the_linter_is_content(finished):
    assert "good condition" in snakemake(finished, "--lint")


def test_every_table_and_figure_has_a_caption():
    for kind, names in (("table", [*TABLES, "distribution"]), ("figure", FIGURES)):
        text = (ROOT / "workflow" / "report" / f"{kind}.rst").read_text(encoding="utf-8")
        assert [name for name in names if f'"{name}":' not in text] == []


def test_rules_are_formatted():
    command = [sys.executable, "-m", "snakefmt", "--check", "Snakefile", "workflow/rules"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_code_hash_follows_code_and_not_remarks(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    first = code_hash(tmp_path, ("**/*",))
    path.write_text("# remark\nx  =  1\n")
    assert code_hash(tmp_path, ("**/*",)) == first
    path.write_text("x = 2\n")
    second = code_hash(tmp_path, ("**/*",))
    (tmp_path / "b.cpp").write_text("int x;")
    assert len({first, second, code_hash(tmp_path, ("**/*",))}) == 3


def test_every_stage_finds_its_code():
    for patterns in Plan.__init__.__globals__["CODE"].values():
        for pattern in patterns:
            assert any(ROOT.glob(pattern)), pattern


def test_the_readme_rule_writes_the_table_between_the_markers(finished):
    """From a table of peers that is there: stand-ins, one tool of which is absent."""
    text = (ROOT / "README.md").read_text("utf-8")
    (finished / "README.md").write_text(text, "utf-8")
    measured_tables.write(finished / "results/tables", {"peers": measured_tables.peer_rows()})
    snakemake(finished, "--touch", "--cores", "1", "results/tables/peers.csv")
    snakemake(finished, "--cores", "1", "readme")
    written = (finished / "README.md").read_text("utf-8")
    assert "| llama.cpp | one token a pass | bfloat16 | 90.0 |" in written
    assert "| OpenVINO GenAI | one token a pass | float16 | absent | | |" in written
    assert "| *the limit of memory* |" in written
    assert written.split(readme.BEGIN)[0] == text.split(readme.BEGIN)[0]
    assert written.split(readme.END)[1] == text.split(readme.END)[1]
