"""Posted rows are read as they were written, in every form."""

from __future__ import annotations

import base64
import csv
import io
import json
import string
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.ingest import columns as limits
from service.ingest.parsing import ARROW, CSV, NDJSON, rows_of
from service.results.columns import arrow_schema
from service.sql.ddl import parse_schema
from tests.support.posted_rows import SCHEMA, arrow, refusal


@pytest.mark.withstands(
    "a small body of rows that becomes a large table",
    kind="attack",
    how="empty and short rows for many columns, as NDJSON and CSV",
    times=2,
    guaranteed="422 `too_many_rows`",
)
@pytest.mark.parametrize("media_type", [NDJSON, CSV])
def test_a_small_body_does_not_become_a_large_table(media_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CELLS", 10 * len(SCHEMA.fields))
    body = "{}\n" * 11 if media_type == NDJSON else "int\n" + "1\n" * 11
    assert refusal(body, media_type).code == "too_many_rows"
    rows_of(body[:-3].encode() if media_type == NDJSON else body[:-2].encode(), media_type, SCHEMA)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=8) | st.text(string.printable, max_size=8)
ROW = st.fixed_dictionaries(
    {},
    optional={
        "flag": st.none() | st.booleans(),
        "tiny": st.none() | st.integers(-128, 127),
        "big": st.none() | st.integers(-(2**63), 2**63 - 1),
        "single": st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False),
        "double": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "text": st.none() | TEXTS,
        "price": st.none() | st.decimals(-999, 999, places=2),
        "at": st.none() | st.datetimes(timezones=st.just(UTC)),
        "local": st.none() | st.datetimes(),
        "day": st.none() | st.dates(),
        "raw": st.none() | st.binary(max_size=8),
    },
)


def spelled(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value) if isinstance(value, Decimal) else value


def as_ndjson(rows: list[dict[str, Any]]) -> bytes:
    texts = (json.dumps({name: spelled(value) for name, value in row.items()}) for row in rows)
    return "\n".join(texts).encode()


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    written = io.StringIO()
    written.write(",".join(SCHEMA.names) + "\n")
    for row in rows:
        cells = []
        for name in SCHEMA.names:
            value = row.get(name)
            text = "" if value is None else str(spelled(value))
            # Every text in quotes, so that an empty one is no NULL; what is NULL in none.
            cells.append('"' + text.replace('"', '""') + '"' if isinstance(value, (str, bytes)) else text)
        written.write(",".join(cells) + "\r\n")
    return written.getvalue().encode()


def as_arrow(rows: list[dict[str, Any]]) -> bytes:
    return arrow(pa.Table.from_pylist(rows, arrow_schema(SCHEMA.fields)))


@pytest.mark.not_quick
@pytest.mark.parametrize(("media_type", "write"), [(NDJSON, as_ndjson), (CSV, as_csv), (ARROW, as_arrow)])
@given(rows=st.lists(ROW, min_size=1, max_size=6))
def test_what_is_written_is_read(
    media_type: str, write: Callable[[list[dict[str, Any]]], bytes], rows: list[dict[str, Any]]
) -> None:
    read = rows_of(write(rows), media_type, SCHEMA)
    assert read.schema == arrow_schema(SCHEMA.fields)
    assert read.equals(pa.Table.from_pylist(rows, arrow_schema(SCHEMA.fields)))


@given(cells=st.lists(st.lists(TEXTS, min_size=2, max_size=2), min_size=1, max_size=5))
def test_csv_as_python_writes_it(cells: list[list[str]]) -> None:
    schema = parse_schema("a STRING, b STRING", "/schema")
    written = io.StringIO(newline="")
    writer = csv.writer(written, quoting=csv.QUOTE_ALL)
    writer.writerows([["a", "b"], *cells])
    read = rows_of(written.getvalue().encode(), CSV, schema)
    assert list(zip(read.column("a").to_pylist(), read.column("b").to_pylist(), strict=True)) == [
        tuple(row) for row in cells
    ]
