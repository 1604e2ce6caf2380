"""The job that is built from files and options: YAML and JSON, tables, settings, and excerpts of SQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from service.cli.job_input import (
    CommandLine,
    given_settings,
    given_tables,
    merged_parameters,
    merged_settings,
    parsed_document,
    read_job,
)
from service.cli.terminal import CliError, ExitCode
from service.client.job_spec import table_source
from service.client.problem_text import excerpt
from service.contract.options import JobSettings

YAML = """
name: nightly
tables: {f: {format: parquet, path: flights/}}
on: yes
since: 2013-01-31
at: 12:30
id: 007
n: 16
x: 1.5e3
none: ~
truth: true
sql: |
  SELECT 1
  FROM f
"""


def test_yaml_1_2_scalars() -> None:
    assert parsed_document(YAML, "job.yaml") == {
        "name": "nightly",
        "tables": {"f": {"format": "parquet", "path": "flights/"}},
        "on": "yes",
        "since": "2013-01-31",
        "at": "12:30",
        "id": "007",
        "n": 16,
        "x": 1500.0,
        "none": None,
        "truth": True,
        "sql": "SELECT 1\nFROM f\n",
    }


@pytest.mark.parametrize("text", ['{"a": [1, "x"]}', "{a: [1, x]}", '{\n\t"a": [1,\n\t"x"]}'])
def test_json_and_yaml_in_flow_style(text: str) -> None:
    assert parsed_document(text, "standard input") == {"a": [1, "x"]}


@pytest.mark.parametrize(
    ("text", "label", "place"),
    [
        ("a: 1\nb: [1\nc: 2\n", "job.yaml", "job.yaml:3:2"),
        ('{"a": 1,\n "b" 2}', "job.json", "job.json:2:6"),
        ("a: 1\na: 2\n", "job.yaml", "job.yaml:2:1"),
        ("x: !!python/object:os.system {}\n", "job.yaml", "job.yaml:1:4"),
    ],
)
def test_syntax_error_has_its_place(text: str, label: str, place: str) -> None:
    with pytest.raises(CliError, match=f"{label} cannot be read") as raised:
        parsed_document(text, label)
    assert raised.value.code == ExitCode.USAGE
    assert raised.value.advice.splitlines()[0] == place
    assert raised.value.advice.splitlines()[2].strip() == "^"


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', "a: {b: 1, b: 2}"])
def test_duplicate_keys_are_refused(text: str) -> None:
    with pytest.raises(CliError, match="duplicate key"):
        parsed_document(text, "job")


@pytest.mark.parametrize("text", ["a: !!timestamp x", "a: !!int x", "a: !!python/name:os.system x"])
def test_invalid_tags_are_refused(text: str) -> None:
    with pytest.raises(CliError) as raised:
        parsed_document(text, "job.yaml")
    assert raised.value.code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("parquet:flights/", {"format": "parquet", "path": "flights/"}),
        ("csv:a:b=c", {"format": "csv", "path": "a:b=c"}),
        ("delta:orders", {"format": "delta", "path": "orders"}),
        ("parquet:s3a://lake/orders/", {"format": "parquet", "path": "s3a://lake/orders/"}),
        # The service determines the format of these.
        ("flights/", {"path": "flights/"}),
        ("s3a://lake/orders.jsonl", {"path": "s3a://lake/orders.jsonl"}),
        ("excel:flights/", {"path": "excel:flights/"}),
    ],
)
def test_table_source(text: str, source: dict[str, str]) -> None:
    assert table_source(text) == source


def test_schemas_and_read_options() -> None:
    tables = given_tables(
        ["u=csv:users/", "f=parquet:flights/", "t=a.tsv"],
        ["u=uid BIGINT, name STRING"],
        ["u.header=true", "u.null_value=0", "t.quote='"],
        ["t.amount=DECIMAL(10,2)", "t.address.zip=STRING"],
    )
    assert tables == {
        "u": {
            "format": "csv",
            "path": "users/",
            "schema": "uid BIGINT, name STRING",
            "options": {"header": True, "null_value": "0"},
        },
        "f": {"format": "parquet", "path": "flights/"},
        "t": {
            "path": "a.tsv",
            "options": {"quote": "'"},
            "columns": {"amount": "DECIMAL(10,2)", "address.zip": "STRING"},
        },
    }


@pytest.mark.parametrize(
    ("tables", "schemas", "options", "expected"),
    [
        (["f"], [], [], "invalid option --table 'f'"),
        (["f=csv:a", "f=csv:b"], [], [], "twice"),
        (["f=csv:a"], ["g=x INT"], [], "which no --table defines"),
        (["f=csv:a"], [], ["header=true"], "does not name a table"),
        (["f=csv:a"], [], ["f.header"], "invalid option --read 'f.header'"),
    ],
)
def test_invalid_table_options(tables: list[str], schemas: list[str], options: list[str], expected: str) -> None:
    with pytest.raises(CliError, match=expected) as raised:
        given_tables(tables, schemas, options)
    assert raised.value.code == ExitCode.USAGE


def test_values_of_settings() -> None:
    given = given_settings(["agg_phase=TWO_PHASE", "distinct_split.enabled=true", "skew.factor=4.5", "x= a=b "])
    assert given == {"agg_phase": "TWO_PHASE", "distinct_split.enabled": True, "skew.factor": 4.5, "x": "a=b"}


@pytest.mark.parametrize("pair", ["agg_phase", "=x", ""])
def test_invalid_set_option(pair: str) -> None:
    with pytest.raises(CliError) as raised:
        given_settings([pair])
    assert raised.value.code == ExitCode.USAGE


@pytest.mark.parametrize(
    "base",
    [
        {"skew": {"factor": 2, "threshold": "1MB"}},
        {"skew.factor": 2, "skew.threshold": "1MB"},
        {"table.optimizer.skewed-join-optimization.skewed-factor": 2, "skew": {"threshold": "1MB"}},
    ],
)
@pytest.mark.parametrize("key", ["skew.factor", "table.optimizer.skewed-join-optimization.skewed-factor"])
def test_merged_settings_are_valid(base: dict[str, object], key: str) -> None:
    merged = JobSettings.model_validate(merged_settings(base, {key: 8}))
    assert (merged.skew.factor, merged.skew.threshold) == (8, 1 << 20)


def test_unknown_settings_are_kept() -> None:
    assert merged_settings({"future": {"a": 1}, "x": 1}, {"y": 2}) == {"future.a": 1, "x": 1, "y": 2}
    assert merged_settings({"future": {"a": 1}}, {}) == {"future": {"a": 1}}


@pytest.mark.parametrize("before", ["", "SELECT ", "\t\t", "'大きさ' AS ", "x" * 200])
def test_caret_is_below_the_column(before: str) -> None:
    line, caret = excerpt(f"SELECT\n{before}@ FROM t{' ' * 100}y", 2, len(before) + 1)
    assert cell_len(line.partition("@")[0]) == len(caret) - 1
    assert cell_len(line) <= 80


def test_excerpt_is_escaped() -> None:
    line, caret = excerpt("SELECT '\x1b[31m' @", 1, 16)
    assert line == r"SELECT '\x1b[31m' @"
    assert line[len(caret) - 1] == "@"


def test_excerpt_without_column() -> None:
    assert excerpt("a\nb", 2, None) == ("b",)
    assert excerpt("a\nb", 2, 99) == ("b",)


@pytest.mark.parametrize("line", [0, 3])
def test_excerpt_of_a_missing_line(line: int) -> None:
    assert excerpt("a\nb", line, 1) == ()


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("p=2013-01-31", "2013-01-31"),
        ("p=-12345678901234567890", -12345678901234567890),
        ("p=1.5", 1.5),
        ("p=1e3", "1e3"),
        ("p=007", "007"),
        ("p=true", True),
        ("p=null", "null"),
        ("p=a=b:c", "a=b:c"),
        ("p=", ""),
        ("p:STRING=5", {"type": "STRING", "value": "5"}),
        ("p:DECIMAL(10,2)=1.50", {"type": "DECIMAL(10,2)", "value": "1.50"}),
    ],
)
def test_values_of_parameters(pair: str, value: object) -> None:
    assert merged_parameters({}, [pair]) == {"p": value}


@pytest.mark.parametrize("pairs", [["p"], ["=1"], [":INT=1"], ["p:=1"], ["p=1", "p:INT=2"]])
def test_invalid_parameters(pairs: list[str]) -> None:
    with pytest.raises(CliError) as error:
        merged_parameters({}, pairs)
    assert error.value.code is ExitCode.USAGE


def test_parameters_of_the_file_keep_their_types(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "tables: {t: {format: parquet, path: t}}\n"
        "sql: SELECT :d AS d, :n AS n, :k AS k FROM t\n"
        "parameters: {d: {type: DATE, value: 2024-01-31}, n: 1, k: a}\n"
    )
    found: dict[str, Any] = read_job(CommandLine(str(file), parameters=["d=2024-02-01", "n:BIGINT=2"])).spec
    assert found["parameters"] == {
        "d": {"type": "DATE", "value": "2024-02-01"},
        "n": {"type": "BIGINT", "value": "2"},
        "k": "a",
    }


def test_options_do_not_change_a_list_of_parameters(tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text('{"tables": {"t": {}}, "sql": "SELECT ? FROM t", "parameters": [1]}')
    with pytest.raises(CliError, match="are a list"):
        read_job(CommandLine(str(file), parameters=["n=1"]))
