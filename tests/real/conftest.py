"""The default target, made by the same function as the study's, and loaded once in each precision."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml

from specdec.errors import UserError
from specdec.models.fetch import provide_model
from specdec.models.loading import LoadedModel, load_model

NAME = "smollm2-135m-instruct"
ROOT = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="session")
def folder() -> Path:
    """Its folder; without it these tests are skipped, except on the project's own checks, where that is a failure."""
    entry = yaml.safe_load((ROOT / "config.yaml").read_text("utf-8"))["models"][NAME]
    try:
        return provide_model(NAME, entry, entry.get("path") or ROOT / "resources" / "models" / NAME)
    except UserError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session", autouse=True)
def threads():
    """As the study runs: every core."""
    before = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    yield
    torch.set_num_threads(before)


@cache
def _load(folder: Path, dtype: str) -> LoadedModel:
    return load_model(folder, dtype=dtype)


@pytest.fixture
def load(folder, threads):
    """The target in a precision: load("bfloat16")."""
    return lambda dtype: _load(folder, dtype)
