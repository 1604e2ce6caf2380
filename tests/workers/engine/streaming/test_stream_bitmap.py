"""Distinct integers of a stream as bitmaps: the plan, how groups are merged, and when they are not possible."""

from __future__ import annotations

import re

import pytest

from service.contract.job import JobSpec
from service.sql.compile import compile_job
from service.sql.types.aggregates import FinalColumn, FinalLevel, Merge, MergedColumn
from service.sql.types.data_types import BIGINT, DATE, DOUBLE, INT, STRING, Field, Schema, decimal
from workers.engine.plan.builder import build
from workers.engine.plan.explain import text_of
from workers.engine.plan.nodes import Node
from workers.engine.streaming.stream_aggregates import bitmap_state, stream_bitmap_obstacle
from workers.engine.streaming.stream_plan import Bitmaps, Shape, bitmap_obstacle, split_query, stream_plan

SCHEMA = Schema(
    (
        Field("k", STRING),
        Field("i", INT),
        Field("b", BIGINT),
        Field("d", DOUBLE),
        Field("da", DATE),
        Field("m", decimal(10, 2)),
        Field("w", decimal(25, 5)),
    )
)
STREAM = frozenset({"s"})


def built_of(sql: str) -> Node:
    tables = {"s": {"format": "parquet", "path": "s"}}
    return build(compile_job(JobSpec.model_validate({"tables": tables, "sql": sql}), {"s": SCHEMA}))


def obstacle(sql: str) -> str | None:
    return bitmap_obstacle(built_of(sql), STREAM)


def test_rows_are_read_once_and_a_group_has_a_part_for_each_block_of_its_values() -> None:
    built = built_of("SELECT COUNT(DISTINCT i) AS c, k, COUNT(*) AS n, AVG(b) AS a FROM s GROUP BY k")
    plan = stream_plan(built, STREAM, Bitmaps(True, "Because."))
    assert (plan.shape, plan.keys, plan.reason) == (Shape.BITMAP, ("k",), "Because.")
    assert [field.name for field in plan.output] == ["c", "k", "n", "a"]
    assert (
        text_of(plan.node)
        == """\
Project k, $block, bitmap_count($p0) AS $p1, $p2, $p4, $p5
  Aggregate BY s.k AS k, shiftright(CAST(s.i AS BIGINT), 15) AS $block [BITMAP_CONSTRUCT_AGG(CAST(s.i AS BIGINT) & \
32767L) AS $p0, COUNT(*) AS $p2, SUM(CAST(s.b AS DOUBLE)) AS $p4, COUNT(CAST(s.b AS DOUBLE)) AS $p5]
    Scan s AS s [s.k, s.i, s.b]"""
    )
    assert plan.final == FinalLevel(
        keys=("k",),
        parts=("$block",),
        merged=tuple(MergedColumn(name, Merge.SUM) for name in ("$p1", "$p2", "$p4", "$p5")),
        output=(
            FinalColumn(Field("c", BIGINT), "$p1", zero=True),
            FinalColumn(Field("k", STRING), "k"),
            FinalColumn(Field("n", BIGINT), "$p2", zero=True),
            FinalColumn(Field("a", DOUBLE), "$p4", divisor="$p5"),
        ),
    )


@pytest.mark.parametrize("value", ["i", "b", "da", "m", "i + 1"])
def test_integers_dates_and_short_decimals_can_be_bitmaps(value: str) -> None:
    assert obstacle(f"SELECT k, COUNT(DISTINCT {value}) AS c FROM s GROUP BY k") is None


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("COUNT(DISTINCT k) AS c FROM s GROUP BY i", "s.k is of STRING"),
        ("COUNT(DISTINCT w) AS c FROM s GROUP BY i", r"s.w is of DECIMAL\(25,5\)"),
        ("COUNT(DISTINCT i) AS c, COUNT(DISTINCT b) AS e FROM s GROUP BY k", "There are 2 sets"),
        ("COUNT(DISTINCT i, b) AS c FROM s GROUP BY k", "of single values"),
        ("SUM(DISTINCT i) AS c FROM s GROUP BY k", "needs the values themselves"),
        ("COUNT(DISTINCT i) + 1 AS c FROM s GROUP BY k", "is computed from complete groups"),
        ("COUNT(DISTINCT i) AS c FROM s GROUP BY k HAVING COUNT(*) > 1", "HAVING needs complete groups"),
        ("COUNT(DISTINCT i) AS c, SUM(m) AS t FROM s GROUP BY k", r"is of DECIMAL\(20,2\)"),
        ("COUNT(DISTINCT i) AS c, AVG(m) AS t FROM s GROUP BY k", "parts that can be added up"),
        ("COUNT(DISTINCT i) AS c, STDDEV_POP(b) AS t FROM s GROUP BY k", "parts that can be added up"),
        (
            "COUNT(DISTINCT i) AS c, FIRST_VALUE(k ORDER BY b) AS t FROM s GROUP BY k",
            "parts that can be added up",
        ),
    ],
)
def test_an_obstacle_is_named(query: str, words: str) -> None:
    found = obstacle(f"SELECT {query}")
    assert found is not None
    assert re.search(words, found)


def test_an_aggregate_with_an_obstacle_is_refused() -> None:
    select, having, aggregate = split_query(built_of("SELECT k, SUM(DISTINCT i) AS c FROM s GROUP BY k"))
    assert aggregate is not None
    assert stream_bitmap_obstacle(select, having, aggregate) is not None
    with pytest.raises(ValueError, match="needs the values themselves"):
        bitmap_state(select, aggregate)
