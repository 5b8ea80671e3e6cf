"""The package can be entered through any of its modules."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import importlib, pkgutil, sys, traceback
import specdec
names = ["specdec", *(m.name for m in pkgutil.walk_packages(specdec.__path__, "specdec.") if m.name[-8:] != "__main__")]
for name in names:
    for loaded in [key for key in sys.modules if key.split(".")[0] == "specdec"]:
        del sys.modules[loaded]
    try:
        importlib.import_module(name)
    except Exception as error:
        print(name, type(error).__name__, error)
foreign = [key for key in sys.modules if key.split(".")[0] in ("snakemake", "workflow")]
print(*foreign)
"""


def test_every_module_can_be_imported_first_and_none_needs_the_workflow():
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.stdout.strip() == "" and done.returncode == 0, done.stdout + done.stderr
