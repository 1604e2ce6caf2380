"""Columns of files are kept only while the files are the same."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.contract.tables import TableSource
from service.data.files import find_table_files
from service.data.known_schemas import KnownSchemas, identity_of
from service.data.schemas import read_schema
from service.sql.types.data_types import INT, Field, Schema

SCHEMA = Schema((Field("a", INT),))


def columns(directory: Path) -> tuple[str, ...]:
    """The columns of the table of Parquet files in `directory`."""
    source = TableSource.model_validate({"format": "parquet", "path": directory.name})
    return read_schema("t", source, find_table_files("t", source, [directory.parent])).names


def test_a_replaced_file_is_read_again(tmp_path: Path) -> None:
    table = tmp_path / "t"
    table.mkdir()
    for name in ("a", "b"):
        pq.write_table(pa.table({name: [1]}), table / "f.parquet")
        assert columns(table) == columns(table) == (name,)


def test_a_file_that_has_just_changed_has_no_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"x")
    # The time of the last status change cannot be set.
    later = time.time_ns() + 3_000_000_000
    with file.open("rb") as stream:
        assert identity_of(stream) is None
        monkeypatch.setattr(time, "time_ns", lambda: later)
        known = identity_of(stream)
        os.utime(file, ns=(1, 1))
        changed = identity_of(stream)
    assert known is not None
    assert changed != known


def test_the_last_files_are_kept() -> None:
    schemas = KnownSchemas()
    schemas.keep(None, SCHEMA)
    assert schemas.find(None) is None
    for number in range(2_000):
        schemas.keep((number,), SCHEMA)
        assert schemas.find((0,)) == SCHEMA, "it is used all the time"
    assert schemas.find((1_999,)) == SCHEMA
    assert schemas.find((1,)) is None
    schemas.keep((3_000,), Schema(tuple(Field(f"c{number}", INT) for number in range(1_000))))
    assert schemas.find((3_000,)) is None
