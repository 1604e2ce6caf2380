"""Bodies of rows posted to a stream, and the values parsed from them."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pytest

from service.contract.errors import InvalidRowsError
from service.contract.problems import Issue
from service.ingest.parsing import NDJSON, rows_of
from service.results.columns import arrow_schema
from service.sql.ddl import parse_schema

DDL = (
    "flag BOOLEAN, tiny TINYINT, small SMALLINT, int INT, big BIGINT, single FLOAT, double DOUBLE, text STRING, "
    "price DECIMAL(5,2), at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, raw BINARY"
)
SCHEMA = parse_schema(DDL, "/schema")


def value(body: str | bytes, media_type: str, column: str) -> Any:
    """Parses a body of one row and returns its value in a column."""
    table = rows_of(body.encode() if isinstance(body, str) else body, media_type, SCHEMA)
    assert table.schema == arrow_schema(SCHEMA.fields)
    assert table.num_rows == 1
    return table.column(column)[0].as_py()


def refusal(body: str | bytes, media_type: str = NDJSON) -> Issue:
    with pytest.raises(InvalidRowsError) as caught:
        rows_of(body.encode() if isinstance(body, str) else body, media_type, SCHEMA)
    (issue,) = caught.value.issues
    return issue


def arrow(table: pa.Table, **options: Any) -> bytes:
    written = io.BytesIO()
    with ipc.new_stream(written, table.schema, options=ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return written.getvalue()
