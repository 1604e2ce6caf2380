"""Rows as CSV: read exactly or refused."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from service.ingest.parsing import CSV
from tests.support.posted_rows import SCHEMA, refusal, value


@pytest.mark.parametrize("body", ["1,/\n2,b\n", "int;text\n2;b\n"])
def test_a_first_line_that_is_no_header_is_told_of_it(body: str) -> None:
    issue = refusal(body, CSV)
    assert issue.code == "unknown_column"
    assert "The first line must name the columns, separated by commas." in issue.detail


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
def test_taken(column: str, text: str, expected: Any) -> None:
    assert value(f"int,{column}\n,{text}\n" if column != "int" else f"int\n{text}\n", CSV, column) == expected


def test_nan() -> None:
    assert math.isnan(value("double\nNaN\n", CSV, "double"))


@pytest.mark.parametrize("column", SCHEMA.names)
def test_what_is_empty_or_left_out_is_null(column: str) -> None:
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
def test_refused_with_its_place(column: str, text: str) -> None:
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
def test_malformed(body: str, line: int) -> None:
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
def test_the_header_names_columns(header: str, code: str) -> None:
    issue = refusal(f"{header}\n1,2\n", CSV)
    assert (issue.code, issue.line) == (code, 1)


@pytest.mark.parametrize("body", ["", "int", "int,text\n", "\n\n", "int\n\n\n"])
def test_no_rows(body: str) -> None:
    assert refusal(body, CSV).code == "no_rows"


def test_a_mark_of_byte_order_is_passed_over() -> None:
    assert value("\ufeffint\n1\n", CSV, "int") == 1


def test_columns_in_any_order() -> None:
    assert value("text,int\na,1\n", CSV, "int") == 1
