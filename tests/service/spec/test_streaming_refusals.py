"""What is told of a streaming job that no stream can run: code, place and way out.

Which queries these are is held together with the planner in tests/conformance/test_stream_refusals.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.spec.binding import bind
from service.spec.compile import compile_job
from service.spec.ddl import parse_schema
from service.spec.errors import Issue, SpecError
from service.spec.job import JobSpec
from service.spec.query import Query
from service.spec.streaming_refusals import groups_rows, refuse_streaming

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


def places(**more: Any) -> list[tuple[str, str | None, int | None, int | None]]:
    return [(issue.code, issue.pointer, issue.line, issue.column) for issue in issues(**more)]


JOIN = "SELECT s.k, COUNT(*) AS n FROM s\nJOIN t ON s.k = t.k"


@pytest.mark.parametrize(
    ("sql", "code", "line", "column"),
    [
        ("SELECT name\nFROM n", "no_stream", 1, 8),
        ("SELECT k, COUNT(*) AS n FROM s\nGROUP BY k ORDER BY n", "unbounded_order", 1, 11),
        ("SELECT n + 1 AS m\nFROM (SELECT COUNT(*) AS n FROM s) v", "aggregate_of_aggregate", 2, 14),
        ("SELECT k FROM s\nGROUP BY k HAVING COUNT(*) < 3", "having_may_turn_false", 2, 19),
        ("SELECT k,\nPERCENTILE(i, 0.5) AS p FROM s GROUP BY k", "unbounded_value", 2, 1),
        ("SELECT k FROM s\nUNION ALL\nSELECT name FROM n", "union_with_static", 3, 8),
        ("SELECT name FROM n\nLEFT JOIN s ON s.g = n.g", "outer_side_static", 2, 11),
        ("SELECT k,\nCOUNT(DISTINCT i) AS n FROM s GROUP BY ROLLUP (k)", "distinct_with_grouping_sets", 2, 1),
        (f"{JOIN}\nGROUP BY s.g, s.k", "join_group_not_key", 3, 10),
        (f"{JOIN}\nAND s.i < t.i GROUP BY s.k", "join_residual_two_sided", 2, 6),
        (f"{JOIN.replace('COUNT(*)', 'SUM(s.i + t.i)')}\nGROUP BY s.k", "stream_join_needs_rows", 1, 13),
        (f"{JOIN.replace(', COUNT(*) AS n', '')}", "stream_join_needs_watermark", 2, 6),
        (f"{JOIN}\nJOIN n ON n.g = s.g GROUP BY s.k", "stream_join_not_last", 2, 6),
        (f"{JOIN}\nJOIN s AS o ON o.g = s.g GROUP BY s.k", "too_many_streams_joined", 2, 6),
        (f"{JOIN.replace('JOIN', 'FULL JOIN')}\nGROUP BY s.k", "full_outer_stream_join", 2, 11),
        (f"{JOIN.replace('JOIN', 'LEFT ANTI JOIN')}\nGROUP BY s.k", "stream_anti_join", 2, 16),
    ],
)
def test_the_place_in_the_text_is_told(sql: str, code: str, line: int, column: int) -> None:
    assert places(sql=sql) == [(code, "/sql", line, column)]


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
        ("outer_side_static", "/query/joins/0"),
        ("unbounded_order", "/query/joins/0/right/query/limit"),
        ("aggregate_of_aggregate", "/query/joins/0/right/query"),
    ]


def test_limit_is_not_told_to_sort() -> None:
    (issue,) = issues(sql="SELECT k FROM s LIMIT 3")
    assert "Take as many rows as you want when reading" in issue.detail


def test_everything_that_is_wrong_is_told_at_once() -> None:
    sql = "SELECT k, PERCENTILE(i, 0.5) AS p FROM s GROUP BY k HAVING COUNT(*) < 3 LIMIT 5"
    told = places(sql=sql, output="append", sink={"kind": "parquet", "path": "out"})
    assert told == [
        ("unbounded_order", "/sql", None, None),
        ("having_may_turn_false", "/sql", 1, 60),
        ("unbounded_value", "/sql", 1, 11),
        ("watermark_required", "/output", None, None),
    ]


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT k FROM s GROUP BY k HAVING SUM(b) > 3", "HAVING SUM(s.b) > 3 may become false again"),
        (
            f"{JOIN} GROUP BY s.g, s.k",
            "grouped by s.g, which is not the join key. Group by the join key",
        ),
        (f"{JOIN} AND s.g = t.g GROUP BY s.k", "joined by s.k = t.k AND s.g = t.g, and not grouped by the whole of it"),
        (f"{JOIN} WHERE s.i < t.i GROUP BY s.k", "The condition s.i < t.i of the join of two streams with t"),
        (
            "SELECT name FROM s RIGHT JOIN n ON s.g = n.g",
            "The RIGHT JOIN with n depends on which rows of its right",
        ),
        (
            "SELECT name FROM n LEFT SEMI JOIN s ON s.g = n.g",
            "The LEFT SEMI JOIN with s depends on which rows",
        ),
        (JOIN.replace(", COUNT(*) AS n", ""), "Or aggregate, with the join key in GROUP BY"),
    ],
)
def test_the_reason_names_what_it_is_about(sql: str, words: str) -> None:
    assert words in issues(sql=sql)[0].detail


@pytest.mark.parametrize("kind", ["postgres", "delta"])
@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT COUNT(*) AS n FROM s", None),
        ("SELECT k, i FROM s", None),
        ("SELECT DISTINCT k, i FROM s", None),
        ("SELECT k AS who, COUNT(*) AS n FROM s GROUP BY k", None),
        ("SELECT g, COUNT(*) AS n FROM s GROUP BY k, g", "SELECT lacks k."),
        ("SELECT upper(k) AS u, COUNT(*) AS n FROM s GROUP BY k", "SELECT lacks k."),
        ("SELECT k, COUNT(*) AS n FROM s GROUP BY ROLLUP (k)", "grouping sets make rows"),
    ],
)
def test_a_sink_that_replaces_rows_needs_what_tells_them_apart(kind: str, sql: str, why: str | None) -> None:
    where = {"path": "out"} if kind == "delta" else {"connection": "warehouse", "table": "counts"}
    compile_job(job(sql=sql), SCHEMAS)
    if why is None:
        compile_job(job(sql=sql, sink={"kind": kind, **where}), SCHEMAS)
        return
    (issue,) = issues(sql=sql, sink={"kind": kind, **where})
    assert (issue.code, issue.pointer) == ("sink_keys_missing", "/sink")
    assert f"The sink '{kind}'" in issue.detail
    assert why.rstrip(".") in issue.detail


@pytest.mark.parametrize(
    ("sql", "changes"),
    [
        ("SELECT k, i FROM s", False),
        ("SELECT DISTINCT k FROM s", False),
        ("SELECT k FROM s GROUP BY k", False),
        ("SELECT COUNT(*) AS n FROM s", True),
        ("SELECT k, COUNT(*) AS n FROM s GROUP BY k", True),
        ("SELECT k FROM s GROUP BY CUBE (k)", True),
    ],
)
def test_a_result_that_changes_is_not_appended(sql: str, changes: bool) -> None:
    parquet = {"kind": "parquet", "path": "out"}
    compile_job(job(sql=sql, output="update"), SCHEMAS)
    if not changes:
        compile_job(job(sql=sql, output="append", sink=parquet), SCHEMAS)
        return
    assert places(sql=sql, sink=parquet) == [("mode_sink_mismatch", "/sink", None, None)]
    assert places(sql=sql, output="append") == [("watermark_required", "/output", None, None)]


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
        refuse_streaming(spec, odd)
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
