"""Build the report from the tables and figures of the pair in force."""

from job import ROOT, job

with job(snakemake):  # noqa: F821
    from workflow.study.config import load_mapping
    from workflow.study.report import build_report

    build_report(
        config=load_mapping(snakemake.config),  # noqa: F821
        results_dir="results",
        templates_dir=ROOT / "report_templates",
        output_pdf=snakemake.output.pdf,  # noqa: F821
        output_html=snakemake.output.html,  # noqa: F821
    )
