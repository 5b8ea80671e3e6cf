"""Two reports that are built once: nothing pays in one, trained drafts and some that pays in the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.reading import build
from tests.report.synthetic_results import write_results


@pytest.fixture(scope="session")
def slower(tmp_path_factory) -> Path:
    return build(write_results(tmp_path_factory.mktemp("slower"), "slower", extra_cells=250)).parent


@pytest.fixture(scope="session")
def faster(tmp_path_factory) -> Path:
    return build(write_results(tmp_path_factory.mktemp("faster"), "faster", differing=1)).parent
