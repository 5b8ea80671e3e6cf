"""`doctor`: what is installed, what the machine offers, what is missing and how to get it.

Exit code 0 when everything the default study needs is there, else 1.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import torch
from rich.console import Console
from rich.table import Table

from specdec.measure import fingerprint
from specdec.models.catalogue import CATALOGUE, FOLDER
from specdec.models.fetch import STAMP
from specdec.models.linear import can_pack
from specdec.models.native import obstacle

GOOD, NOTE, BAD = "ok", "note", "missing"
PACKAGES = ("torch", "transformers", "snakemake", "pandas", "pyarrow", "matplotlib", "jinja2", "weasyprint")


def doctor(flags: argparse.Namespace) -> int:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    worst = GOOD
    colours = {GOOD: "green", NOTE: "yellow", BAD: "red"}
    for status, what, text in (*_software(), *_machine(), *_report(), *_models(flags.model)):
        table.add_row(f"[{colours[status]}]{status}[/]", what, text)
        worst = BAD if status == BAD else worst
    Console(highlight=False).print(table)
    return 1 if worst == BAD else 0


def _software() -> Iterator[tuple[str, str, str]]:
    recent = sys.version_info >= (3, 11)
    yield (
        GOOD if recent else BAD,
        "Python",
        platform.python_version() + ("" if recent else " (3.11 or newer is needed)"),
    )
    for name in PACKAGES:
        try:
            yield GOOD, name, version(name)
        except PackageNotFoundError:
            yield BAD, name, "not installed: env/run installs it, or pip install -r requirements.txt"


def _machine() -> Iterator[tuple[str, str, str]]:
    block = fingerprint.hardware()
    yield GOOD, "processor", f"{block['processor']}, {block['cores']} cores, {block['memory_gib']} GiB of memory"
    reason = obstacle()
    if reason is None:
        yield GOOD, "bf16 engine", "native"
    elif can_pack(torch.bfloat16):
        yield NOTE, "bf16 engine", f"PyTorch's packed products, slower ({reason})"
    else:
        yield NOTE, "bf16 engine", f"PyTorch without bf16 instructions; expect low speed in bfloat16 ({reason})"
    if torch.cuda.is_available():
        yield GOOD, "accelerator", torch.cuda.get_device_name()
    else:
        yield NOTE, "accelerator", "none seen by PyTorch; decoding runs on the CPU"


def _report() -> Iterator[tuple[str, str, str]]:
    try:
        from weasyprint.text.ffi import pango
    except (OSError, ImportError) as error:
        yield BAD, "Pango", f"not found ({error}); apt-get install libpango-1.0-0 libpangoft2-1.0-0"
        return
    number = pango.pango_version()
    text = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    yield (GOOD, "Pango", text) if number >= 14400 else (BAD, "Pango", f"{text}; 1.44 or newer is needed")
    from ctypes.util import find_library

    if find_library("harfbuzz-subset"):
        yield GOOD, "font subsetting", "harfbuzz-subset"
    else:
        yield NOTE, "font subsetting", "slow without libharfbuzz-subset0; apt-get install libharfbuzz-subset0"


def _models(chosen: str | None) -> Iterator[tuple[str, str, str]]:
    for name in CATALOGUE:
        there = (FOLDER / name / STAMP).is_file()
        yield (GOOD, name, str(FOLDER / name)) if there else (NOTE, name, "not fetched yet; the first run fetches it")
    if chosen:
        from specdec.models import load_model
        from specdec.models.catalogue import locate
        from specdec.models.selftest import width_invariant

        loaded = load_model(locate(chosen))
        size = loaded.model.weight_bytes() / 2**20
        yield GOOD, chosen, f"loads; {size:.0f} MiB read a token; ends a text with ids {list(loaded.tokenizer.eos_ids)}"
        if width_invariant(loaded.model):
            yield GOOD, "width invariance", "holds in bfloat16: speculative output equals the baseline's bit for bit"
        else:
            yield NOTE, "width invariance", "does not hold in bfloat16 here: near ties may differ, and are audited"
