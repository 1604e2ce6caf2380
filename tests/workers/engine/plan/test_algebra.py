"""The partial/final table is complete and well-typed. `tests/conformance` compares its values with Spark's."""

from __future__ import annotations

from itertools import count

import pytest

from service.contract.query import AggregateFunction as F
from service.sql.expressions.scalar import column
from service.sql.resolve.aggregate_forms import COMPUTED_AS
from service.sql.types.aggregates import takes
from service.sql.types.data_types import BIGINT, DOUBLE, INT, STRING, DataType, Field, TypeName, decimal
from tests.support.scalars import scalar
from workers.engine.plan.aggregates import ALGEBRA, is_distinct, refusal_of, row_of, split_call
from workers.engine.plan.nodes import Call


def call(function: F, *types: DataType | None, result: DataType, distinct: bool = False) -> Call:
    arguments = tuple(column(f"t.{'abc'[index]}", type_) for index, type_ in enumerate(types))
    return Call(function, arguments, Field("r", result), distinct, scalar("`t.ok`", None))


def parts(whole: Call) -> tuple[list[str], list[str], str]:
    split = split_call(whole, (f"$p{n}" for n in count()), (f"$f{n}" for n in count()))
    assert split.result.name == whole.output.name
    assert split.result.expression.type == whole.output.type
    assert all(part.filter == whole.filter for part in split.partial)
    assert all(part.filter is None and not part.distinct for part in split.final)
    return [text(part) for part in split.partial], [text(part) for part in split.final], str(split.result.expression)


def text(part: Call) -> str:
    arguments = ", ".join(map(str, part.arguments))
    return f"{part.function}({'DISTINCT ' if part.distinct else ''}{arguments}) {part.output.type}"


@pytest.mark.parametrize(
    ("whole", "expected"),
    [
        (call(F.COUNT, result=BIGINT), (["COUNT() BIGINT"], ["SUM($p0) BIGINT"], "coalesce($f0, 0L)")),
        (
            call(F.COUNT, STRING, INT, result=BIGINT, distinct=True),
            (["COUNT(DISTINCT t.a, t.b) BIGINT"], ["SUM($p0) BIGINT"], "coalesce($f0, 0L)"),
        ),
        (call(F.SUM, INT, result=BIGINT), (["SUM(t.a) BIGINT"], ["SUM($p0) BIGINT"], "$f0")),
        (
            call(F.SUM, decimal(10, 2), result=decimal(20, 2), distinct=True),
            (
                ["SUM(DISTINCT t.a) DECIMAL(20,2)"],
                ["SUM($p0) DECIMAL(30,2)"],
                "CAST($f0 AS DECIMAL(20,2))",
            ),
        ),
        (
            call(F.AVG, BIGINT, result=DOUBLE),
            (
                ["SUM(CAST(t.a AS DOUBLE)) DOUBLE", "COUNT(CAST(t.a AS DOUBLE)) BIGINT"],
                ["SUM($p0) DOUBLE", "SUM($p1) BIGINT"],
                "CAST($f0 AS DOUBLE) / nullif(CAST($f1 AS DOUBLE), 0.0D)",
            ),
        ),
        (
            call(F.AVG, BIGINT, result=DOUBLE, distinct=True),
            (
                [
                    "SUM(DISTINCT CAST(t.a AS DECIMAL(20,0))) DECIMAL(30,0)",
                    "COUNT(DISTINCT CAST(t.a AS DECIMAL(20,0))) BIGINT",
                ],
                ["SUM($p0) DECIMAL(38,0)", "SUM($p1) BIGINT"],
                "CAST($f0 AS DOUBLE) / nullif(CAST($f1 AS DOUBLE), 0.0D)",
            ),
        ),
        (
            call(F.AVG, decimal(10, 2), result=decimal(14, 6)),
            (
                ["SUM(t.a) DECIMAL(20,2)", "COUNT(t.a) BIGINT"],
                ["SUM($p0) DECIMAL(30,2)", "SUM($p1) BIGINT"],
                "CAST(CAST($f0 AS DECIMAL(20,2)) / nullif(CAST($f1 AS DECIMAL(20,0)), 0) AS DECIMAL(14,6))",
            ),
        ),
        (call(F.MAX, STRING, result=STRING, distinct=True), (["MAX(t.a) STRING"], ["MAX($p0) STRING"], "$f0")),
    ],
)
def test_a_call_in_its_parts(whole: Call, expected: tuple[list[str], list[str], str]) -> None:
    assert refusal_of(whole) is None
    assert parts(whole) == expected


@pytest.mark.parametrize(
    ("function", "by", "bound"), [(F.FIRST_VALUE, "MIN_BY", "MIN"), (F.LAST_VALUE, "MAX_BY", "MAX")]
)
def test_the_nearest_value_takes_its_order_along(function: F, by: str, bound: str) -> None:
    whole = Call(function, (column("t.x", STRING),), Field("r", STRING), order_by=column("t.t", BIGINT))
    assert parts(whole) == (
        [f"{by}(t.x, t.t) STRING", f"{bound}(t.t) BIGINT"],
        [f"{by}($p0, $p1) STRING"],
        "$f0",
    )


def test_an_average_of_many_digits_is_refused_with_the_reason() -> None:
    whole = call(F.AVG, decimal(15, 2), result=decimal(19, 6))
    assert refusal_of(whole) == "the quotient of a DECIMAL of more than 14 digits would be rounded twice"
    with pytest.raises(ValueError, match="AVG cannot be split"):
        parts(whole)


def test_what_no_row_covers_is_refused_with_the_reason() -> None:
    assert refusal_of(call(F.SUM, STRING, result=DOUBLE)) == "SUM of STRING has no partial form"
    assert refusal_of(call(F.SUM, None, result=DOUBLE)) == "only Spark can determine the type of its argument"


def test_distinct_matters_unless_it_changes_nothing() -> None:
    assert is_distinct(call(F.COUNT, STRING, result=BIGINT, distinct=True))
    assert not is_distinct(call(F.COUNT, STRING, result=BIGINT))
    assert not is_distinct(call(F.MIN, STRING, result=STRING, distinct=True))


WHOLE = {F.VAR_POP, F.VAR_SAMP, F.STDDEV_POP, F.STDDEV_SAMP, F.LISTAGG, F.APPROX_COUNT_DISTINCT, F.PERCENTILE}
WHOLE |= {F.GROUPING, F.GROUPING_ID}
"""Functions that are never split."""


def test_every_function_has_a_row_for_every_numeric_type() -> None:
    for function in set(F) - WHOLE - COMPUTED_AS.keys():
        for type_ in (INT, BIGINT, DOUBLE, DataType(TypeName.FLOAT), decimal(10, 2), decimal(38, 18)):
            if not takes(function, type_):
                continue
            for distinct in (False, True):
                if distinct and function in {F.FIRST_VALUE, F.LAST_VALUE}:
                    continue
                assert row_of(call(function, type_, result=type_, distinct=distinct)) is not None


def test_a_row_has_parts_or_a_refusal() -> None:
    for row in ALGEBRA:
        assert (row.refusal is None) == bool(row.partial and row.final)
