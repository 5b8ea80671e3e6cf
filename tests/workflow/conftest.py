"""What the tests of the study share: the shipped configuration, and ways to change one value of it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml

from workflow.study.config import StudyConfig, load_mapping

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def raw() -> dict:
    """The shipped configuration, every draft wanted: the tests put stand-ins where heads belong."""
    data = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))
    data["pairs"]["smollm2"].pop("optional", None)
    return data


@pytest.fixture
def config(raw: dict) -> StudyConfig:
    return load_mapping(copy.deepcopy(raw))


@pytest.fixture
def changed(raw: dict):
    """A function: the configuration with one value at a path such as `run/dtype` replaced, typed."""

    def change(path: str, value: object) -> StudyConfig:
        return load_mapping(put(raw, path, value))

    return change


def put(raw: dict, path: str, value: object) -> dict:
    data = copy.deepcopy(raw)
    *parents, last = path.split("/")
    place = data
    for name in parents:
        place = place[name]
    place[last] = value
    return data
