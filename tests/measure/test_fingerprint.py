"""A fingerprint says where a number comes from, and nothing about whose machine it is."""

import getpass
import json
import platform
from pathlib import Path

from specdec.measure import fingerprint


def blocks() -> dict:
    return {
        "hardware": fingerprint.hardware(),
        "environment": fingerprint.environment("bfloat16", "cpu", True),
        "code": fingerprint.code(Path(__file__).parents[2]),
        "state": fingerprint.state(),
    }


def test_ids_are_stable_and_change_with_what_matters():
    first, second = fingerprint.environment("bfloat16", "cpu", True), fingerprint.environment("bfloat16", "cpu", True)
    assert fingerprint.identity(first) == fingerprint.identity(second)
    for changed in (("float32", "cpu", True), ("bfloat16", "cpu", False)):
        assert fingerprint.identity(fingerprint.environment(*changed)) != fingerprint.identity(first)


def test_no_host_user_or_path_is_recorded():
    text = json.dumps(blocks())
    assert platform.node() not in text and str(Path.home()) not in text
    assert f'"{getpass.getuser()}"' not in text


def test_a_folder_without_history_has_no_commit(tmp_path):
    assert fingerprint.code(tmp_path) == {"commit": None, "dirty": None}
