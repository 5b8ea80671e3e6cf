"""A hash of files, by which a job knows that the code or weights it was made with have changed."""

from __future__ import annotations

import ast
import contextlib
import hashlib
from pathlib import Path


def code_hash(base: Path, patterns: tuple[str, ...]) -> str:
    """A hash of the files that match.  Comments and layout of Python files do not count."""
    total = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in base.glob(pattern) if path.is_file()}):
        if "__pycache__" in path.parts or path.name.startswith(".") or path.suffix in (".so", ".o"):
            continue
        content = path.read_bytes()
        if path.suffix == ".py":
            with contextlib.suppress(SyntaxError, ValueError):
                content = ast.dump(ast.parse(content)).encode()
        total.update(path.relative_to(base).as_posix().encode() + b"\0" + hashlib.sha256(content).digest())
    return total.hexdigest()[:16]
