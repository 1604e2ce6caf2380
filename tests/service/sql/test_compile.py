"""A job's query, whichever way it is given."""

from __future__ import annotations

from typing import Any

import pytest

from service.contract.job import JobSpec
from service.contract.problems import SpecError
from service.sql.compile import compile_job
from service.sql.ddl import parse_schema

SCHEMAS = {"users": parse_schema("uid INT, name STRING", "/x")}
TABLES = {"users": {"format": "parquet", "path": "users/"}}


def job(**parts: Any) -> JobSpec:
    return JobSpec.model_validate({"tables": TABLES, **parts})


def test_sql_and_structure_bind_to_the_same() -> None:
    sql = job(sql="SELECT name, COUNT(*) AS n FROM users GROUP BY name")
    structure = job(
        query={
            "source": {"kind": "table", "table": "users"},
            "group_by": [{"expression": "name", "name": "name"}],
            "aggregates": [{"function": "COUNT", "name": "n"}],
        }
    )
    assert compile_job(sql, SCHEMAS) == compile_job(structure, SCHEMAS)


def test_a_stored_job_compiles_to_the_same() -> None:
    spec = job(sql="SELECT upper(name) AS name FROM users WHERE name = 'it''s'")
    stored = JobSpec.model_validate(spec.model_dump(mode="json", by_alias=True))
    assert compile_job(stored, SCHEMAS) == compile_job(spec, SCHEMAS)


@pytest.mark.parametrize(
    ("parts", "pointer", "line", "column"),
    [
        ({"sql": "SELECT name\nFROM users\nWHERE uid"}, "/sql", 3, 7),
        (
            {
                "query": {
                    "source": {"kind": "table", "table": "users"},
                    "select": [{"expression": "name", "name": "n"}],
                    "where": "name = 'x' AND uid",
                }
            },
            "/query/where",
            1,
            16,
        ),
    ],
)
def test_errors_point_into_what_was_given(parts: dict[str, Any], pointer: str, line: int, column: int) -> None:
    with pytest.raises(SpecError) as caught:
        compile_job(job(**parts), SCHEMAS)
    issue = caught.value.issues[0]
    assert (issue.code, issue.pointer, issue.line, issue.column) == ("type_mismatch", pointer, line, column)


USERS: dict[str, Any] = {"kind": "table", "table": "users"}


def nested(depth: int) -> dict[str, Any]:
    query: dict[str, Any] = {"source": USERS, "select": [{"expression": "uid", "name": "uid"}]}
    for _ in range(depth):
        source = {"kind": "query", "query": query, "alias": "q"}
        query = {"source": source, "select": [{"expression": "uid", "name": "uid"}]}
    return query


def selecting(*expressions: str, **parts: Any) -> dict[str, Any]:
    select = [{"expression": text, "name": f"c{number}"} for number, text in enumerate(expressions)]
    return {"source": USERS, "select": select, **parts}


IN_LIST = f"uid IN ({','.join(['1'] * 9_000)})"

HOSTILE = {
    "thirteen queries in each other": nested(12),
    "fifty queries in each other": nested(50),
    "parentheses": selecting("(" * 10_000 + "uid" + ")" * 10_000),
    "CASE": selecting("CASE WHEN uid = 1 THEN " * 40 + "uid" + " END" * 40),
    "a chain": selecting("+".join(["uid"] * 9_000)),
    "an IN list of 40,000": selecting(f"uid IN ({','.join(['1'] * 40_000)})"),
    "fifty IN lists of 9,000": selecting(*[IN_LIST] * 50),
    "a UNION ALL of unions": selecting(
        "uid",
        source={
            "kind": "union_all",
            "alias": "q",
            "queries": [
                selecting("uid", source={"kind": "union_all", "alias": "q", "queries": [nested(0)] * 12})
                for _ in range(12)
            ],
        },
    ),
}


@pytest.mark.not_quick
@pytest.mark.withstands(
    "a structured query that is too deep or too long",
    kind="attack",
    how="nested queries and parentheses, chains, IN lists of 40,000 values, many lists of 9,000 values, nested unions",
    times=8,
    guaranteed="422 `query_too_deep`, for all expressions together, before parsing",
)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_structure_is_refused(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        compile_job(job(query=HOSTILE[name]), SCHEMAS)
    assert caught.value.code == "query_too_deep"


@pytest.mark.not_quick
def test_a_large_list_of_values_is_taken() -> None:
    assert len(compile_job(job(query=selecting("name", where=IN_LIST)), SCHEMAS).select) == 1
