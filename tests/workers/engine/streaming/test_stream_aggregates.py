"""Rows of several kinds, aggregated together. tests/conformance/test_streams.py compares the results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.sql.expressions.scalar import Scalar, column
from service.sql.types.data_types import BIGINT, BOOLEAN, DOUBLE, FLOAT, INT, STRING, DataType, Field, TypeName
from tests.support.joined import call, col, scan, text
from tests.support.plan_parts import lines_of
from workers.engine.plan.explain import call_text, line_of, text_of
from workers.engine.plan.nodes import Aggregate, Call, Union, names_of, output_of
from workers.engine.plan.validation import check
from workers.engine.streaming.stream_aggregates import (
    Contribution,
    guarded,
    normalised,
    united_aggregate,
    without_filter,
)

KEYS = (Field("k", BIGINT),)
LEFT = scan("l")
Q = text("l.q", "l.q")


def united(*contributions: Contribution) -> Aggregate:
    node = united_aggregate(KEYS, contributions, frozenset())
    check(node, "the test")
    return node


def of(*calls: Call, alias: str = "l", present: str | None = None) -> Contribution:
    return Contribution(scan(alias), (col(f"{alias}.k"),), calls, present)


def test_plain_calls_read_each_value_once() -> None:
    node = united(of(call("COUNT"), call("SUM", col("l.i")), call("MIN", col("l.i")), call("LAST_VALUE", col("l.t"))))
    assert lines_of(node) == [
        "Project l.k AS k, 1 AS $u0, l.i AS $u1, l.t AS $u2, l.d AS $u3",
        "Aggregate BY k [COUNT($u0) AS count, SUM($u1) AS sum_l.i, MIN($u1) AS min_l.i, "
        "LAST_VALUE($u2 ORDER BY $u3) AS last_value_l.t]",
    ]


def test_a_filter_is_applied_to_values() -> None:
    node = united(of(call("COUNT", where=Q), call("SUM", col("l.i"), where=Q)))
    assert lines_of(node)[0] == "Project l.k AS k, CASE WHEN l.q THEN 1 END AS $u0, CASE WHEN l.q THEN l.i END AS $u1"


def test_distinct_values_of_a_set_are_shared_by_its_calls() -> None:
    node = united(of(call("COUNT", col("l.i"), distinct=True), call("SUM", col("l.i"), distinct=True)))
    assert lines_of(node) == [
        "Project l.k AS $u0, l.i AS $u1",
        "Deduplicate",
        "Project $u0 AS k, $u1",
        "Aggregate BY k [COUNT($u1) AS count_l.i, SUM($u1) AS sum_l.i]",
    ]


def test_several_sets_share_one_state_and_columns_of_one_type() -> None:
    node = united(of(call("COUNT", col("l.k"), distinct=True), call("COUNT", col("l.b"), distinct=True)))
    assert lines_of(node) == [
        "Expand 2 branches AS $u1",
        "Project l.k AS $u0, CASE $u1 WHEN 1 THEN l.k WHEN 2 THEN l.b END AS $u2, $u1",
        "Deduplicate",
        "Project $u0 AS k, $u2, $u1",
        "Aggregate BY k [COUNT($u2) FILTER (WHERE $u1 = 1) AS count_l.k, "
        "COUNT($u2) FILTER (WHERE $u1 = 2) AS count_l.b]",
    ]


def test_a_set_in_another_order_is_the_same_set() -> None:
    pair = (col("l.i"), col("l.b"))
    node = united(of(call("COUNT", *pair, distinct=True), call("COUNT", *reversed(pair), distinct=True)))
    assert "[COUNT($u1, $u2) AS count_l.i_l.b, COUNT($u2, $u1) AS count_l.b_l.i]" in line_of(node)


def test_min_and_max_are_not_deduplicated() -> None:
    assert lines_of(united(of(call("MAX", col("l.i"), distinct=True)))) == [
        "Project l.k AS k, l.i AS $u0",
        "Aggregate BY k [MAX($u0) AS max_l.i]",
    ]


def test_kinds_of_rows_have_their_own_columns() -> None:
    node = united(
        of(call("COUNT", col("l.i"), distinct=True), call("SUM", col("l.x")), present="there"),
        of(alias="r", present="here"),
    )
    assert isinstance(node.input, Union)
    assert [field.name for field in output_of(node)] == ["k", "count_l.i", "sum_l.x", "there", "here"]
    told, plain, other = node.input.inputs
    assert line_of(told) == (
        "Project $u0 AS k, $u1, CAST(NULL AS DOUBLE) AS $u2, CAST(NULL AS INT) AS $u3, CAST(NULL AS INT) AS $u4"
    )
    assert line_of(plain) == (
        "Project l.k AS k, CAST(NULL AS INT) AS $u1, l.x AS $u2, 1 AS $u3, CAST(NULL AS INT) AS $u4"
    )
    assert line_of(other) == (
        "Project r.k AS k, CAST(NULL AS INT) AS $u1, CAST(NULL AS DOUBLE) AS $u2, CAST(NULL AS INT) AS $u3, 1 AS $u4"
    )
    assert line_of(node).endswith(
        "[COUNT($u1) AS count_l.i, SUM($u2) AS sum_l.x, COUNT($u3) AS there, COUNT($u4) AS here]"
    )


def test_used_names_are_not_used_again() -> None:
    node = united_aggregate(KEYS, (of(call("COUNT")),), frozenset({"$U0"}))
    assert "$u0_" in names_of(node.input)


def test_keys_of_distinct_values_have_one_zero() -> None:
    rows = Contribution(LEFT, (col("l.x"),), (call("COUNT", col("l.i"), distinct=True),))
    node = united_aggregate((Field("x", DOUBLE),), (rows,), frozenset())
    assert "Project if(l.x = 0, CAST(0 AS DOUBLE), nanvl(l.x, CAST('NaN' AS DOUBLE))) AS $u0" in text_of(node)


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("type_", [None, DataType(TypeName.OTHER, text="MAP<STRING, INT>")])
def test_a_type_that_only_spark_knows_is_refused(distinct: bool, type_: DataType | None) -> None:
    odd = replace(call("COUNT", col("l.i"), distinct=distinct), arguments=(replace(col("l.i"), type=type_),))
    with pytest.raises(ValueError, match=r"(l\.i|\$u.) has a type that only Spark knows"):
        united(of(odd))


@pytest.mark.parametrize(
    ("value", "text_"),
    [
        (column("x", DOUBLE), "if(x = 0, CAST(0 AS DOUBLE), nanvl(x, CAST('NaN' AS DOUBLE)))"),
        (column("x", FLOAT), "if(x = 0, CAST(0 AS FLOAT), nanvl(x, CAST('NaN' AS FLOAT)))"),
        (column("x", INT), "x"),
        (column("x", STRING), "x"),
        (column("x", None), "x"),
    ],
)
def test_equal_values_get_equal_bits(value: Scalar, text_: str) -> None:
    assert str(normalised(value)) == text_
    assert normalised(value).type == value.type


def test_a_guarded_value_is_null_unless_its_condition_is_true() -> None:
    assert guarded(column("x", INT), None) == column("x", INT)
    value = guarded(column("x", INT), column("q", BOOLEAN))
    assert (str(value), value.type, value.columns) == ("CASE WHEN q THEN x END", INT, ("q", "x"))


def test_a_filter_is_put_into_arguments_and_order() -> None:
    made = without_filter(call("FIRST_VALUE", col("l.i"), where=Q))
    assert call_text(made) == "FIRST_VALUE(CASE WHEN l.q THEN l.i END ORDER BY CASE WHEN l.q THEN l.d END)"
    assert without_filter(call("SUM", col("l.i"))) == call("SUM", col("l.i"))
