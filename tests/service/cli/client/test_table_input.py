"""Tables of the command line."""

from __future__ import annotations

import pytest

from service.cli.client.table_input import given_tables, table_source
from service.cli.errors import CliError, ExitCode


@pytest.mark.parametrize(
    ("text", "kind", "path"),
    [
        ("parquet:flights/", "parquet", "flights/"),
        ("csv:a:b=c", "csv", "a:b=c"),
        ("flights.PARQUET", "parquet", "flights.PARQUET"),
        ("s3a://lake/orders.jsonl", "json", "s3a://lake/orders.jsonl"),
        ("parquet:s3a://lake/orders/", "parquet", "s3a://lake/orders/"),
    ],
)
def test_a_table(text: str, kind: str, path: str) -> None:
    assert table_source(text) == {"format": kind, "path": path}


@pytest.mark.parametrize("text", ["flights/", "orc:flights/", "parquet:", ""])
def test_what_does_not_tell_its_format(text: str) -> None:
    with pytest.raises(CliError, match="does not tell its format"):
        table_source(text)


def test_columns_and_options() -> None:
    tables = given_tables(
        ["u=csv:users/", "f=parquet:flights/", "t=a.tsv"],
        ["u=uid BIGINT, name STRING"],
        ["u.header=true", "u.null_value=0", "t.quote='"],
    )
    assert tables == {
        "u": {
            "format": "csv",
            "path": "users/",
            "schema": "uid BIGINT, name STRING",
            "options": {"header": True, "null_value": "0"},
        },
        "f": {"format": "parquet", "path": "flights/"},
        "t": {"format": "csv", "path": "a.tsv", "options": {"delimiter": "\t", "quote": "'"}},
    }


@pytest.mark.parametrize(
    ("tables", "schemas", "options", "told"),
    [
        (["f"], [], [], "--table 'f' cannot be read"),
        (["f=csv:a", "f=csv:b"], [], [], "twice"),
        (["f=csv:a"], ["g=x INT"], [], "which --table does not give"),
        (["f=csv:a"], [], ["header=true"], "names no table"),
        (["f=csv:a"], [], ["f.header"], "--read 'f.header' cannot be read"),
    ],
)
def test_mistakes(tables: list[str], schemas: list[str], options: list[str], told: str) -> None:
    with pytest.raises(CliError, match=told) as raised:
        given_tables(tables, schemas, options)
    assert raised.value.code == ExitCode.USAGE
