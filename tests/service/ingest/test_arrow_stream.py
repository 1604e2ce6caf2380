"""Rows as an Arrow stream: read exactly or refused."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contract.errors import InvalidRowsError
from service.ingest import columns
from service.ingest.parsing import ARROW, rows_of
from tests.support.posted_rows import SCHEMA, arrow, refusal, value


@pytest.mark.parametrize(
    ("column", "array", "expected"),
    [
        ("big", pa.array([1], pa.int8()), 1),
        ("tiny", pa.array([-128], pa.int64()), -128),
        ("big", pa.array([2**63 - 1], pa.uint64()), 2**63 - 1),
        ("double", pa.array([0.5], pa.float32()), 0.5),
        ("text", pa.array(["a"], pa.large_string()), "a"),
        ("raw", pa.array([b"ab"], pa.binary(2)), b"ab"),
        ("price", pa.array([Decimal("1.1")], pa.decimal128(20, 1)), Decimal("1.10")),
        ("at", pa.array([0], pa.timestamp("s", "Europe/Berlin")), datetime(1970, 1, 1, tzinfo=UTC)),
        ("at", pa.array([1000], pa.timestamp("ns", "UTC")), datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
        ("local", pa.array([0], pa.timestamp("ms")), datetime(1970, 1, 1)),  # noqa: DTZ001 - of no zone
        ("int", pa.array([None], pa.int32()), None),
    ],
)
def test_taken(column: str, array: pa.Array, expected: Any) -> None:
    assert value(arrow(pa.table({column: array})), ARROW, column) == expected


@pytest.mark.parametrize(
    ("column", "array"),
    [
        ("tiny", pa.array([0, 128], pa.int64())),
        ("big", pa.array([0, 2**63], pa.uint64())),
        ("price", pa.array([Decimal(0), Decimal("1.123")], pa.decimal128(20, 3))),
        ("price", pa.array([Decimal(0), Decimal(1000)], pa.decimal128(20, 0))),
        ("at", pa.array([0, 1], pa.timestamp("ns", "UTC"))),
        ("at", pa.array([0, 2**62], pa.timestamp("s", "UTC"))),
        ("at", pa.array([0, 2**60], pa.timestamp("us", "UTC"))),
        ("day", pa.array([0, 2**30], pa.int32()).cast(pa.date32())),
    ],
)
def test_a_value_that_does_not_fit(column: str, array: pa.Array) -> None:
    issue = refusal(arrow(pa.table({column: array})), ARROW)
    assert (issue.code, issue.line, issue.pointer) == ("invalid_value", 2, f"/{column}")


@pytest.mark.parametrize(
    ("column", "array"),
    [
        ("int", pa.array([1.0])),
        ("int", pa.array(["1"])),
        ("int", pa.array([True])),
        ("int", pa.array([None], pa.null())),
        ("single", pa.array([1.0], pa.float64())),
        ("double", pa.array([1], pa.int64())),
        ("text", pa.array([b"a"])),
        ("text", pa.array(["a"]).dictionary_encode()),
        ("text", pa.array(["a"], pa.string_view())),
        ("text", pa.RunEndEncodedArray.from_arrays([1], ["a"])),
        ("at", pa.array([0], pa.timestamp("us"))),
        ("local", pa.array([0], pa.timestamp("us", "UTC"))),
        ("price", pa.array([Decimal(1)], pa.decimal256(5, 2))),
        ("day", pa.array([0], pa.date64())),
        ("int", pa.array([[1]])),
    ],
)
def test_a_column_of_another_type(column: str, array: pa.Array) -> None:
    issue = refusal(arrow(pa.table({column: array})), ARROW)
    assert (issue.code, issue.pointer) == ("invalid_value", f"/{column}")


def test_an_unknown_column() -> None:
    issue = refusal(arrow(pa.table({"intt": [1]})), ARROW)
    assert (issue.code, issue.suggestions[0]) == ("unknown_column", "int")


def test_a_column_given_twice() -> None:
    assert refusal(arrow(pa.table([[1], [2]], names=["int", "int"])), ARROW).code == "duplicate_key"


def test_the_format_of_files_is_told_apart() -> None:
    written, table = io.BytesIO(), pa.table({"int": pa.array([1], pa.int32())})
    with ipc.new_file(written, table.schema) as writer:
        writer.write_table(table)
    assert "streaming format" in refusal(written.getvalue(), ARROW).detail


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compression_is_refused(compression: str) -> None:
    assert "ompress" in refusal(arrow(pa.table({"big": range(1000)}), compression=compression), ARROW).detail


def test_compressed_dictionaries_are_too() -> None:
    table = pa.table({"text": pa.array(["a" * 1000, "b"]).dictionary_encode()})
    assert "ompress" in refusal(arrow(table, compression="zstd"), ARROW).detail


def test_buffers_that_several_columns_share() -> None:
    # The second column gets the place of the first one, and its own is cut out.
    body = arrow(pa.table({"big": pa.array(range(1000)), "double": pa.array([0.5] * 1000)}))
    size, both = (8000).to_bytes(8, "little"), (16000).to_bytes(8, "little")
    place = body.rindex(size + size)
    assert body.count(both) == 1
    body = (body[:place] + bytes(8) + body[place + 8 :]).replace(both, size)
    at = body.index(b"\0\0\0\0\0\0\xe0\x3f" * 1000)
    assert "share" in refusal(body[:at] + body[at + 8000 :], ARROW).detail


def test_rows_without_columns() -> None:
    batch = pa.RecordBatch.from_struct_array(pa.array([{}] * (columns.MAX_ROWS + 1), pa.struct([])))
    assert refusal(arrow(pa.Table.from_batches([batch])), ARROW).code == "too_many_rows"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda body: b"",
        lambda body: b"\0",
        lambda body: b"not arrow at all",
        lambda body: body[:-30],
        lambda body: body[:40],
        lambda body: body + b"x",
        lambda body: body + body,
        lambda body: b"ARROW1\0\0" + body,
    ],
)
def test_no_stream(spoil: Callable[[bytes], bytes]) -> None:
    assert refusal(spoil(arrow(pa.table({"int": pa.array([1, 2], pa.int32())}))), ARROW).code == "malformed_row"


@given(st.data())
def test_damaged_streams_are_refused_or_read(data: st.DataObject) -> None:
    body = bytearray(arrow(pa.table({"big": [1, None, 3], "text": ["a", "bc", None], "flag": [True, False, None]})))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        table = rows_of(bytes(body), ARROW, SCHEMA)
    except InvalidRowsError:
        return
    table.validate(full=True)


def test_no_rows() -> None:
    assert refusal(arrow(pa.table({"int": pa.array([], pa.int32())})), ARROW).code == "no_rows"


def test_several_batches() -> None:
    table = pa.concat_tables([pa.table({"big": [1]}), pa.table({"big": [2]})])
    assert rows_of(arrow(table), ARROW, SCHEMA).column("big").to_pylist() == [1, 2]
