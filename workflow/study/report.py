"""The report: named values into templates, templates into HTML and PDF.

Every sentence lives in the templates, so that a second language is a second set of templates.  The document is rendered
twice with the same numbering: the first pass learns the order of sections, figures and tables, the second may then
refer to what comes later.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

import jinja2
from markupsafe import Markup

from workflow.study.citations import Citations
from workflow.study.formatting import FILTERS
from workflow.study.formulas import Formulas
from workflow.study.named import ReportError, Values
from workflow.study.numbering import Numbering
from workflow.study.rendering import write_pdf, write_whole
from workflow.study.results import ON_REQUEST, Results, read_results
from workflow.study.values import build_values

ENTRY = "report.html.j2"


def build_report(config, results_dir, templates_dir, output_pdf, output_html) -> Values:
    """Write the PDF and the HTML from results alone; returns the named values that were available.

    `config` is the configuration in force, as a mapping or a pydantic model.  Raises `ReportError`, naming what is
    missing, and then writes nothing.
    """
    config = config.model_dump(mode="json") if hasattr(config, "model_dump") else config
    templates = Path(templates_dir).resolve()
    results = read_results(Path(results_dir).resolve(), config.get("pair"), asked_for(config))
    values = build_values(config, results)
    html = render(values, results, templates)
    css = (templates / "report.css").read_text(encoding="utf-8")
    write_pdf(html, css, templates, Path(output_pdf).resolve())
    page = html.replace("</head>", f"<style>\n{css}\n</style>\n</head>", 1)
    write_whole(Path(output_html).resolve(), page.encode("utf-8"))
    return values


def asked_for(config: Mapping) -> list[str]:
    """What this configuration reports beyond the usual tables; another run's may lie beside them."""
    experiments = config.get("experiments") or {}
    found = [name for name in ON_REQUEST if (experiments.get(name) or {}).get("in_report")]
    tested = (experiments.get("verification") or {}).get("distribution")
    return [*found, "distribution"] if tested else found


def render(values: Values, results: Results, templates: Path) -> str:
    """The HTML, figures and formulas inlined.  Raises `ReportError` for anything a template asks for in vain."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do", "jinja2.ext.loopcontrols"],
    )
    environment.filters.update(FILTERS)
    numbering = Numbering()
    formulas = templates / "formulas.toml"
    environment.globals.update(
        v=values,
        formula=Formulas(formulas),
        display=Formulas(formulas, display=True),
        figure_data=lambda name: inline_figure(results, name),
        numbering=numbering,
    )
    try:
        for _ in range(2):
            citations = Citations(templates / "references.json")
            environment.globals["citations"] = citations
            numbering.begin_pass()
            html = environment.get_template(ENTRY).render()
    except jinja2.UndefinedError as error:
        raise ReportError(f"a template asks for a value that does not exist: {error.message}") from error
    except jinja2.TemplateNotFound as error:
        raise ReportError(f"template {error.name!r} is missing in {templates}") from error
    citations.check()
    return html


def inline_figure(results: Results, name: str) -> Markup:
    """A figure as a data address."""
    if name not in results.figures:
        raise ReportError(f"figure {name!r} is used by a template but not made by the study")
    data = base64.b64encode(results.figures[name].read_bytes()).decode()
    return Markup(f"data:image/svg+xml;base64,{data}")
