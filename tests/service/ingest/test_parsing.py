"""Posted rows are read exactly or refused, whatever they are written in."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import string
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import InvalidRowsError
from service.ingest import limits
from service.ingest.columns import arrow_schema
from service.ingest.media_types import ARROW, CSV, NDJSON
from service.ingest.parsing import rows_of
from service.spec.ddl import parse_schema, schema_text
from service.spec.errors import Issue

DDL = (
    "flag BOOLEAN, tiny TINYINT, small SMALLINT, int INT, big BIGINT, single FLOAT, double DOUBLE, text STRING, "
    "price DECIMAL(5,2), at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, raw BINARY"
)
SCHEMA = parse_schema(DDL, "/schema")


def value(body: str | bytes, media_type: str, column: str) -> Any:
    """What one row has in a column."""
    table = rows_of(body.encode() if isinstance(body, str) else body, media_type, SCHEMA)
    assert table.schema == arrow_schema(SCHEMA)
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


TAKEN: list[tuple[str, str, Any]] = [
    # column, text in a JSON object, value
    ("flag", "true", True),
    ("tiny", "-128", -128),
    ("small", "32767", 32767),
    ("int", "-2147483648", -(2**31)),
    ("big", "9223372036854775807", 2**63 - 1),
    ("big", "-0", 0),
    ("single", "0.1", 0.10000000149011612),
    ("single", "16777217", 16777216.0),
    ("double", "0.1", 0.1),
    ("double", "1", 1.0),
    ("double", "-1.5e300", -1.5e300),
    ("double", "1e-400", 0.0),
    ("text", '""', ""),
    ("text", '"\\ud83d\\ude00\\u0000"', "😀\0"),
    ("text", '"a\\nb"', "a\nb"),
    ("price", "1.10", Decimal("1.10")),
    ("price", '"1.10"', Decimal("1.10")),
    ("price", "-999.99", Decimal("-999.99")),
    ("price", "1e2", Decimal(100)),
    ("price", "7", Decimal(7)),
    ("price", "0.1000", Decimal("0.1")),
    ("at", '"2026-01-31T12:00:00Z"', datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ("at", '"2026-01-31T12:00:00.123456+05:30"', datetime(2026, 1, 31, 6, 30, 0, 123456, tzinfo=UTC)),
    ("at", '"0001-01-01T00:00:00Z"', datetime(1, 1, 1, tzinfo=UTC)),
    ("at", '"9999-12-31T23:59:59.999999Z"', datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
    ("local", '"2026-01-31T12:00:00.5"', datetime(2026, 1, 31, 12, 0, 0, 500000)),  # noqa: DTZ001 - of no zone
    ("day", '"2024-02-29"', date(2024, 2, 29)),
    ("day", '"0001-01-01"', date(1, 1, 1)),
    ("raw", '"AAH/"', b"\x00\x01\xff"),
    ("raw", '""', b""),
]

REFUSED = [
    ("flag", "1"),
    ("flag", '"true"'),
    ("tiny", "128"),
    ("tiny", "-129"),
    ("small", "32768"),
    ("int", "2147483648"),
    ("big", "9223372036854775808"),
    ("big", "-9223372036854775809"),
    ("big", "1.0"),
    ("big", "1e3"),
    ("big", '"1"'),
    ("big", "true"),
    ("big", "[1]"),
    ("big", "{}"),
    ("double", "1e400"),
    ("double", "-1e400"),
    ("double", '"NaN"'),
    ("double", "true"),
    ("single", "1e39"),
    ("text", "1"),
    ("text", "null1"),
    ("text", '"\\ud800"'),
    ("text", '["a"]'),
    ("price", "1.123"),
    ("price", "1000"),
    ("price", "1e300"),
    ("price", '""'),
    ("price", '"1,5"'),
    ("price", '"NaN"'),
    ("price", "true"),
    ("at", '"2026-01-31T12:00:00"'),
    ("at", '"2026-01-31"'),
    ("at", '"2026-01-31 12:00:00Z"'),
    ("at", '"2026-01-31T12:00Z"'),
    ("at", '"2026-01-31T12:00:00+0530"'),
    ("at", '"2026-01-31T12:00:00.1234567Z"'),
    ("at", '"2026-02-30T12:00:00Z"'),
    ("at", '"2026-01-31T24:00:00Z"'),
    ("at", '"2026-01-31T23:59:60Z"'),
    ("at", '"2026-01-31T12:00:00+25:00"'),
    ("at", '"0000-01-31T12:00:00Z"'),
    ("at", '"9999-12-31T23:59:59-01:00"'),
    ("at", '"0001-01-01T00:00:00+01:00"'),
    ("at", "1769860800"),
    ("local", '"2026-01-31T12:00:00Z"'),
    ("day", '"2026-02-30"'),
    ("day", '"2026-2-3"'),
    ("day", '"2026-01-31T00:00:00"'),
    ("day", '"2026-01-31\\n"'),
    ("raw", '"A"'),
    ("raw", '"AA=A"'),
    ("raw", '"A A="'),
    ("raw", '"_-8="'),
    ("raw", '"ä"'),
]


class TestNdjson:
    @pytest.mark.parametrize(("column", "text", "expected"), TAKEN)
    def test_taken(self, column: str, text: str, expected: Any) -> None:
        assert value(f'{{"{column}": {text}}}', NDJSON, column) == expected

    @pytest.mark.parametrize("column", SCHEMA.names)
    def test_null_and_nothing_are_null(self, column: str) -> None:
        assert value(f'{{"{column}": null}}', NDJSON, column) is None
        assert value("{}", NDJSON, column) is None

    @pytest.mark.parametrize(("column", "text"), REFUSED)
    def test_refused_with_its_place(self, column: str, text: str) -> None:
        issue = refusal(f'{{"{column}": null}}\n\n{{"{column}": {text}}}\n{{}}\n')
        assert issue.line == 3
        if issue.code == "invalid_value":
            assert issue.pointer == f"/{column}"
            assert column in issue.detail
        else:
            assert issue.code == "malformed_row"

    @pytest.mark.parametrize(
        "line",
        [
            "null",
            "1",
            "[]",
            '"a"',
            "{",
            "}",
            '{"int": 1',
            '{"int": 1}}',
            '{"int": 1} {"int": 2}',
            "{'int': 1}",
            '{"int": 01}',
            '{"int": 1,}',
            '{"double": NaN}',
            '{"double": Infinity}',
            '{"double": -Infinity}',
            '{"text": "a\tb"}',
            '{"int": ' + "9" * 5000 + "}",
            "[" * 100_000,
            "\ufeff{}",
            "{}//",
            "\u00a0",
            "{}\u00a0",
            "\v{}",
        ],
    )
    def test_no_row(self, line: str) -> None:
        issue = refusal("{}\n" + line + "\n{}\n")
        assert (issue.code, issue.line) == ("malformed_row", 2)

    @pytest.mark.parametrize("text", ['{"int": 1, "int": 1}', '{"int": 1, "text": "a", "\\u0069nt": 2}'])
    def test_a_key_given_twice(self, text: str) -> None:
        issue = refusal(f"{{}}\n{text}")
        assert (issue.code, issue.line, issue.pointer) == ("duplicate_key", 2, "/int")

    @pytest.mark.parametrize(("name", "nearest"), [("tinny", "tiny"), ("INT", "int"), ("prices", "price")])
    def test_an_unknown_column(self, name: str, nearest: str) -> None:
        issue = refusal(f'{{}}\n{{"{name}": 1}}')
        assert (issue.code, issue.line) == ("unknown_column", 2)
        assert issue.suggestions[0] == nearest

    @pytest.mark.parametrize("body", ["", "\n", " \r\n\t\n"])
    def test_no_rows(self, body: str) -> None:
        assert refusal(body).code == "no_rows"

    def test_lines_may_end_as_on_windows_and_the_last_not_at_all(self) -> None:
        table = rows_of(b'{"int": 1}\r\n\r\n{"int": 2}', NDJSON, SCHEMA)
        assert table.column("int").to_pylist() == [1, 2]

    def test_a_byte_order_mark_is_passed_over(self) -> None:
        assert value(b'\xef\xbb\xbf{"int": 1}\n', NDJSON, "int") == 1

    def test_bytes_that_are_no_text(self) -> None:
        assert refusal(b'{}\n{"text": "\xff"}').line == 2

    def test_u2028_is_no_end_of_a_line(self) -> None:
        assert value('{"text": "a\u2028b"}', NDJSON, "text") == "a\u2028b"


class TestCsv:
    @pytest.mark.parametrize("body", ["1,/\n2,b\n", "int;text\n2;b\n"])
    def test_a_first_line_that_is_no_header_is_told_of_it(self, body: str) -> None:
        issue = refusal(body, CSV)
        assert issue.code == "unknown_column"
        assert "The first line names the columns, parted by commas." in issue.detail

    @pytest.mark.parametrize(
        ("column", "text", "expected"),
        [
            ("flag", "true", True),
            ("flag", "FALSE", False),
            ("tiny", "-128", -128),
            ("int", "007", 7),
            ("big", "-9223372036854775808", -(2**63)),
            ("double", "-1.5e300", -1.5e300),
            ("double", "-Infinity", -math.inf),
            ("text", "a", "a"),
            ("text", " a ", " a "),
            ("text", '""', ""),
            ("text", '"a ""b"", c"', 'a "b", c'),
            ("text", '"a\r\nb"', "a\r\nb"),
            ("text", "NULL", "NULL"),
            ("price", "1.10", Decimal("1.10")),
            ("at", "2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
            ("day", "2024-02-29", date(2024, 2, 29)),
            ("raw", "AAH/", b"\x00\x01\xff"),
        ],
    )
    def test_taken(self, column: str, text: str, expected: Any) -> None:
        assert value(f"int,{column}\n,{text}\n" if column != "int" else f"int\n{text}\n", CSV, column) == expected

    def test_nan(self) -> None:
        assert math.isnan(value("double\nNaN\n", CSV, "double"))

    @pytest.mark.parametrize("column", SCHEMA.names)
    def test_what_is_empty_or_left_out_is_null(self, column: str) -> None:
        other = "text" if column != "text" else "int"
        assert value(f"{other},{column}\n1,\n", CSV, column) is None
        assert value(f"{other}\n1\n", CSV, column) is None

    @pytest.mark.parametrize(
        ("column", "text"),
        [
            ("flag", "1"),
            ("flag", "yes"),
            ("tiny", "128"),
            ("int", "1.0"),
            ("int", " 1"),
            ("int", "0x10"),
            ("int", '""'),
            ("big", "9223372036854775808"),
            ("big", "+1"),
            ("double", "nan"),
            ("double", "inf"),
            ("double", "1e400"),
            ("double", "1.5.5"),
            ("price", "1.123"),
            ("price", "NaN"),
            ("at", "2026-01-31T12:00:00"),
            ("day", "31.01.2026"),
            ("raw", "A"),
        ],
    )
    def test_refused_with_its_place(self, column: str, text: str) -> None:
        issue = refusal(f'text,{column}\n"a\n\nb",\n\n\n"""x""",{text}\nc,\n', CSV)
        assert (issue.code, issue.line, issue.pointer) == ("invalid_value", 7, f"/{column}")

    @pytest.mark.parametrize(
        ("body", "line"),
        [
            ("int,text\n1,a\n2\n", 3),
            ('int,text\n\n1,"a\nb"\n2,b,c\n', 5),
            ('text\n"a\n', 2),
            ('text\na\n"b"c\n', 3),
            ('text\na"b"\n', 2),
            ('text\n"a\n\n"b\n', 2),
            ('text,int\n"a""\n",1\n"b', 4),
        ],
    )
    def test_malformed(self, body: str, line: int) -> None:
        issue = refusal(body, CSV)
        assert (issue.code, issue.line) == ("malformed_row", line)

    @pytest.mark.parametrize(
        ("header", "code"),
        [
            ("int,txet", "unknown_column"),
            ("int,", "unknown_column"),
            ("int, text", "unknown_column"),
            ("int,int", "duplicate_key"),
        ],
    )
    def test_the_header_names_columns(self, header: str, code: str) -> None:
        issue = refusal(f"{header}\n1,2\n", CSV)
        assert (issue.code, issue.line) == (code, 1)

    @pytest.mark.parametrize("body", ["", "int", "int,text\n", "\n\n", "int\n\n\n"])
    def test_no_rows(self, body: str) -> None:
        assert refusal(body, CSV).code == "no_rows"

    def test_a_mark_of_byte_order_is_passed_over(self) -> None:
        assert value("\ufeffint\n1\n", CSV, "int") == 1

    def test_columns_in_any_order(self) -> None:
        assert value("text,int\na,1\n", CSV, "int") == 1


class TestArrow:
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
    def test_taken(self, column: str, array: pa.Array, expected: Any) -> None:
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
    def test_a_value_that_does_not_fit(self, column: str, array: pa.Array) -> None:
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
    def test_a_column_of_another_type(self, column: str, array: pa.Array) -> None:
        issue = refusal(arrow(pa.table({column: array})), ARROW)
        assert (issue.code, issue.pointer) == ("invalid_value", f"/{column}")

    def test_an_unknown_column(self) -> None:
        issue = refusal(arrow(pa.table({"intt": [1]})), ARROW)
        assert (issue.code, issue.suggestions[0]) == ("unknown_column", "int")

    def test_a_column_given_twice(self) -> None:
        assert refusal(arrow(pa.table([[1], [2]], names=["int", "int"])), ARROW).code == "duplicate_key"

    def test_the_format_of_files_is_told_apart(self) -> None:
        written, table = io.BytesIO(), pa.table({"int": pa.array([1], pa.int32())})
        with ipc.new_file(written, table.schema) as writer:
            writer.write_table(table)
        assert "streaming format" in refusal(written.getvalue(), ARROW).detail

    @pytest.mark.parametrize("compression", ["lz4", "zstd"])
    def test_compression_is_refused(self, compression: str) -> None:
        assert "ompress" in refusal(arrow(pa.table({"big": range(1000)}), compression=compression), ARROW).detail

    def test_compressed_dictionaries_are_too(self) -> None:
        table = pa.table({"text": pa.array(["a" * 1000, "b"]).dictionary_encode()})
        assert "ompress" in refusal(arrow(table, compression="zstd"), ARROW).detail

    def test_buffers_that_several_columns_share(self) -> None:
        # The second column gets the place of the first one, and its own is cut out.
        body = arrow(pa.table({"big": pa.array(range(1000)), "double": pa.array([0.5] * 1000)}))
        size, both = (8000).to_bytes(8, "little"), (16000).to_bytes(8, "little")
        place = body.rindex(size + size)
        assert body.count(both) == 1
        body = (body[:place] + bytes(8) + body[place + 8 :]).replace(both, size)
        at = body.index(b"\0\0\0\0\0\0\xe0\x3f" * 1000)
        assert "share" in refusal(body[:at] + body[at + 8000 :], ARROW).detail

    def test_rows_without_columns(self) -> None:
        batch = pa.RecordBatch.from_struct_array(pa.array([{}] * (limits.MAX_ROWS + 1), pa.struct([])))
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
    def test_no_stream(self, spoil: Callable[[bytes], bytes]) -> None:
        assert refusal(spoil(arrow(pa.table({"int": pa.array([1, 2], pa.int32())}))), ARROW).code == "malformed_row"

    @given(st.data())
    def test_damaged_streams_are_refused_or_read(self, data: st.DataObject) -> None:
        body = bytearray(arrow(pa.table({"big": [1, None, 3], "text": ["a", "bc", None], "flag": [True, False, None]})))
        for _ in range(data.draw(st.integers(1, 3))):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        try:
            table = rows_of(bytes(body), ARROW, SCHEMA)
        except InvalidRowsError:
            return
        table.validate(full=True)

    def test_no_rows(self) -> None:
        assert refusal(arrow(pa.table({"int": pa.array([], pa.int32())})), ARROW).code == "no_rows"

    def test_several_batches(self) -> None:
        table = pa.concat_tables([pa.table({"big": [1]}), pa.table({"big": [2]})])
        assert rows_of(arrow(table), ARROW, SCHEMA).column("big").to_pylist() == [1, 2]


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
    return arrow(pa.Table.from_pylist(rows, arrow_schema(SCHEMA)))


@pytest.mark.parametrize(("media_type", "write"), [(NDJSON, as_ndjson), (CSV, as_csv), (ARROW, as_arrow)])
@given(rows=st.lists(ROW, min_size=1, max_size=6))
def test_what_is_written_is_read(
    media_type: str, write: Callable[[list[dict[str, Any]]], bytes], rows: list[dict[str, Any]]
) -> None:
    read = rows_of(write(rows), media_type, SCHEMA)
    assert read.schema == arrow_schema(SCHEMA)
    assert read.equals(pa.Table.from_pylist(rows, arrow_schema(SCHEMA)))


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


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cf", "Zl", "Zp"]), min_size=1, max_size=6)


@given(names=st.lists(NAMES, min_size=1, max_size=4, unique_by=str.casefold))
def test_a_schema_is_spelled_so_that_it_is_read_again(names: list[str]) -> None:
    text = ", ".join(f"`{name.replace('`', '``')}` DECIMAL(7,3)" for name in names)
    schema = parse_schema(text, "/schema")
    assert parse_schema(schema_text(schema), "/schema") == schema


@pytest.mark.parametrize("name", ["select", "order", "date", "timestamp", "INT", "null", "_", "a b", "a`b", "ä", "1a"])
def test_so_are_names_that_sql_has_too(name: str) -> None:
    schema = parse_schema(f"`{name.replace('`', '``')}` INT", "/schema")
    assert schema.names == (name,)
    assert parse_schema(schema_text(schema), "/schema") == schema
