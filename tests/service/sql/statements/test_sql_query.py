"""Queries inside queries: what they compile into, what of them is left out, and what is refused where."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from service.contract.job import JobSpec
from service.contract.problems import SpecError
from service.contract.query import COLUMNS, JOINS, QUERIES, QUERY_DEPTH, Query, QueryRef, UnionRef
from service.sql.compile import compile_job, compile_sql
from service.sql.ddl import parse_schema
from service.sql.resolve.binder import bind
from service.sql.resolve.bound import BoundQuery, tables_of
from service.sql.statements import references
from service.sql.statements.clauses import lists as clauses

SCHEMAS = {
    "orders": parse_schema("oid BIGINT, uid BIGINT, category STRING, amount DECIMAL(10,2), ok BOOLEAN", "/x"),
    "users": parse_schema("uid INT, name STRING", "/x"),
    "labels": parse_schema("uid INT, label STRING", "/x"),
}


def bound(sql: str) -> BoundQuery:
    query = compile_sql(sql, SCHEMAS).query
    # What is posted as a structure is the same as what SQL compiles into.
    again = Query.model_validate(query.model_dump(mode="json"))
    assert again == query
    return bind(again, SCHEMAS)


def refused(sql: str) -> tuple[Any, ...]:
    sources = {name: {"format": "csv", "path": name, "schema": "a INT"} for name in SCHEMAS}
    spec = JobSpec.model_validate({"tables": sources, "sql": sql})
    with pytest.raises(SpecError) as caught:
        compile_job(spec, SCHEMAS)
    issue = caught.value.issues[0]
    assert issue.pointer == "/sql"
    return issue.code, issue.line, issue.column, issue.detail


def test_nesting_is_bounded_however_it_is_written() -> None:
    deep = "SELECT uid FROM users"
    for number in range(QUERY_DEPTH.most - 1):
        deep = f"SELECT uid FROM ({deep}) t{number}"
    assert bound(deep)
    assert refused(f"SELECT uid FROM ({deep}) t")[0] == "query_too_deep"
    chained = ", ".join(f"c{number + 1} AS (SELECT * FROM c{number})" for number in range(QUERY_DEPTH.most))
    assert refused(f"WITH c0 AS (SELECT uid FROM users), {chained} SELECT * FROM c{QUERY_DEPTH.most}")[0] == (
        "query_too_deep"
    )
    doubled = ", ".join(
        f"c{number + 1} AS (SELECT * FROM c{number} UNION ALL SELECT * FROM c{number})" for number in range(7)
    )
    code, _, _, detail = refused(f"WITH c0 AS (SELECT uid FROM users), {doubled} SELECT * FROM c7")
    assert code == "query_too_deep"
    assert str(QUERIES.most) in detail


def test_values_grow_through_nesting_to_the_same_bound() -> None:
    sql = "SELECT concat(name, name, name, name, name, name, name, name) AS name FROM users"
    for number in range(6):
        sql = f"SELECT concat(name, name, name, name, name, name, name, name) AS name FROM ({sql}) t{number}"
    code, _, _, detail = refused(sql)
    assert code == "unsupported_construct"
    assert "1 MB" in detail


def test_a_structured_query_may_rename_the_columns_of_a_derived_table() -> None:
    inner = {"source": {"kind": "table", "table": "users"}, "select": [{"expression": "uid", "name": "uid"}]}
    source = {"kind": "query", "query": inner, "alias": "x", "columns": ["k"]}
    query = {"source": source, "select": [{"expression": "x.k", "name": "out"}]}
    assert bind(Query.model_validate(query), SCHEMAS).output.names == ("out",)
    for columns, code in ((["a", "b"], "unsupported_construct"), (["${x}"], "unsupported_construct")):
        with pytest.raises(SpecError) as caught:
            bind(Query.model_validate({**query, "source": {**source, "columns": columns}}), SCHEMAS)
        assert (caught.value.code, caught.value.issues[0].pointer) == (code, "/query/source")


@pytest.mark.not_quick
def test_the_work_of_all_queries_together_is_bounded() -> None:
    listed = ", ".join(map(str, range(4000)))
    uses = " UNION ALL ".join(["SELECT uid FROM a"] * 20)
    told = refused(f"WITH a AS (SELECT uid FROM orders WHERE oid IN ({listed})) {uses}")
    assert told[0] == "query_too_deep"
    assert "counting each use of a common table expression" in told[3]
    bound(f"WITH a AS (SELECT uid FROM orders WHERE oid IN ({listed})) SELECT uid FROM a UNION ALL SELECT uid FROM a")
    # Alone it may be as long as a text can be.
    bound(f"SELECT uid FROM orders WHERE oid IN ({', '.join(map(str, range(9_500)))})")


@pytest.mark.not_quick
def test_stars_count_as_what_they_stand_for() -> None:
    wide = {"w": parse_schema(", ".join(f"column_{number} INT" for number in range(1000)), "/x")}
    with pytest.raises(SpecError, match="names, values, operators and columns"):
        compile_sql(f"WITH a AS (SELECT * FROM w) {' UNION ALL '.join(['SELECT * FROM a'] * 40)}", wide)


def test_expressions_of_a_structured_query_are_bounded_together() -> None:
    item = {"expression": f"uid + {' + '.join(['0'] * 4_000)}", "name": "u"}
    branch = {"source": {"kind": "table", "table": "orders"}, "select": [item]}
    union = {"kind": "union_all", "queries": [branch] * 20, "alias": "u"}
    query = Query.model_validate({"source": union, "select": [{"expression": "u", "name": "u"}]})
    with pytest.raises(SpecError, match=r"at most 200000 \(limit `expression_characters`\)") as caught:
        bind(query, SCHEMAS)
    assert caught.value.code == "query_too_deep"


def test_a_limit_takes_no_look_at_the_whole_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def searched(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("service.sql.statements.clauses.lists.place_of", searched)
    assert compile_sql("SELECT uid FROM orders LIMIT 3", SCHEMAS).query.limit == 3


@pytest.mark.not_quick
def test_a_group_key_that_gets_too_long_is_told() -> None:
    alias = "a" * 250
    told = refused(f"SELECT {alias}.uid IN ({', '.join(['uid'] * 9000)}) AS x, COUNT(*) FROM orders {alias} GROUP BY 1")
    assert told[0] == "query_too_deep"


def test_too_many_joins_are_refused_before_they_are_read() -> None:
    joins = "\n".join(f"FULL JOIN users u{number} USING (uid)" for number in range(1500))
    assert refused(f"SELECT uid FROM orders\n{joins}")[:2] == ("query_too_deep", JOINS.most + 2)


def test_what_no_query_names_is_left_out() -> None:
    sql = "WITH a AS (SELECT uid FROM users), b AS (SELECT * FROM a), c AS (SELECT oid FROM orders) SELECT oid FROM c"
    assert [table.table for table in tables_of(bound(sql))] == ["orders"]
    listed = ", ".join(map(str, range(4000)))
    many = ", ".join(f"a{number} AS (SELECT uid FROM orders WHERE oid IN ({listed}))" for number in range(3))
    assert refused(f"WITH {many} SELECT uid FROM users")[0] == "query_too_deep"


def test_with_names_no_more_than_a_text_has_queries() -> None:
    many = ", ".join(f"a{number} AS (SELECT uid FROM users)" for number in range(QUERIES.most + 1))
    code, _, _, detail = refused(f"WITH {many} SELECT uid FROM users")
    assert (code, f"at most {QUERIES.most}" in detail) == ("query_too_deep", True)


def test_a_query_without_a_name_has_none_that_could_be_written_or_taken() -> None:
    for sql, at in (
        ("SELECT derived_1.uid FROM (SELECT uid FROM users)", 8),
        ("SELECT derived_2.uid FROM (SELECT uid FROM users)", 8),
        ("SELECT uid FROM users UNION ALL SELECT uid FROM orders ORDER BY derived.uid", 65),
    ):
        code, _, column, detail = refused(sql)
        assert (code, column, "Did you mean" in detail) == ("unknown_table", at, False)
    schemas = {"derived_1": SCHEMAS["users"], "Derived_2": SCHEMAS["orders"]}
    query = compile_sql(
        "SELECT k, name, derived_2.oid FROM derived_1, (SELECT uid AS k FROM derived_2), derived_2", schemas
    )
    assert bind(query.query, schemas).output.names == ("k", "name", "oid")


@pytest.mark.parametrize(
    "comment", ["derived" + "_" * 249, "derivederived" + "_" * 249, "derived_1_ derived" + "_" * 90]
)
def test_a_query_without_a_name_has_a_short_one_whatever_the_text_has(comment: str) -> None:
    for sql in (
        "SELECT uid FROM orders UNION ALL SELECT uid FROM users",
        "SELECT x FROM (SELECT uid AS x FROM orders)",
        "SELECT DISTINCT COUNT(*) AS n FROM orders GROUP BY uid",
    ):
        query = compile_sql(f"{sql} -- {comment}", SCHEMAS).query
        assert isinstance(query.source, QueryRef | UnionRef)
        assert len(query.source.alias) < 20
        assert query.source.alias not in comment
        bind(query, SCHEMAS)


def test_a_name_for_a_query_without_one_is_found_in_one_look_at_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    def find_all(pattern: str, text: str) -> list[str]:
        looks.append(pattern)
        return re.findall(pattern, text)

    monkeypatch.setattr(references, "re", SimpleNamespace(findall=find_all))
    text = "SELECT uid FROM orders UNION ALL SELECT uid FROM users -- derived"
    for tail in ("_" * 50_000, "_" * 90 + "".join(f"derived_{number}_" for number in range(1, 3000))):
        compile_sql(text + tail, SCHEMAS)
    assert len(looks) == 4


def test_each_name_of_a_column_is_tried_once() -> None:
    lines = 0

    def traced(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        nonlocal lines
        lines += event == "line"
        return traced if frame.f_code.co_filename == clauses.__file__ else None

    schemas = {"t": parse_schema(", ".join(f"c{number} INT" for number in range(COLUMNS.most)), "/x")}
    text = f"SELECT * FROM t UNION ALL SELECT {', '.join(['c0'] * COLUMNS.most)} FROM t"
    before = sys.gettrace()
    sys.settrace(traced)
    try:
        query = compile_sql(text, schemas).query
    finally:
        sys.settrace(before)
    assert isinstance(query.source, UnionRef)
    assert query.source.queries[1].select[-1].name == f"c0_{COLUMNS.most}"
    assert lines < 100 * COLUMNS.most


@pytest.mark.not_quick
@pytest.mark.parametrize(
    "listed", [", ".join(["uid"] * 9_900), ", ".join(["*"] * 1_025), "uid, " + "*, " * 204 + "oid, uid, ok, 1"]
)
def test_too_many_columns_are_refused_before_they_get_names(listed: str) -> None:
    code, line, _, detail = refused(f"SELECT uid FROM orders UNION ALL\nSELECT {listed} FROM orders")
    assert (code, line) == ("query_too_deep", 2)
    assert "columns in one SELECT, counting those of `*`; at most 1024 (limit `columns`)" in detail


@pytest.mark.parametrize("item", ["SUM(uid)", "MAX(l.uid) + u.uid", "SUM(COUNT(*)) OVER ()", "COUNT(*), *, 1"])
@pytest.mark.parametrize("end", ["HAVING SUM(uid) > 1 ORDER BY z", "HAVING z > 1 LIMIT 1", "HAVING MAX(z) > u.uid"])
@pytest.mark.parametrize("alias", ["z", "uid"])
def test_a_single_row_for_outer_columns_is_compiled_or_refused(item: str, end: str, alias: str) -> None:
    row = f"SELECT {item} AS {alias} FROM labels AS l WHERE l.uid < u.uid {end}"
    for sql in (
        f"SELECT ({row}) AS s FROM users AS u",
        f"SELECT u.uid FROM users AS u WHERE EXISTS ({row})",
        f"SELECT (SELECT MAX(a) FROM ({row}) AS d (a)) AS s FROM users AS u",
        f"SELECT r.* FROM users AS u, LATERAL ({row}) AS r",
    ):
        try:
            bound(sql)
        except SpecError:
            continue
        # A window is computed after HAVING.
        assert "OVER" not in sql or "HAVING z" not in sql
