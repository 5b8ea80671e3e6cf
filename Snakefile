"""The study: config.yaml -> cells -> tables -> figures -> results/report.pdf."""

import sys

from snakemake.utils import min_version

min_version("9.27")


configfile: "config.yaml"


report: "workflow/report/study.rst"


# the project itself is not installed; its modules are imported from beside this file
sys.path.insert(0, str(workflow.basedir))

from workflow.study.plan import Plan

# types and checks the whole configuration, --config included; a mistake is one line and no job starts
plan = Plan.of(config, workflow.basedir)


wildcard_constraints:
    model=plan.model_pattern,
    cell=plan.cell_pattern,
    draft=plan.draft_pattern,
    table="|".join(plan.tables),
    figure="|".join(plan.all_figures),


include: "workflow/rules/models.smk"
include: "workflow/rules/drafts.smk"
include: "workflow/rules/calibrate.smk"
include: "workflow/rules/decode.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        "results/report.pdf",
        "results/report.html",
        collect("results/tables/{table}.csv", table=plan.tables + plan.measured_tables),
        collect("results/figures/{figure}.svg", figure=plan.figures),


# what is left out is said in a dry run as well, and once, not by every job's process
if workflow.is_main_process:
    print(plan.left_out(), end="", file=sys.stderr)


# not in a dry run: a plan can be looked at before the weights are there
onstart:
    plan.start((job.rule.name, job.wildcards) for job in workflow.dag.needrun_jobs())


onerror:
    print(plan.failures(), file=sys.stderr)
