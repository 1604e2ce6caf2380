"""The formulas of calls over rows that represent several rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.contract.query import JoinKind
from service.sql.joins import Side
from service.sql.types.data_types import BIGINT, DOUBLE, INT, decimal
from tests.support.joined import call, col, joined, scan, text
from workers.engine.plan.explain import call_text
from workers.engine.plan.joined_aggregate import joined_aggregate
from workers.engine.plan.nodes import Aggregate, Call, Join, Named
from workers.engine.rules.eager.rewrite import EagerCalls

BOTH, LEFT, RIGHT = frozenset(Side), frozenset({Side.LEFT}), frozenset({Side.RIGHT})
ON_RIGHT = text("r.i > 0", "r.i")
ON_LEFT = text("l.i > 0", "l.i")


def written(made: Call, kind: JoinKind = JoinKind.INNER, sides: frozenset[Side] = BOTH) -> tuple[Any, ...]:
    """The calls of the left side, of the right one, the final ones, and the result."""
    over = joined_aggregate(joined(made, kind=kind))
    assert over is not None
    calls = EagerCalls(over, sides, frozenset({"$L0"}))
    result = calls.result_of(made)
    assert (result.name, result.expression.type) == (made.output.name, made.output.type)
    below = tuple([call_text(part) for part in calls.partial[side]] for side in Side)
    return (*below, [call_text(part) for part in calls.final], str(result.expression))


@pytest.mark.parametrize(
    ("made", "kind", "sides", "left", "right", "final"),
    [
        (call("COUNT"), JoinKind.INNER, BOTH, ["COUNT(*)"], ["COUNT(*)"], ["SUM($l0_ * $r0)"]),
        (call("COUNT"), JoinKind.LEFT, BOTH, ["COUNT(*)"], ["COUNT(*)"], ["SUM($l0_ * coalesce($r0, 1L))"]),
        (call("COUNT"), JoinKind.RIGHT, LEFT, ["COUNT(*)"], [], ["SUM(coalesce($l0_, 1L))"]),
        (call("COUNT"), JoinKind.LEFT_ANTI, BOTH, ["COUNT(*)"], [], ["SUM($l0_)"]),
        (call("COUNT"), JoinKind.LEFT_SEMI, RIGHT, [], [], ["COUNT(*)"]),
        (call("COUNT", col("r.t")), JoinKind.LEFT, BOTH, ["COUNT(*)"], ["COUNT(r.t)"], ["SUM($r0 * $l0_)"]),
        (
            call("COUNT", col("r.t")),
            JoinKind.LEFT,
            LEFT,
            ["COUNT(*)"],
            [],
            ["SUM($l0_) FILTER (WHERE r.t IS NOT NULL)"],
        ),
        (
            call("COUNT", where=ON_RIGHT),
            JoinKind.LEFT,
            BOTH,
            ["COUNT(*)"],
            ["COUNT(*) FILTER (WHERE r.i > 0)"],
            ["SUM($l0_ * nullif($r0, 0L))"],
        ),
        (
            call("COUNT", text("10 / l.i", "l.i", type_=INT), where=ON_LEFT),
            JoinKind.INNER,
            BOTH,
            ["COUNT(*)"],
            ["COUNT(*)"],
            ["SUM($l0_ * $r0) FILTER (WHERE l.i > 0 AND 10 / l.i IS NOT NULL)"],
        ),
        (call("MIN", col("l.t")), JoinKind.INNER, BOTH, ["MIN(l.t)"], [], ["MIN($l0_)"]),
        (
            call("MIN", col("l.t"), where=ON_RIGHT),
            JoinKind.INNER,
            BOTH,
            ["MIN(l.t)"],
            ["COUNT(*) FILTER (WHERE r.i > 0)"],
            ["MIN($l0_) FILTER (WHERE $r0 > 0L)"],
        ),
        (call("MAX", col("l.t"), distinct=True), JoinKind.INNER, RIGHT, [], [], ["MAX(l.t)"]),
        (
            call("LAST_VALUE", col("l.t"), where=ON_LEFT),
            JoinKind.INNER,
            LEFT,
            ["MAX_BY(l.t, l.d) FILTER (WHERE l.i > 0)", "MAX(l.d) FILTER (WHERE l.i > 0)"],
            [],
            ["MAX_BY($l0_, $l1)"],
        ),
        (call("COUNT", col("l.t"), distinct=True), JoinKind.INNER, BOTH, [], [], ["COUNT(DISTINCT l.t)"]),
        (
            call("SUM", col("l.i")),
            JoinKind.INNER,
            LEFT,
            ["SUM(l.i)"],
            [],
            ["SUM($l0_)"],
        ),
        (
            call("SUM", col("l.i")),
            JoinKind.INNER,
            BOTH,
            ["SUM(l.i)"],
            ["COUNT(*)"],
            ["SUM(CAST($l0_ AS DECIMAL(20,0)) * CAST($r0 AS DECIMAL(20,0)))"],
        ),
        (
            call("SUM", col("l.x"), where=ON_RIGHT),
            JoinKind.INNER,
            BOTH,
            ["SUM(l.x)"],
            ["COUNT(*) FILTER (WHERE r.i > 0)"],
            ["SUM($l0_ * CAST(nullif($r0, 0L) AS DOUBLE))"],
        ),
        (
            call("SUM", col("l.m")),
            JoinKind.INNER,
            RIGHT,
            [],
            ["COUNT(*)"],
            ["SUM(CAST(l.m AS DECIMAL(20,2)) * CAST($r0 AS DECIMAL(20,0)))"],
        ),
        (
            call("AVG", col("l.i")),
            JoinKind.INNER,
            BOTH,
            ["SUM(CAST(l.i AS DOUBLE))", "COUNT(l.i)"],
            ["COUNT(*)"],
            ["SUM($l0_ * CAST($r0 AS DOUBLE))", "SUM($l1 * $r0)"],
        ),
    ],
)
def test_a_call_is_written_as_the_formula_says(
    made: Call, kind: JoinKind, sides: frozenset[Side], left: list[str], right: list[str], final: list[str]
) -> None:
    assert written(made, kind, sides)[:3] == (left, right, final)


def test_longs_are_summed_in_halves() -> None:
    halves = ["SUM(shiftright(l.b, 32) + (shiftright(l.b, 31) & 1L))", "SUM(shiftright(shiftleft(l.b, 32), 32))"]
    left, _, final, result = written(call("SUM", col("l.b")), sides=LEFT)
    assert left == halves
    assert final == ["SUM($l0_)", "SUM($l1)"]
    assert "CAST($f0 AS DECIMAL(20,0)) * 4294967296 + CAST($f1 AS DECIMAL(20,0))" in result
    left, _, final, _ = written(call("SUM", col("l.b")))
    assert left == halves
    assert final[0].endswith(" * 4294967296 + CAST($l1 AS DECIMAL(20,0))) * CAST($r0 AS DECIMAL(20,0)))")


def test_sums_of_integers_over_a_join_are_wider_than_its_rows_can_overflow() -> None:
    product = call("SUM", text("l.b * v.i", "l.b", "v.i", type_=BIGINT))
    lower = joined(call("COUNT")).input
    node = Aggregate(
        Join(lower, scan("v"), JoinKind.INNER, ((col("l.k"), col("v.k")),)),
        (Named(col("v.t"), "t"),),
        (call("SUM", col("l.i")), call("SUM", col("l.b")), product),
    )
    over = joined_aggregate(node)
    assert over is not None
    calls = EagerCalls(over, BOTH, frozenset())
    for made in node.calls:
        calls.result_of(made)
    below = calls.partial[Side.LEFT]
    assert [call_text(part) for part in below] == [
        "SUM(CAST(l.i AS DECIMAL(20,0)))",
        "SUM(CAST(l.b AS DECIMAL(20,0)))",
        "MIN(l.b)",
        "MAX(l.b)",
    ]
    assert [part.output.type for part in below[:2]] == [decimal(30, 0)] * 2
    # The other side is a table.
    assert call_text(calls.partial[Side.RIGHT][1]) == "SUM(v.i)"


def test_totals_that_do_not_fit_raise_what_spark_raises() -> None:
    raised = "9223372036854775807L + nullif(CAST($f0 IS NOT NULL AS BIGINT), 0L)"
    assert written(call("SUM", col("l.i")))[3] == f"coalesce(TRY_CAST($f0 AS BIGINT), {raised})"
    fitted = f"coalesce(TRY_CAST($f0 AS DECIMAL(20,2)), CAST({raised} AS DECIMAL(20,2)))"
    assert written(call("SUM", col("l.m")))[3] == fitted
    assert written(call("AVG", col("l.m")))[3] == (
        f"CAST({fitted} / nullif(CAST($f1 AS DECIMAL(20,0)), 0) AS DECIMAL(14,6))"
    )


def test_a_filter_above_the_join_is_in_what_is_summed() -> None:
    of_both = text("l.i <> r.i", "l.i", "r.i")
    product = call("SUM", text("l.m * r.m", "l.m", "r.m", type_=decimal(21, 4)), where=of_both)
    assert written(product)[2] == ["SUM(if(l.i <> r.i, $l0_ * $r0, NULL))"]
    assert written(call("SUM", col("l.i"), where=of_both), sides=LEFT)[2] == ["SUM($l0_) FILTER (WHERE l.i <> r.i)"]


def test_counts_of_nothing_are_zero() -> None:
    assert written(call("COUNT", where=ON_RIGHT))[3] == "coalesce($f0, 0L)"
    assert written(call("AVG", col("l.x")))[3] == "CAST($f0 AS DOUBLE) / nullif(CAST($f1 AS DOUBLE), 0.0D)"


def test_literals_identify_the_values_of_both_sides() -> None:
    one = text("1", type_=INT)
    assert written(call("SUM", one))[2] == [
        # As DECIMALs: there may be more rows than a BIGINT holds, and their sum small all the same.
        "SUM(CAST(CAST(1 AS BIGINT) AS DECIMAL(20,0)) * (CAST($l0_ AS DECIMAL(20,0)) * CAST($r0 AS DECIMAL(20,0))))"
    ]


def test_products_of_both_sides_are_products_of_sums() -> None:
    of_longs = call("SUM", text("l.b * r.i", "l.b", "r.i", type_=BIGINT), where=ON_RIGHT)
    assert written(of_longs)[:3] == (
        [
            "SUM(shiftright(l.b, 32) + (shiftright(l.b, 31) & 1L))",
            "SUM(shiftright(shiftleft(l.b, 32), 32))",
            "MIN(l.b)",
            "MAX(l.b)",
        ],
        [f"{function}(r.i) FILTER (WHERE r.i > 0)" for function in ("SUM", "MIN", "MAX")],
        [
            "SUM(if(greatest($l2 * $r1, $l2 * $r2, $l3 * $r1, $l3 * $r2) >= $l2 * $r1, "
            "(CAST($l0_ AS DECIMAL(20,0)) * 4294967296 + CAST($l1 AS DECIMAL(20,0))) * "
            "CAST($r0 AS DECIMAL(20,0)), NULL))"
        ],
    )
    of_decimals = call("SUM", text("l.m * r.i", "l.m", "r.i", type_=decimal(21, 2)))
    assert written(of_decimals, sides=LEFT)[:3] == (
        ["SUM(l.m)"],
        [],
        ["SUM($l0_ * CAST(r.i AS DECIMAL(20,0)))"],
    )
    left, right, final, _ = written(call("SUM", text("l.x * r.i", "l.x", "r.i", type_=DOUBLE)))
    assert left == ["SUM(l.x)", "MIN(l.x)", "MAX(l.x)", "SUM(l.x * 5.421010862427522E-20D)"]
    assert right[0] == "SUM(CAST(r.i AS DOUBLE))"
    assert final[0].startswith("SUM(if(abs($l1 * $r1 * 0.25D + ")


def test_equal_parts_are_computed_once() -> None:
    over = joined_aggregate(joined(call("COUNT")))
    assert over is not None
    calls = EagerCalls(over, BOTH, frozenset())
    for made in (call("COUNT"), call("SUM", col("l.i")), call("SUM", col("r.i")), call("COUNT", where=ON_RIGHT)):
        calls.result_of(made)
    assert [call_text(part) for part in calls.partial[Side.LEFT]] == ["COUNT(*)", "SUM(l.i)"]
    assert [call_text(part) for part in calls.partial[Side.RIGHT]] == [
        "COUNT(*)",
        "SUM(r.i)",
        "COUNT(*) FILTER (WHERE r.i > 0)",
    ]
    assert [part.output.name for part in calls.final] == ["$f0", "$f1", "$f2", "$f3"]


def test_parts_have_sparks_types() -> None:
    over = joined_aggregate(joined(call("COUNT")))
    assert over is not None
    calls = EagerCalls(over, BOTH, frozenset())
    made = [call("SUM", col(f"l.{name}")) for name in ("i", "x", "m")]
    for one in (*made, replace(made[0], arguments=(col("r.b"),))):
        calls.result_of(one)
    assert [part.output.type for part in calls.partial[Side.LEFT]] == [BIGINT, DOUBLE, decimal(20, 2), BIGINT]
    assert [part.output.type for part in calls.final] == [
        decimal(38, 0),
        DOUBLE,
        decimal(38, 2),
        decimal(38, 0),
    ]
