"""A job's query, whichever way it is given."""

from __future__ import annotations

from typing import Any

import pytest

from service.spec.compile import compile_job
from service.spec.ddl import parse_schema
from service.spec.errors import SpecError
from service.spec.job import JobSpec

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
