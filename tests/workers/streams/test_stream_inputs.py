"""The tables of a streaming job: growing directories, static tables, posted rows and generated rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.contract.job import JobSpec
from service.contract.problems import SpecError
from service.data.file_io import opened
from service.sql.ddl import parse_schema
from workers.engine.spark.sources import TableInput
from workers.engine.streaming.sources import RateInput, StreamInput
from workers.streams.inputs import Inputs, Posted, find_inputs

SCHEMA = parse_schema("k STRING, v BIGINT", "/schema")


def found(root: Path, tables: dict[str, dict[str, Any]], posted: dict[str, Posted] | None = None) -> Inputs:
    spec = JobSpec.model_validate(
        {"mode": "incremental", "tables": tables, "sql": "SELECT k, COUNT(*) AS n FROM t GROUP BY k"}
    )
    return find_inputs(spec, [root], posted or {})


def code_of(root: Path, table: dict[str, Any]) -> str:
    with pytest.raises(SpecError) as caught:
        found(root, {"t": table})
    return caught.value.issues[0].code


def write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"k": ["a"], "v": [1]}), path)


def test_a_growing_directory_and_a_static_table_are_found(tmp_path: Path) -> None:
    write(tmp_path / "orders" / "1.parquet")
    write(tmp_path / "users" / "1.parquet")
    inputs = found(
        tmp_path,
        {
            "t": {"format": "parquet", "path": "orders/", "role": "stream"},
            "u": {"format": "parquet", "path": "users/", "role": "static"},
        },
    )
    stream, table = inputs.tables["t"], inputs.tables["u"]
    assert isinstance(stream, StreamInput)
    assert stream.directory == f"file://{tmp_path}/orders"
    assert isinstance(table, TableInput)
    assert inputs.schemas == {"t": SCHEMA, "u": SCHEMA}
    assert len(stream.files) == 1


def test_an_empty_directory_needs_a_schema(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    table = {"format": "json", "path": "orders/", "schema": "k STRING, v BIGINT"}
    inputs = found(tmp_path, {"t": table})
    assert inputs.schemas["t"] == SCHEMA
    assert code_of(tmp_path, {"format": "parquet", "path": "orders/"}) == "schema_cannot_be_inferred"


def test_glob_patterns_in_paths_are_escaped(tmp_path: Path) -> None:
    write(tmp_path / "a[1]*" / "1.parquet")
    stream = found(tmp_path, {"t": {"format": "parquet", "path": "a[1]*/"}}).tables["t"]
    assert isinstance(stream, StreamInput)
    assert stream.directory == f"file://{tmp_path}/a\\[1\\]\\*"


def test_a_directory_with_a_colon_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a:b" / "1.parquet")
    assert code_of(tmp_path, {"format": "parquet", "path": "a:b/"}) == "unreadable_file"


def test_posted_rows_are_a_directory_of_segments(tmp_path: Path) -> None:
    for name in ("000000000001-ab.parquet", "000000000002-cd.parquet", ".hidden.parquet"):
        write(tmp_path / "rows" / name)
    inputs = found(
        tmp_path, {"t": {"format": "stream", "stream": "clicks"}}, {"clicks": Posted(tmp_path / "rows", SCHEMA)}
    )
    stream = inputs.tables["t"]
    assert isinstance(stream, StreamInput)
    assert (stream.directory, stream.schema) == (f"file://{tmp_path}/rows", SCHEMA)
    assert len(stream.files) == 2


def test_a_missing_stream_is_an_error(tmp_path: Path) -> None:
    assert code_of(tmp_path, {"format": "stream", "stream": "clicks"}) == "stream_unknown"


def test_rate_tables_are_found(tmp_path: Path) -> None:
    inputs = found(tmp_path, {"t": {"format": "rate", "rows_per_second": 7}})
    assert inputs.tables == {"t": RateInput(7)}


def test_posted_rows_in_a_directory_behind_a_link_are_found(tmp_path: Path) -> None:
    write(tmp_path / "there" / "s" / "1.parquet")
    (tmp_path / "here").symlink_to(tmp_path / "there")
    posted = {"s": Posted(tmp_path / "here" / "s", SCHEMA)}
    stream = found(tmp_path, {"t": {"format": "stream", "stream": "s"}}, posted).tables["t"]
    assert isinstance(stream, StreamInput)
    for file in stream.files:
        with opened(file) as content:
            assert content.read(4) == b"PAR1"
    assert len(stream.files) == 1


def test_the_compressed_blocks_of_a_static_table_are_checked(tmp_path: Path) -> None:
    write(tmp_path / "orders" / "1.parquet")
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "1.csv.snappy").write_bytes(b"\x7f\xff\xff\xff\x00\x00\x00\x01x")
    users = {"format": "csv", "path": "users/", "schema": "k STRING", "role": "static"}
    with pytest.raises(SpecError, match="does not consist of"):
        found(tmp_path, {"t": {"format": "parquet", "path": "orders/", "role": "stream"}, "u": users})
