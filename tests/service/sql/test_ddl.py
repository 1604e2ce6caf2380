"""Declared schemas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contract.problems import SpecError
from service.sql.ddl import parse_schema, schema_text


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("uid BIGINT, name STRING, price DECIMAL(10,2)", "uid BIGINT, name STRING, price DECIMAL(10,2)"),
        ("a int not null comment 'x''y', b: timestamp", "a INT, b TIMESTAMP"),
        ("a long, b short, c byte, d real, e dec(5)", "a BIGINT, b SMALLINT, c TINYINT, d FLOAT, e DECIMAL(5,0)"),
        ("a decimal, b numeric(38, 38), c integer", "a DECIMAL(10,0), b DECIMAL(38,38), c INT"),
        ("date DATE, timestamp TIMESTAMP_NTZ, `we ird` double", "date DATE, timestamp TIMESTAMP_NTZ, we ird DOUBLE"),
        ("select INT, case BINARY, end BOOLEAN, from STRING", "select INT, case BINARY, end BOOLEAN, from STRING"),
        ("`a``b` INT, 1st INT, é STRING", "a`b INT, 1st INT, é STRING"),
    ],
)
def test_accepted(text: str, columns: str) -> None:
    schema = parse_schema(text, "/tables/t/schema")
    assert ", ".join(f"{field.name} {field.type}" for field in schema.fields) == columns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        ",",
        "a",
        "a INT,",
        "a INT b INT",
        "a INT, A STRING",
        "a FOO",
        "a STRIN",
        "a VOID",
        "a OTHER",
        "a ARRAY",
        "a ARRAY<INT",
        "a ARRAY<>",
        "a MAP<INT>",
        "a MAP<MAP<INT, INT>, INT>",
        "a STRUCT<>",
        "a STRUCT<b: INT, B: INT>",
        "a " + "ARRAY<" * 17 + "INT" + ">" * 17,
        "a VARCHAR(5)",
        "a STRING(5)",
        "a DECIMAL(39,2)",
        "a DECIMAL(5,6)",
        "a DECIMAL(0)",
        "a DECIMAL(1e1)",
        "a DECIMAL(5",
        "a DECIMAL(5,2,1)",
        "a INT DEFAULT 5",
        "a INT NOT",
        "a INT COMMENT 5",
        "a-b INT",
        "a.b INT",
        "a INT); DROP TABLE t",
        "a INT; b INT",
        "a 'INT'",
        "a\x00 INT",
        "(" * 10_000,
        "`` INT",
        "'a' INT, 'unclosed",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_schema(text, "/tables/t/schema")
    assert caught.value.code == "invalid_schema"
    assert caught.value.issues[0].pointer == "/tables/t/schema"


def test_place_and_neighbours_are_told() -> None:
    with pytest.raises(SpecError) as caught:
        parse_schema("a INT,\nb STRIN", "/x")
    issue = caught.value.issues[0]
    assert (issue.line, issue.column) == (2, 3)
    assert issue.suggestions[0] == "STRING"


@pytest.mark.parametrize(
    "text",
    [
        "a ARRAY<INT>",
        "a MAP<STRING, ARRAY<ARRAY<DATE>>>, b INT",
        "s STRUCT<p: INT, `q r`: STRUCT<x: DECIMAL(10,2)>>",
    ],
)
def test_nested_types_are_read_as_they_are_written(text: str) -> None:
    assert schema_text(parse_schema(text, "/x")) == text


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
