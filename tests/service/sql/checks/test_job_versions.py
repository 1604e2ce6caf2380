"""The lowest version of the job format whose workers support a query: the file has one version and query a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.contract.job import SPEC_VERSION, JobSpec
from service.sql.checks.job_versions import CONSTRUCTS, constructs_in
from service.sql.compile import compile_job
from service.sql.ddl import parse_schema
from service.sql.parser import Text, parse_query

SCHEMA = parse_schema("a BIGINT, b BIGINT, s STRING, d DATE, l ARRAY<INT>, r STRUCT<a: INT, b: INT>", "/x")
TABLE = {"kind": "table", "table": "t"}


def _cases() -> Iterator[tuple[int, str]]:
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            version, _, sql = line.partition(" ")
            yield int(version), sql.replace("\\n", "\n")


CASES = list(_cases())


def _version(part: dict[str, Any]) -> int:
    spec = JobSpec.model_validate({"tables": {"t": {"format": "parquet", "path": "t"}}, **part})
    return compile_job(spec, {"t": SCHEMA}).needs_version


@pytest.mark.parametrize(("version", "sql"), CASES)
def test_the_version_that_a_query_needs(version: int, sql: str) -> None:
    assert _version({"sql": sql}) == version


def test_every_construct_has_a_query() -> None:
    queries = [sql for _, sql in CASES if "DESC" not in sql]
    found = {each.name for sql in queries for each in constructs_in(parse_query(Text(sql, "/sql")))}
    assert {construct.name for construct in CONSTRUCTS} == found
    assert all(construct.version <= SPEC_VERSION for construct in CONSTRUCTS)


@pytest.mark.parametrize(
    ("parts", "version"),
    [
        ({}, 3),
        ({"select": [{"expression": "upper(s)", "name": "a"}]}, 3),
        ({"select": [{"expression": "int(s)", "name": "a"}]}, 12),
        ({"select": [{"expression": "repeat(s, 2)", "name": "a"}]}, 12),
        ({"select": [{"expression": "l[0]", "name": "a"}]}, 12),
        ({"where": "substring(s FROM 2) = 'repeat(x)'"}, 12),
        ({"where": "s = 'repeat(x)'"}, 3),
        ({"offset": 1}, 12),
        ({"joins": [{"kind": "left", "right": {**TABLE, "alias": "u"}, "residual": "t.a > u.a"}]}, 12),
        ({"select": [], "aggregates": [{"function": "MAX_BY", "arguments": ["a", "b"], "name": "m"}]}, 12),
        ({"select": [], "aggregates": [{"function": "LISTAGG", "arguments": ["s"], "name": "m"}]}, 12),
        ({"select": [], "aggregates": [{"function": "MAX", "arguments": ["a"], "name": "m"}]}, 3),
    ],
    ids=str,
)
def test_the_version_that_a_structured_query_needs(parts: dict[str, Any], version: int) -> None:
    query = {"source": TABLE, "select": [{"expression": "t.a", "name": "a"}], **parts}
    assert _version({"query": query}) == version
