"""Queries inside queries: what they compile into, what of them is left out, and what is refused where."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from service.spec import sql_items, sql_query
from service.spec.binding import bind
from service.spec.bound import BoundDerived, BoundQuery, BoundUnion, queries_of, tables_of
from service.spec.compile import compile_job
from service.spec.ddl import parse_schema
from service.spec.errors import SpecError
from service.spec.job import JobSpec
from service.spec.limits import COLUMNS, JOINS, QUERIES, QUERY_DEPTH
from service.spec.query import JoinKind, Query, QueryRef, UnionRef
from service.spec.sql import compile_sql
from service.spec.types import STRING, DataType, Field, Schema, TypeName

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


def derived(query: BoundQuery) -> BoundDerived:
    assert isinstance(query.source, BoundDerived)
    return query.source


def test_a_derived_table_is_a_query_in_the_place_of_a_table() -> None:
    query = compile_sql("SELECT x.n FROM (SELECT uid, COUNT(*) AS n FROM orders GROUP BY uid) x", SCHEMAS).query
    assert isinstance(query.source, QueryRef)
    assert query.source.alias == "x"
    assert [call.name for call in query.source.query.aggregates] == ["n"]
    assert query.select[0].expression == "`x`.`n`"


def test_inner_queries_keep_what_the_outer_one_reads() -> None:
    query = bound(
        "SELECT x.total FROM (SELECT uid, SUM(amount) AS total, MAX(category) AS c, COUNT(*) AS n FROM orders "
        "GROUP BY uid HAVING COUNT(*) > 1) x"
    )
    (inner, _) = queries_of(query)
    assert [item.name for item in inner.select] == ["total"]
    assert [call.output.name for call in inner.calls] == ["total", "n"]
    assert [key.name for key in inner.keys] == ["uid"]
    assert [[name for _, name in table.columns] for table in tables_of(query)] == [["uid", "amount"]]
    assert [(field.name, name) for field, name in derived(query).columns] == [("x.total", "total")]


def test_an_inner_query_of_which_nothing_is_read_keeps_its_first_column() -> None:
    query = bound("SELECT COUNT(*) FROM (SELECT category, amount FROM orders) x")
    assert [name for _, name in derived(query).columns] == ["category"]


def test_aliases_are_unique_over_the_whole_plan_and_the_outer_ones_stay() -> None:
    query = bound(
        "SELECT o.uid FROM (SELECT o.uid FROM (SELECT uid FROM orders o) o) o JOIN orders AS p ON o.uid = p.uid "
        "JOIN (SELECT uid FROM orders p) q ON q.uid = p.uid"
    )
    aliases = [table.alias for table in tables_of(query)]
    assert aliases == ["o/o/o", "q/p", "p"]
    assert derived(query).alias == "o"


def test_a_name_is_told_as_the_caller_wrote_it() -> None:
    code, line, column, detail = refused("SELECT x.uid FROM users o,\n (SELECT o.nme AS uid FROM users o) x")
    assert (code, line, column) == ("unknown_column", 2, 10)
    assert detail == "There is no column o.nme. Did you mean o.name?"
    assert refused("SELECT x.zip FROM (SELECT name FROM users) x")[3] == "There is no column x.zip. There are name."
    assert refused("SELECT x.nme FROM (SELECT name FROM users) x")[:3] == ("unknown_column", 1, 8)
    assert refused("SELECT uid FROM (SELECT uid,\n COUNT(*) FROM users) x")[:3] == ("not_grouped", 1, 25)


def test_common_table_expressions_see_those_before_them() -> None:
    query = bound(
        "WITH a AS (SELECT uid, name FROM users), b (k) AS (SELECT uid FROM a), users AS (SELECT k FROM b) "
        "SELECT b.k, c.k AS other FROM b JOIN users c ON b.k = c.k JOIN a ON a.uid = b.k"
    )
    assert [table.table for table in tables_of(query)] == ["users"] * 3
    assert len({table.alias for table in tables_of(query)}) == 3
    assert refused("WITH a AS (SELECT * FROM b), b AS (SELECT uid FROM users) SELECT * FROM a")[0] == "unknown_table"
    assert (
        refused("WITH a AS (SELECT 1 FROM users), A AS (SELECT 2 FROM users) SELECT * FROM a")[0] == "duplicate_table"
    )


def test_an_inner_with_hides_an_outer_one() -> None:
    query = bound(
        "WITH a AS (SELECT uid FROM users) SELECT * FROM (WITH a AS (SELECT oid FROM orders) SELECT * FROM a) x"
    )
    assert query.output.names == ("oid",)


def test_union_all_has_the_names_of_the_first_and_the_types_of_all() -> None:
    query = bound("SELECT uid AS k, 1 AS n FROM users UNION ALL SELECT uid, amount FROM orders ORDER BY k LIMIT 3")
    union = derived(query).query
    assert isinstance(union, BoundUnion)
    assert [(field.name, str(field.type)) for field in query.output.fields] == [("k", "BIGINT"), ("n", "DECIMAL(12,2)")]
    assert all(branch.output == union.output for branch in union.queries)
    assert (query.limit, len(query.order_by)) == (3, 1)


def test_unions_are_flat_and_distinct_ones_group() -> None:
    one, two, three = (f"SELECT uid FROM {table}" for table in SCHEMAS)
    flat = compile_sql(f"{one} UNION ALL {two} UNION ALL {three}", SCHEMAS).query
    assert isinstance(flat.source, UnionRef)
    assert len(flat.source.queries) == 3
    mixed = compile_sql(f"{one} UNION ALL {two} UNION {three}", SCHEMAS).query
    assert isinstance(mixed.source, UnionRef)
    assert (len(mixed.source.queries), len(mixed.group_by)) == (3, 1)
    nested = compile_sql(f"{one} UNION {two} UNION ALL {three}", SCHEMAS).query
    assert isinstance(nested.source, UnionRef)
    assert [len(query.group_by) for query in nested.source.queries] == [1, 0]
    apart = compile_sql(f"({one} ORDER BY uid LIMIT 2) UNION ALL ({two})", SCHEMAS).query
    assert isinstance(apart.source, UnionRef)
    assert [query.limit for query in apart.source.queries] == [2, None]


def test_union_in_from_needs_no_query_around_it() -> None:
    query = compile_sql(
        "SELECT a FROM (SELECT uid FROM users UNION ALL SELECT uid FROM orders) AS x (a)", SCHEMAS
    ).query
    assert isinstance(query.source, UnionRef)
    assert query.source.columns == ("a",)


@pytest.mark.parametrize(
    ("sql", "groups"),
    [
        ("SELECT DISTINCT COUNT(*) AS n FROM orders GROUP BY uid", ["n"]),
        (
            "SELECT DISTINCT uid, COUNT(*) AS n FROM orders GROUP BY uid, category ORDER BY COUNT(*) + 1, 1",
            ["uid", "n"],
        ),
        ("SELECT DISTINCT uid FROM orders GROUP BY ROLLUP (uid)", ["uid"]),
        ("SELECT DISTINCT amount > 1 AS b FROM orders GROUP BY amount > 1, uid LIMIT 2", ["b"]),
    ],
)
def test_distinct_over_aggregates_groups_once_more(sql: str, groups: list[str]) -> None:
    query = bound(sql)
    assert [key.name for key in query.keys] == groups
    assert derived(query).query.output.names == tuple(groups)


def test_equalities_of_where_are_join_keys() -> None:
    query = bound("SELECT name FROM users, orders WHERE users.uid = orders.uid AND ok")
    assert query.joins[0].kind is JoinKind.INNER
    assert len(query.joins[0].keys) == 1
    assert query.where is not None
    assert query.where.columns == ("orders.ok",)


@pytest.mark.parametrize(
    ("sql", "kinds"),
    [
        # The first has no key with the second, but with the third.
        (
            "SELECT 1 FROM users u, labels l, orders o WHERE u.uid = o.uid AND o.oid = l.uid",
            ["inner o", "inner l"],
        ),
        ("SELECT 1 FROM users u CROSS JOIN labels l WHERE u.name = l.label", ["inner l"]),
        ("SELECT 1 FROM users u, labels l WHERE u.uid = l.uid + 1", ["cross l"]),
        ("SELECT 1 FROM users u, labels l WHERE u.uid = l.uid OR name = 'x'", ["cross l"]),
        (
            "SELECT 1 FROM users u, labels l WHERE (u.uid = l.uid AND name = 'x') OR (u.uid = l.uid AND name = 'y')",
            ["inner l"],
        ),
        ("SELECT 1 FROM users u LEFT JOIN labels l ON u.uid = l.uid WHERE u.name = l.label", ["left l"]),
        (
            "SELECT 1 FROM users u CROSS JOIN labels l RIGHT JOIN orders o ON o.uid = u.uid WHERE u.uid = l.uid",
            ["cross l", "right o"],
        ),
        (
            "SELECT 1 FROM users u CROSS JOIN labels l LEFT JOIN orders o ON o.uid = u.uid WHERE u.uid = l.uid",
            ["inner l", "left o"],
        ),
        ("SELECT 1 FROM users u, labels l WHERE u.name = l.uid", ["cross l"]),
    ],
)
def test_which_equalities_move(sql: str, kinds: list[str]) -> None:
    assert [f"{join.kind.value} {join.right.alias}" for join in bound(sql).joins] == kinds


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


def test_types_that_no_union_has_are_refused_at_their_query() -> None:
    assert refused("SELECT uid FROM users UNION ALL\nSELECT ok FROM orders")[:3] == ("type_mismatch", 2, 8)


def test_a_nested_value_has_no_type_with_a_string() -> None:
    schemas = {"t": Schema((Field("s", STRING), Field("tags", DataType(TypeName.OTHER, text="ARRAY<STRING>"))))}
    bind(compile_sql("SELECT tags FROM t UNION ALL SELECT tags FROM t", schemas).query, schemas)
    with pytest.raises(SpecError, match="ARRAY<STRING> in one query and STRING in another"):
        bind(compile_sql("SELECT tags FROM t UNION ALL SELECT s FROM t", schemas).query, schemas)


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
    assert "each use of a common table expression counted" in told[3]
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

    monkeypatch.setattr("service.spec.sql_order.place_of", searched)
    assert compile_sql("SELECT uid FROM orders LIMIT 3", SCHEMAS).query.limit == 3


@pytest.mark.not_quick
def test_a_group_key_that_gets_too_long_is_told() -> None:
    alias = "a" * 250
    told = refused(f"SELECT {alias}.uid IN ({', '.join(['uid'] * 9000)}) AS x, COUNT(*) FROM orders {alias} GROUP BY 1")
    assert told[0] == "query_too_deep"


def test_too_many_joins_are_refused_before_they_are_read() -> None:
    joins = "\n".join(f"FULL JOIN users u{number} USING (uid)" for number in range(1500))
    assert refused(f"SELECT uid FROM orders\n{joins}")[:2] == ("query_too_deep", JOINS.most + 2)


def test_names_with_dots_are_kept_apart() -> None:
    query = bound(
        "SELECT MAX(a.`b.c`) AS x, MAX(`a.b`.c) AS y FROM (SELECT uid AS `b.c` FROM orders) a "
        "CROSS JOIN (SELECT oid AS c FROM orders) `a.b`"
    )
    names = [field.name for source in (query.source, query.joins[0].right) for field, _ in source.columns]
    assert names == ["a.b.c", "a_b.c"]


@pytest.mark.parametrize(
    ("sql", "code", "line", "column"),
    [
        ("WITH bad AS (SELECT nope\n FROM nowhere) SELECT uid FROM users", "unknown_table", 2, 7),
        ("WITH bad AS (SELECT nope FROM users) SELECT uid FROM users", "unknown_column", 1, 21),
        ("WITH a AS (SELECT uid,\n COUNT(*) FROM users) SELECT uid FROM users", "not_grouped", 1, 19),
        ("WITH a AS (SELECT nme FROM users), b AS (SELECT * FROM a) SELECT uid FROM users", "unknown_column", 1, 19),
        ("WITH a (x) AS (SELECT uid, name FROM users) SELECT uid FROM users", "unsupported_construct", 1, 23),
        ("SELECT uid FROM (WITH a AS (SELECT ok + 1 FROM orders) SELECT * FROM users) x", "type_mismatch", 1, 36),
        ("WITH a AS (SELECT uid FROM users UNION SELECT ok FROM orders) SELECT uid FROM users", "type_mismatch", 1, 47),
    ],
)
def test_what_no_query_names_is_checked_all_the_same(sql: str, code: str, line: int, column: int) -> None:
    assert refused(sql)[:3] == (code, line, column)


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

    monkeypatch.setattr(sql_query, "re", SimpleNamespace(findall=find_all))
    text = "SELECT uid FROM orders UNION ALL SELECT uid FROM users -- derived"
    for tail in ("_" * 50_000, "_" * 90 + "".join(f"derived_{number}_" for number in range(1, 3000))):
        compile_sql(text + tail, SCHEMAS)
    assert len(looks) == 4


def test_a_column_of_a_query_without_a_name_is_told_apart_by_giving_it_one() -> None:
    one = refused("SELECT uid FROM users, (SELECT uid FROM orders)")
    assert one[3] == ("uid is a column of several tables: write users.uid, or give the query in FROM a name with AS.")
    both = refused("SELECT uid FROM (SELECT uid FROM users), (SELECT uid FROM orders)")
    assert both[3] == "uid is a column of several tables: give the query in FROM a name with AS."


@pytest.mark.parametrize(
    "later",
    [
        "SELECT uid, uid FROM users",
        "SELECT 1, 1 FROM users",
        "SELECT uid, MAX(uid) AS uid FROM users GROUP BY uid",
        "SELECT DISTINCT uid, uid FROM users GROUP BY uid, name",
        "SELECT labels.uid, users.uid FROM labels JOIN users USING (uid)",
    ],
)
def test_the_names_of_later_queries_of_a_union_are_not_asked_for(later: str) -> None:
    for union in ("UNION ALL", "UNION"):
        query = bound(f"SELECT uid, oid FROM orders {union} {later} {union} {later}")
        assert query.output.names == ("uid", "oid")
    assert refused(f"{later} UNION ALL SELECT uid, oid FROM orders")[0] == "duplicate_column"


def test_where_later_queries_of_a_union_ask_for_a_name_it_is_of_one_column() -> None:
    later = "SELECT uid, oid AS uid FROM orders"
    assert refused(f"SELECT uid, oid FROM orders UNION ALL ({later} ORDER BY uid LIMIT 1)")[0] == "duplicate_column"


def test_names_of_later_queries_of_a_union_take_no_name_that_is_there() -> None:
    query = compile_sql(
        "SELECT 1, 2, 3, 4, 5 FROM orders UNION ALL SELECT uid, uid, 1 AS uid_2, UID, uid_2 "
        "FROM (SELECT uid, 1 AS uid_2 FROM users) x",
        SCHEMAS,
    ).query
    assert isinstance(query.source, UnionRef)
    assert [item.name for item in query.source.queries[1].select] == ["uid", "uid_3", "uid_2", "uid_4", "uid_2_2"]


def test_each_name_of_a_column_is_tried_once() -> None:
    lines = 0

    def traced(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        nonlocal lines
        lines += event == "line"
        return traced if frame.f_code.co_filename == sql_items.__file__ else None

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
    assert "columns in one SELECT, those that stars stand for counted; at most 1024 (limit `columns`)" in detail
