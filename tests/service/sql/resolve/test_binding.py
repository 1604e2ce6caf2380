"""Structured queries: what they bind to, and what is refused where."""

from __future__ import annotations

from typing import Any

import pytest

from service.contract.problems import SpecError
from service.contract.query import NullsOrder, Query
from service.sql.ddl import parse_schema
from service.sql.resolve.binder import bind
from service.sql.resolve.bound import BoundQuery, BoundTable
from service.sql.types.data_types import INT, STRING, Field, Schema, array, mapping

SCHEMAS = {
    "orders": Schema(
        (
            *parse_schema(
                "oid BIGINT, uid BIGINT, category STRING, amount DECIMAL(10,2), day DATE, ok BOOLEAN, f FLOAT", "/x"
            ).fields,
            Field("tags", array(STRING)),
            Field("counts", mapping(STRING, INT)),
        )
    ),
    "users": parse_schema("uid INT, name STRING, since TIMESTAMP, d DOUBLE, dc DECIMAL(12,4)", "/x"),
}
ORDERS = {"kind": "table", "table": "orders", "alias": "o"}
USERS = {"kind": "table", "table": "users", "alias": "u"}


def bound(**parts: Any) -> BoundQuery:
    return bind(Query.model_validate({"source": ORDERS, **parts}), SCHEMAS)


def item(expression: str, name: str) -> dict[str, str]:
    return {"expression": expression, "name": name}


def call(function: str, *arguments: str, name: str = "x", **more: Any) -> dict[str, Any]:
    return {"function": function, "arguments": arguments, "name": name, **more}


def join(kind: str = "inner", *on: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"kind": kind, "right": USERS, "on": [{"left": left, "right": right} for left, right in on], **more}


def test_a_distinct_count_per_key() -> None:
    query = bound(
        group_by=[item("o.uid", "uid")], aggregates=[call("COUNT", "category", name="categories", distinct=True)]
    )
    assert query.is_aggregate
    assert isinstance(query.source, BoundTable)
    assert query.source.table == "orders"
    assert [(field.name, name) for field, name in query.source.columns] == [
        ("o.uid", "uid"),
        ("o.category", "category"),
    ]
    assert [(key.expression.sql, key.name) for key in query.keys] == [("`o.uid`", "uid")]
    (count,) = query.calls
    assert (count.distinct, count.arguments[0].column, str(count.output.type)) == (True, "o.category", "BIGINT")
    assert [(each.expression.sql, each.name) for each in query.select] == [
        ("`uid`", "uid"),
        ("`categories`", "categories"),
    ]
    assert query.output == parse_schema("uid BIGINT, categories BIGINT", "/x")


def test_a_call_with_over_reads_group_keys_and_aggregates() -> None:
    query = bound(
        group_by=[item("o.uid", "uid")],
        aggregates=[call("SUM", "o.amount", name="total")],
        select=[item("uid", "uid"), item("rank() OVER (ORDER BY total DESC)", "place")],
    )
    assert [(each.expression.sql, each.name) for each in query.windows] == [
        ("rank() OVER (ORDER BY `total` DESC)", "$over1")
    ]
    assert query.output == parse_schema("uid BIGINT, place INT", "/x")


def test_a_structured_query_has_no_named_windows() -> None:
    with pytest.raises(SpecError, match="The window w is not supported"):
        bound(select=[item("rank() OVER w", "r")])


def test_the_name_of_a_call_with_over_is_unused() -> None:
    query = bound(
        group_by=[item("o.uid", "$OVER1")], aggregates=[], select=[item("rank() OVER (ORDER BY o.uid)", "place")]
    )
    assert [each.name for each in query.windows] == ["$over1_"]


@pytest.mark.parametrize(
    ("parts", "pointer"),
    [
        ({"where": "rank() OVER (ORDER BY o.uid) = 1"}, "/query/where"),
        ({"group_by": [item("rank() OVER (ORDER BY o.uid)", "r")]}, "/query/group_by/0/expression"),
        ({"aggregates": [call("SUM", "rank() OVER (ORDER BY o.uid)")]}, "/query/aggregates/0/arguments/0"),
        ({"joins": [join("inner", ("rank() OVER (ORDER BY o.uid)", "u.uid"))]}, "/query/joins/0/on/0/left"),
    ],
)
def test_a_call_with_over_is_refused_before_the_groups(parts: dict[str, Any], pointer: str) -> None:
    with pytest.raises(SpecError) as caught:
        bound(**{"select": [item("1", "one")], **parts})
    (issue,) = caught.value.issues
    assert (issue.code, issue.pointer) == ("unsupported_construct", pointer)
    assert "put it into a derived table" in issue.detail


def test_a_table_without_used_columns_keeps_its_first() -> None:
    query = bound(joins=[join("cross")], aggregates=[call("COUNT")])
    assert [name for _, name in query.source.columns] == ["oid"]
    assert [name for _, name in query.joins[0].right.columns] == ["uid"]


def test_selection_keeps_file_order_and_types() -> None:
    query = bound(select=[item("amount * 2", "twice"), item("oid", "oid")], where="ok", limit=0)
    assert not query.is_aggregate
    assert [name for _, name in query.source.columns] == ["oid", "amount", "ok"]
    assert query.output == parse_schema("twice DECIMAL(12,2), oid BIGINT", "/x")
    assert query.limit == 0


@pytest.mark.parametrize(
    ("left", "right", "texts"),
    [
        ("o.uid", "u.uid", ("`o.uid`", "CAST(`u.uid` AS BIGINT)")),
        ("o.amount", "u.dc", ("CAST(`o.amount` AS DECIMAL(12,4))", "`u.dc`")),
        ("o.amount", "u.uid", ("CAST(`o.amount` AS DECIMAL(12,2))", "CAST(`u.uid` AS DECIMAL(12,2))")),
        ("o.f", "u.d", ("CAST(`o.f` AS DOUBLE)", "`u.d`")),
        ("o.f", "u.uid", ("CAST(`o.f` AS DOUBLE)", "CAST(`u.uid` AS DOUBLE)")),
        ("o.day", "u.since", ("CAST(`o.day` AS TIMESTAMP)", "`u.since`")),
        ("o.category", "name", ("`o.category`", "`u.name`")),
        ("upper(o.category)", "upper(u.name)", ("upper(`o.category`)", "upper(`u.name`)")),
    ],
)
def test_join_keys_are_of_one_type(left: str, right: str, texts: tuple[str, str]) -> None:
    query = bound(joins=[join("left", (left, right))], aggregates=[call("COUNT")])
    (pair,) = query.joins[0].keys
    assert (pair[0].sql, pair[1].sql) == texts


def test_conditions_see_both_sides_and_a_semi_join_hides_its_right() -> None:
    kept = bound(joins=[join("left_semi", ("o.uid", "u.uid"), residual="u.since > o.day")], select=[item("oid", "oid")])
    assert kept.joins[0].residual is not None
    assert [name for _, name in kept.joins[0].right.columns] == ["uid", "since"]
    for hidden in ({"select": [item("u.name", "n")]}, {"select": [item("oid", "n")], "where": "u.name = 'x'"}):
        with pytest.raises(SpecError) as caught:
            bound(joins=[join("left_anti", ("o.uid", "u.uid"))], **hidden)
        assert caught.value.code == "unknown_table"


def test_after_grouping_names_and_key_expressions_are_seen() -> None:
    query = bound(
        group_by=[item("year(o.day)", "y"), item("uid", "k")],
        aggregates=[call("SUM", "amount", name="total"), call("COUNT", name="n")],
        having="N > 1 AND year(day) > 2000 AND average > 3",
        select=[item("year(day) + 1", "next"), item("total / n", "average"), item("o.uid", "uid")],
        order_by=[{"expression": "average", "direction": "desc"}, {"expression": "k"}, {"expression": "NEXT"}],
    )
    assert [each.expression.sql for each in query.select] == ["`y` + 1", "`total` / `n`", "`k`"]
    assert query.having is not None
    assert query.having.sql == "`n` > 1 AND `y` > 2000 AND `total` / `n` > 3"
    assert [each.expression.sql for each in query.order_by] == ["`total` / `n`", "`k`", "`y` + 1"]
    assert [each.nulls for each in query.order_by] == [NullsOrder.LAST, NullsOrder.FIRST, NullsOrder.FIRST]
    assert [str(field.type) for field in query.output.fields] == ["INT", "DECIMAL(38,20)", "BIGINT"]


def test_group_keys_alone_and_aggregates_alone() -> None:
    assert [field.name for field in bound(group_by=[item("uid", "k")]).output.fields] == ["k"]
    assert not bound(aggregates=[call("MAX", "day")]).keys


def test_first_value_filter_and_several_distinct_arguments() -> None:
    query = bound(
        aggregates=[
            call("FIRST_VALUE", "category", name="f", order_by="day"),
            call("COUNT", "uid", "category", name="d", distinct=True, filter="ok"),
            call("MAX", "day", name="m", distinct=True),
            call("COUNT", "tags", name="t"),
        ]
    )
    first, distinct, maximum, tags = query.calls
    assert (first.order_by.sql if first.order_by else None, str(first.output.type)) == ("`o.day`", "STRING")
    assert (len(distinct.arguments), distinct.filter.sql if distinct.filter else None) == (2, "`o.ok`")
    assert not maximum.distinct
    assert str(tags.output.type) == "BIGINT"


def test_arrays_are_grouped_by_told_apart_and_sorted_by() -> None:
    query = bound(
        group_by=[item("o.tags", "tags")],
        aggregates=[call("COUNT", "o.tags", "o.uid", distinct=True)],
        order_by=[{"expression": "tags"}],
    )
    assert [str(field.type) for field in query.output.fields] == ["ARRAY<STRING>", "BIGINT"]
    assert [key.expression.sql for key in query.order_by] == ["`tags`"]


def test_what_cannot_be_told_apart_is_told_with_its_column_its_type_and_what_can() -> None:
    for parts in ({"group_by": [item("o.counts", "x")]}, {"aggregates": [call("COUNT", "o.counts", distinct=True)]}):
        with pytest.raises(SpecError) as caught:
            bound(**parts)
        (issue,) = caught.value.issues
        assert "o.counts has the type MAP<STRING, INT>, whose values cannot be compared" in issue.detail
        assert "arrays or structures of them" in issue.detail
        assert "write map_entries(m)" in issue.detail


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown table": ({"source": {"kind": "table", "table": "order"}}, "unknown_table", "/source/table"),
    "same alias": (
        {"joins": [{**join("inner", ("uid", "uid")), "right": {"kind": "table", "table": "users", "alias": "O"}}]},
        "duplicate_table",
        "/joins/0/right",
    ),
    "string and number": ({"joins": [join("inner", ("uid", "name"))]}, "type_mismatch", "/joins/0/on/0/right"),
    "boolean and number": ({"joins": [join("inner", ("ok", "uid"))]}, "type_mismatch", "/joins/0/on/0/right"),
    "nested key": ({"joins": [join("inner", ("tags", "name"))]}, "type_mismatch", "/joins/0/on/0/left"),
    "left of the right": ({"joins": [join("inner", ("u.uid", "u.uid"))]}, "unknown_table", "/joins/0/on/0/left"),
    "right of the left": ({"joins": [join("inner", ("o.uid", "o.uid"))]}, "unknown_table", "/joins/0/on/0/right"),
    "cross with keys": ({"joins": [join("cross", ("uid", "uid"))]}, "unsupported_construct", "/joins/0"),
    "residual no condition": (
        {"joins": [join("inner", ("uid", "uid"), residual="oid")]},
        "type_mismatch",
        "/joins/0/residual",
    ),
    "where no condition": ({"where": "amount", "select": [item("oid", "o")]}, "type_mismatch", "/where"),
    "where a string": ({"where": "category", "select": [item("oid", "o")]}, "type_mismatch", "/where"),
    "where unknown": ({"where": "amont > 1", "select": [item("oid", "o")]}, "unknown_column", "/where"),
    "where with an aggregate": (
        {"where": "count(*) > 1", "select": [item("oid", "o")]},
        "unsupported_construct",
        "/where",
    ),
    "same output": ({"select": [item("oid", "a"), item("uid", "A")]}, "duplicate_column", "/select/1/name"),
    "key and aggregate": (
        {"group_by": [item("uid", "x")], "aggregates": [call("COUNT")]},
        "duplicate_column",
        "/aggregates/0/name",
    ),
    "same keys": ({"group_by": [item("uid", "x"), item("oid", "X")]}, "duplicate_column", "/group_by/1/name"),
    "map as group key": ({"group_by": [item("counts", "x")]}, "type_mismatch", "/group_by/0/expression"),
    "not grouped": (
        {"group_by": [item("uid", "uid")], "select": [item("oid + 1", "a")]},
        "not_grouped",
        "/select/0/expression",
    ),
    "not grouped in having": ({"group_by": [item("uid", "uid")], "having": "oid > 1"}, "not_grouped", "/having"),
    "not grouped in order": (
        {"group_by": [item("uid", "uid")], "order_by": [{"expression": "o.day"}]},
        "not_grouped",
        "/order_by/0/expression",
    ),
    "unknown after grouping": (
        {"group_by": [item("uid", "key")], "select": [item("kye", "a")]},
        "unknown_column",
        "/select/0/expression",
    ),
    "having no condition": ({"aggregates": [call("COUNT")], "having": "x"}, "type_mismatch", "/having"),
    "having alone": ({"having": "ok", "select": [item("oid", "o")]}, "unsupported_construct", "/having"),
    "nothing selected": ({}, "unsupported_construct", "/select"),
    "sum of strings' flags": ({"aggregates": [call("SUM", "ok")]}, "type_mismatch", "/aggregates/0/arguments/0"),
    "avg of dates": ({"aggregates": [call("AVG", "day")]}, "type_mismatch", "/aggregates/0/arguments/0"),
    "max of maps": ({"aggregates": [call("MAX", "counts")]}, "type_mismatch", "/aggregates/0/arguments/0"),
    "distinct maps": (
        {"aggregates": [call("COUNT", "uid", "counts", distinct=True)]},
        "type_mismatch",
        "/aggregates/0/arguments/1",
    ),
    "sum of nothing": ({"aggregates": [call("SUM")]}, "unsupported_construct", "/aggregates/0"),
    "sum of two": ({"aggregates": [call("SUM", "oid", "uid")]}, "unsupported_construct", "/aggregates/0"),
    "count of two": ({"aggregates": [call("COUNT", "oid", "uid")]}, "unsupported_construct", "/aggregates/0"),
    "distinct star": ({"aggregates": [call("COUNT", distinct=True)]}, "unsupported_construct", "/aggregates/0"),
    "distinct mode": ({"aggregates": [call("MODE", "oid", distinct=True)]}, "unsupported_construct", "/aggregates/0"),
    "one of a pair": ({"aggregates": [call("CORR", "oid")]}, "unsupported_construct", "/aggregates/0"),
    "sum of bits": ({"aggregates": [call("BIT_OR", "day")]}, "type_mismatch", "/aggregates/0/arguments/0"),
    "frequency": (
        {"aggregates": [call("PERCENTILE", "oid", "0.5", "1.5")]},
        "type_mismatch",
        "/aggregates/0/arguments/2",
    ),
    "deviation": (
        {"aggregates": [call("APPROX_COUNT_DISTINCT", "oid", "0.0001")]},
        "unsupported_construct",
        "/aggregates/0/arguments/1",
    ),
    "distinct last": (
        {"aggregates": [call("LAST_VALUE", "oid", order_by="day", distinct=True)]},
        "unsupported_construct",
        "/aggregates/0",
    ),
    "ordered sum": ({"aggregates": [call("SUM", "oid", order_by="day")]}, "unsupported_construct", "/aggregates/0"),
    "ordered by an array": (
        {"aggregates": [call("FIRST_VALUE", "oid", order_by="tags")]},
        "type_mismatch",
        "/aggregates/0/order_by",
    ),
    "filter no condition": ({"aggregates": [call("COUNT", filter="oid")]}, "type_mismatch", "/aggregates/0/filter"),
    "sorted by a map": (
        {"select": [item("oid", "o")], "order_by": [{"expression": "counts"}]},
        "type_mismatch",
        "/order_by/0/expression",
    ),
    "a join key without a column": (
        {"joins": [join("inner", ("o.uid", "5"))]},
        "unsupported_construct",
        "/joins/0/on/0/right",
    ),
    "a key of grouping sets twice": (
        {
            "group_by": [item("oid", "x"), item("o.oid", "y")],
            "grouping_sets": [["x"], ["y"]],
            "aggregates": [call("GROUPING", "oid", name="n")],
        },
        "unsupported_construct",
        "/group_by/1/expression",
    ),
    "environment in a name": ({"select": [item("oid", "${env:HOME}")]}, "unsupported_construct", "/select/0/name"),
    "environment in an alias": (
        {"source": {**ORDERS, "alias": "${env:HOME}"}, "select": [item("oid", "o")]},
        "unsupported_construct",
        "/source",
    ),
    "syntax": ({"select": [item("oid +", "o")]}, "sql_syntax", "/select/0/expression"),
    "function": ({"select": [item("nosuch(oid)", "o")]}, "unsupported_function", "/select/0/expression"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    parts, code, pointer = REFUSED[name]
    if "joins" in parts:
        parts = {"aggregates": [call("COUNT")], **parts}
    with pytest.raises(SpecError) as caught:
        bound(**parts)
    assert (caught.value.code, caught.value.issues[0].pointer) == (code, f"/query{pointer}")


def test_an_unknown_name_after_grouping_has_neighbours_among_the_output() -> None:
    with pytest.raises(SpecError) as caught:
        bound(group_by=[item("uid", "key")], select=[item("kye", "a")])
    assert caught.value.issues[0].suggestions == ("key",)


def test_an_aggregate_in_an_expression_is_told_where_to_stand() -> None:
    with pytest.raises(SpecError, match="Use aggregates in the query's `aggregates`, whose names `select`"):
        bound(select=[item("SUM(oid)", "a")])
