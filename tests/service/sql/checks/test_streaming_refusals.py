"""What is told of a streaming job that no stream can run: code, place and way out.

Which queries these are is held together with the planner in tests/sql/cases/streams.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.contract.job import JobSpec
from service.contract.problems import Issue, SpecError
from service.contract.query import Query
from service.sql.checks.streaming import check_streaming, groups_rows
from service.sql.compile import compile_job
from service.sql.ddl import parse_schema
from service.sql.resolve.binder import bind

SCHEMAS = {
    "s": parse_schema("k STRING, g INT, i INT, b BIGINT", "/"),
    "t": parse_schema("k STRING, g INT, i INT", "/"),
    "n": parse_schema("g INT, name STRING", "/"),
}


def job(**more: Any) -> JobSpec:
    tables = {
        name: {"format": "parquet", "path": name, "role": "static" if name == "n" else "stream"} for name in SCHEMAS
    }
    return JobSpec.model_validate({"mode": "continuous", "tables": tables, **more})


def issues(**more: Any) -> tuple[Issue, ...]:
    with pytest.raises(SpecError) as caught:
        compile_job(job(**more), SCHEMAS)
    return caught.value.issues


JOIN = "SELECT s.k, COUNT(*) AS n FROM s\nJOIN t ON s.k = t.k"


def test_the_place_in_a_structured_query_is_told() -> None:
    inner = {
        "source": {"kind": "table", "table": "t"},
        "group_by": [{"expression": "k", "name": "k"}],
        "aggregates": [{"function": "COUNT", "name": "n"}],
        "limit": 3,
    }
    query = {
        "source": {"kind": "table", "table": "n"},
        "joins": [
            {
                "kind": "left",
                "right": {"kind": "query", "query": inner, "alias": "v"},
                "on": [{"left": "n.name", "right": "v.k"}],
            }
        ],
        "select": [{"expression": "v.n", "name": "n"}],
        "order_by": [{"expression": "v.n"}],
    }
    assert [(issue.code, issue.pointer) for issue in issues(query=query)] == [
        ("unbounded_order", "/query/order_by/0"),
        ("unbounded_order", "/query/joins/0/right/query/limit"),
        ("outer_side_static", "/query/joins/0"),
    ]


def test_a_job_that_was_taken_is_left_to_the_planner() -> None:
    sql = "SELECT k, i FROM s ORDER BY i"
    assert compile_job(job(sql=sql), SCHEMAS, is_accepted=True).order_by


def test_a_batch_job_may_do_what_no_stream_can() -> None:
    tables = {name: {"format": "parquet", "path": name} for name in SCHEMAS}
    spec = JobSpec.model_validate({"tables": tables, "sql": "SELECT k, i FROM s ORDER BY i LIMIT 3"})
    assert compile_job(spec, SCHEMAS).limit == 3


def test_join_keys_of_unknown_types_are_refused() -> None:
    spec = job(sql=f"{JOIN} GROUP BY s.k")
    query = compile_job(spec, SCHEMAS)
    ((left, right),) = query.joins[0].keys
    odd = replace(query, joins=(replace(query.joins[0], keys=((left, replace(right, type=None)),)),))
    with pytest.raises(SpecError) as caught:
        check_streaming(spec, odd)
    assert [(issue.code, issue.pointer) for issue in caught.value.issues] == [("join_key_types", "/query/joins/0")]


def test_groups_without_a_call_are_distinct_rows() -> None:
    def bound(**parts: Any) -> bool:
        query = Query.model_validate({"source": {"kind": "table", "table": "s"}, **parts})
        return groups_rows(bind(query, SCHEMAS))

    keys = [{"expression": "k", "name": "k"}]
    count = [{"function": "COUNT", "name": "n"}]
    assert not bound(select=keys)
    assert not bound(group_by=keys)
    assert bound(group_by=keys, aggregates=count)
    assert bound(aggregates=count)
    assert bound(group_by=keys, grouping_sets=[["k"], []])


def test_changes_of_a_result_need_tables_without_refresh() -> None:
    fixed = job(sql="SELECT k FROM s").dumped()["tables"]
    tables = {**fixed, "n": {**fixed["n"], "refresh": True}}
    sql = "SELECT n.name, COUNT(*) AS c FROM s JOIN n ON s.g = n.g GROUP BY n.name"
    sink = {"kind": "managed", "change_log": True}
    (issue,) = issues(tables=tables, sql=sql, sink=sink)
    assert (issue.code, issue.pointer) == ("change_log_not_applicable", "/sink/change_log")
    for accepted in ({"tables": fixed, "sink": sink}, {"tables": tables}):
        compile_job(job(sql=sql, **accepted), SCHEMAS)
    # The rows of this query never change.
    compile_job(job(tables=tables, sql="SELECT n.name FROM s JOIN n ON s.g = n.g", sink=sink), SCHEMAS)
