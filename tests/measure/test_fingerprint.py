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


def test_the_processor_is_read_from_files_where_the_system_has_them(tmp_path):
    """Of several processors the first; sizes in bytes; the levels that are shared or nearly so."""
    (tmp_path / "cpuinfo").write_text(
        "model name\t: A Processor\nflags\t\t: fpu avx512f avx512_bf16\n\nmodel name\t: Another\nflags\t: fpu\n"
    )
    for index, (level, size) in enumerate((("1", "32K"), ("2", "1024K"), ("3", "16384K"))):
        folder = tmp_path / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        (folder / "level").write_text(level + "\n")
        (folder / "size").write_text(size + "\n")
    assert fingerprint.processor(tmp_path / "cpuinfo", tmp_path / "cache") == {
        "brand_raw": "A Processor",
        "flags": ["fpu", "avx512f", "avx512_bf16"],
        "l2_cache_size": 2**20,
        "l3_cache_size": 2**24,
    }


def test_a_system_without_such_files_is_asked_otherwise(tmp_path):
    assert fingerprint.processor(tmp_path / "none").get("arch"), "py-cpuinfo's answer"
