# The report of the pair in force, from tables and figures alone.


rule report:
    input:
        tables=collect(
            "results/tables/{table}.csv", table=plan.tables + plan.measured_tables
        ),
        figures=collect("results/figures/{figure}.svg", figure=plan.figures),
    output:
        pdf=report(
            "results/report.pdf", caption="../report/report.rst", category="Report"
        ),
        html="results/report.html",
    log:
        "logs/report.log",
    localrule: True
    conda:
        "../../env/conda.yaml"
    params:
        values=plan.report_values,
        code=plan.code("report"),
    message:
        "report"
    script:
        "../scripts/report.py"
