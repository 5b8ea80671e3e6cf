"""The table of README.md, written between its markers from the table of peers and from nothing else.

The table it was written from is kept in docs/measured/, so that anyone can check that the README says what was
measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import jinja2

from specdec.errors import UserError
from workflow.study.columns import write_text
from workflow.study.results import read_table

BEGIN = "<!-- peers: written by `snakemake readme` -->"
END = "<!-- end of peers -->"
KEPT = Path("docs/measured")
TEMPLATE = "readme.md.j2"


def block(rows: list[dict], machine: Mapping, templates: Path) -> str:
    """What stands between the markers."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701 -- Markdown, not HTML
    )
    own = next((row for row in rows if row["arm"] == "specdec" and row["mode"] == "ar"), None)
    used = own and own["bandwidth_utilisation"]
    text = environment.get_template(TEMPLATE).render(
        rows=rows,
        own=own,
        limit=own["tokens_per_s"] / used if used else None,
        **machine,
    )
    return text.strip() + "\n"


def between(readme: str, content: str) -> str:
    """The README with `content` between its markers; raises `UserError` where they are not there once each."""
    if readme.count(BEGIN) != 1 or readme.count(END) != 1 or readme.index(BEGIN) > readme.index(END):
        raise UserError(f"README.md: the markers {BEGIN} and {END} must stand there once each, in this order")
    head, rest = readme.split(BEGIN)
    return f"{head}{BEGIN}\n\n{content}\n{END}{rest.split(END)[1]}"


def write_readme(table: Path, machine: Mapping, root: Path) -> None:
    """Put the table into README.md, and keep it with the machine it is from."""
    readme = root / "README.md"
    content = block(read_table(table), machine, root / "report_templates")
    write_text(readme, between(readme.read_text(encoding="utf-8"), content))
    write_text(root / KEPT / "peers.csv", table.read_text(encoding="utf-8"))
    write_text(root / KEPT / "machine.json", json.dumps(machine) + "\n")


def kept_block(root: Path) -> str:
    """What README.md must hold between its markers, given the kept table."""
    kept, templates = root / KEPT, root / "report_templates"
    if not (kept / "peers.csv").is_file():
        return block([], {}, templates)
    machine = json.loads((kept / "machine.json").read_text(encoding="utf-8"))
    return block(read_table(kept / "peers.csv"), machine, templates)
