"""What a generation leaves behind, and its file."""

import errno
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specdec import records
from specdec.errors import UserError
from specdec.records import SCHEMA, GenerationRecord, RoundRecord


def generation() -> GenerationRecord:
    rounds = [
        RoundRecord((5, 6, 7), 4, 4, 2, "correction", "depth", 0.1, 0.2, 0.05),
        RoundRecord((8,), 3, 0, 0, "bonus", "no_match", 0.0, 0.2, 0.01),
        RoundRecord((9, 2), 2, 2, 2, "cut", "depth", 0.1, 0.2, 0.02, "end_of_text"),
    ]
    return GenerationRecord(11, 0.5, 0.25, rounds)


def row(**changes) -> dict:
    values = {
        "string": "text",
        "int64": 3,
        "double": 0.25,
        "bool": False,
    }
    filled = {field.name: values[str(field.type)] for field in SCHEMA if not pa.types.is_list(field.type)}
    return filled | {"eos_ids": [2, 7]} | generation().columns() | changes


def test_a_generation_derives_its_sums_from_its_rounds():
    record = generation()
    assert record.output_ids == [5, 6, 7, 8, 9, 2] and record.stop_reason == "end_of_text"
    assert record.decode_s == pytest.approx(0.88)
    assert record.total_s == pytest.approx(1.63)
    assert record.ttft_s == pytest.approx(0.5 + 0.25 + 0.35)
    columns = record.columns()
    assert columns["tokens"] == 6 and columns["rounds"] == 3 and columns["drafted"] == [4, 0, 2]


def test_a_round_trip_keeps_values_types_and_metadata(tmp_path):
    rows = [row(), row(threshold=None, top_k=None, draft="另一个", k=1)]
    records.write(tmp_path / "deep" / "cell.parquet", rows, {"machine": {"name": "测试"}})
    table, metadata = records.read(tmp_path / "deep" / "cell.parquet")
    assert metadata == {"machine": {"name": "测试"}}
    assert table.schema.remove_metadata() == SCHEMA
    assert table.to_pylist() == [{name: value[name] for name in SCHEMA.names} for value in rows]
    assert str(table.schema.field("k").type) == "int64" and str(table.schema.field("policy").type) == "string"


def test_files_of_different_methods_join_without_changing_types(tmp_path):
    for name in ("one", "two"):
        records.write(tmp_path / f"{name}.parquet", [row(draft=name, hardware_id=name)], {})
    joined = pa.concat_tables([records.read(tmp_path / f"{name}.parquet")[0] for name in ("one", "two")])
    assert joined.schema.remove_metadata() == SCHEMA
    assert joined["hardware_id"].to_pylist() == ["one", "two"]


def test_a_row_without_a_required_column_is_not_written(tmp_path):
    broken = row()
    broken["k"] = None
    with pytest.raises((pa.ArrowInvalid, ValueError, UserError)):
        records.write(tmp_path / "cell.parquet", [broken], {})
        records.read(tmp_path / "cell.parquet")[0].validate(full=True)


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("where", ["replace", "fsync", "write_table"])
@pytest.mark.parametrize("before", [None, "old"])
def test_a_failed_write_changes_nothing_and_leaves_nothing(tmp_path, monkeypatch, where, before):
    path = tmp_path / "cell.parquet"
    if before:
        records.write(path, [row(draft=before)], {})
    content = path.read_bytes() if before else None
    with monkeypatch.context() as patch:
        patch.setattr(records.pq if where == "write_table" else records.os, where, full_disk)
        with pytest.raises(UserError, match=r"cell\.parquet: cannot be written \(No space left"):
            records.write(path, [row(draft="new")], {})
    assert (path.read_bytes() if path.exists() else None) == content
    assert [entry.name for entry in tmp_path.iterdir()] == (["cell.parquet"] if before else [])


def test_a_folder_that_cannot_be_made_is_one_message(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot be written"):
        records.write(tmp_path / "file" / "cell.parquet", [row()], {})


def test_a_kill_while_writing_never_leaves_half_a_file(tmp_path, monkeypatch):
    path = tmp_path / "cell.parquet"

    def half(table, sink):
        sink.write(b"PAR1half")
        sink.flush()
        os._exit(9)

    child = os.fork()
    if child == 0:
        monkeypatch.setattr(records.pq, "write_table", half)
        records.write(path, [row()], {})
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not path.exists()
    records.write(path, [row()], {})
    assert records.read(path)[0].num_rows == 1


@pytest.mark.parametrize("kept", [0, 4, 0.5, 0.99])
def test_a_truncated_file_is_named(tmp_path, kept):
    path = tmp_path / "cell.parquet"
    records.write(path, [row()], {})
    whole = path.read_bytes()
    path.write_bytes(whole[: kept if isinstance(kept, int) else int(kept * len(whole))])
    with pytest.raises(UserError, match=r"cell\.parquet: not a whole parquet file.*delete it and run again"):
        records.read(path)


def test_a_missing_file_and_a_missing_column_are_named(tmp_path):
    with pytest.raises(UserError, match=r"gone\.parquet: no such file"):
        records.read(tmp_path / "gone.parquet")
    table = pa.Table.from_pylist([row()], schema=SCHEMA).drop_columns(["verifier"])
    pq.write_table(table, tmp_path / "old.parquet")
    with pytest.raises(UserError, match=r"old\.parquet: column verifier is missing"):
        records.read(tmp_path / "old.parquet")
