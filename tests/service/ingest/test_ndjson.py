"""Rows as JSON, one a line: read exactly or refused."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from service.ingest.parsing import NDJSON, rows_of
from tests.support.posted_rows import SCHEMA, refusal, value

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


@pytest.mark.parametrize(("column", "text", "expected"), TAKEN)
def test_taken(column: str, text: str, expected: Any) -> None:
    assert value(f'{{"{column}": {text}}}', NDJSON, column) == expected


@pytest.mark.parametrize("column", SCHEMA.names)
def test_null_and_nothing_are_null(column: str) -> None:
    assert value(f'{{"{column}": null}}', NDJSON, column) is None
    assert value("{}", NDJSON, column) is None


@pytest.mark.parametrize(("column", "text"), REFUSED)
def test_refused_with_its_place(column: str, text: str) -> None:
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
def test_no_row(line: str) -> None:
    issue = refusal("{}\n" + line + "\n{}\n")
    assert (issue.code, issue.line) == ("malformed_row", 2)


@pytest.mark.parametrize("text", ['{"int": 1, "int": 1}', '{"int": 1, "text": "a", "\\u0069nt": 2}'])
def test_a_key_given_twice(text: str) -> None:
    issue = refusal(f"{{}}\n{text}")
    assert (issue.code, issue.line, issue.pointer) == ("duplicate_key", 2, "/int")


@pytest.mark.parametrize(("name", "nearest"), [("tinny", "tiny"), ("INT", "int"), ("prices", "price")])
def test_an_unknown_column(name: str, nearest: str) -> None:
    issue = refusal(f'{{}}\n{{"{name}": 1}}')
    assert (issue.code, issue.line) == ("unknown_column", 2)
    assert issue.suggestions[0] == nearest


@pytest.mark.parametrize("body", ["", "\n", " \r\n\t\n"])
def test_no_rows(body: str) -> None:
    assert refusal(body).code == "no_rows"


def test_lines_may_end_as_on_windows_and_the_last_not_at_all() -> None:
    table = rows_of(b'{"int": 1}\r\n\r\n{"int": 2}', NDJSON, SCHEMA)
    assert table.column("int").to_pylist() == [1, 2]


def test_a_byte_order_mark_is_passed_over() -> None:
    assert value(b'\xef\xbb\xbf{"int": 1}\n', NDJSON, "int") == 1


def test_bytes_that_are_no_text() -> None:
    assert refusal(b'{}\n{"text": "\xff"}').line == 2


def test_u2028_is_no_end_of_a_line() -> None:
    assert value('{"text": "a\u2028b"}', NDJSON, "text") == "a\u2028b"
