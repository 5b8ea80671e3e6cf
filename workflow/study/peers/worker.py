"""One tool in a process of its own.

Tools bring their own threads and libraries, as a user of one alone would have them, and one that crashes costs its own
rows and no other's.  The table's process says whose turn it is, so that nothing overlaps; times are taken beside the
tool.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from workflow.study.peers.base import AR, Arm, Setting, Timed, ToolFailed, failure, present

TOOLS = ("hugging_face", "llamacpp", "open_vino")
"""A file each, with `NAME`, `PRECISION` (None: the study's) and `arms(setting)`."""

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 5
"""For a tool to end by itself, once nothing is asked of it any more."""


class Worker:
    """The parent's end: `arms` that run over there."""

    def __init__(self, tool: str, setting: Setting):
        # the interpreter's own path, for packages that were put on it by other ways than an installation
        path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        command = [sys.executable, "-c", f"from {__name__} import main; main()", tool]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=os.environ | {"PYTHONPATH": path})
        self.arms = [
            replace(arm, run=None if not there else lambda ids, tokens, index=index: self._run(index, ids, tokens))
            for index, (arm, there) in enumerate(self._start(tool, setting))
        ]

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *mistake) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _start(self, tool: str, setting: Setting) -> list[tuple[Arm, bool]]:
        try:
            return self._ask(setting)
        except ToolFailed as error:
            made = import_module(f"workflow.study.peers.{tool}")
            return [(Arm(made.NAME, AR, None, made.PRECISION or setting.config.run.dtype, None, str(error)), False)]

    def _run(self, index: int, ids: Sequence[int], tokens: int) -> Timed:
        found = self._ask((index, list(ids), tokens))
        if isinstance(found, str):
            raise ToolFailed(found)
        return found

    def _ask(self, message: Any) -> Any:
        try:
            _send(self._process.stdin, message)
            return pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            raise ToolFailed(f"failed: its process ended (code {self._process.wait()})") from None


def _send(sink: BinaryIO, message: Any) -> None:
    pickle.dump(message, sink)
    sink.flush()


def serve(tool: str, source: BinaryIO, sink: BinaryIO) -> None:
    """The child's end: arms once, then one generation a request, until nobody asks any more."""
    setting: Setting = pickle.load(source)
    made = import_module(f"workflow.study.peers.{tool}")
    precision = made.PRECISION or setting.config.run.dtype
    arms = list(present(made.NAME, precision, lambda: made.arms(setting)))
    _send(sink, [(replace(arm, run=None), arm.run is not None) for arm in arms])
    while True:
        try:
            index, ids, tokens = pickle.load(source)
        except EOFError:
            return
        try:
            found = arms[index].run(ids, tokens)
        except Exception as error:  # a tool of others may fail in any way; the row says how
            traceback.print_exc()
            found = failure(error)
        _send(sink, found)


def main() -> None:
    # what a tool prints must not get between the messages
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.argv[1], sys.stdin.buffer, answers)
