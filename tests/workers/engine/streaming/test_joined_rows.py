"""Joins of streams whose rows Spark joins: which are supported, and their description.

Which queries have one is held together with submission in tests/sql/cases/streams.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.contract.query import JoinKind
from tests.support.joined import col, scan
from tests.support.stream_queries import planned
from workers.engine.plan.nodes import Deduplicate, Join, Within
from workers.engine.streaming.stream_joins import join_text, joined_rows_refusal
from workers.engine.streaming.stream_plan import Shape

JOIN = Join(
    scan("l"),
    scan("r"),
    JoinKind.INNER,
    ((col("l.k"), col("r.k")),),
    within=Within(col("l.t"), col("r.t"), -1_500_000, 0),
)


def obstacle(*joins: Join, updates: bool = False) -> str | None:
    return joined_rows_refusal(joins, lambda _: True, updates=updates)


def test_joins_whose_rows_spark_can_join() -> None:
    assert obstacle(JOIN) is obstacle(JOIN, updates=True) is obstacle(replace(JOIN, kind=JoinKind.LEFT)) is None
    assert "more than two" in str(obstacle(JOIN, JOIN))
    assert "kept for ever" in str(obstacle(replace(JOIN, within=None)))
    assert "made DISTINCT before the join" in str(obstacle(replace(JOIN, right=Deduplicate(scan("r")))))
    assert "needs the output 'append'" in str(obstacle(replace(JOIN, kind=JoinKind.LEFT_SEMI), updates=True))


def test_the_text_of_a_join_has_its_bounds() -> None:
    assert join_text(JOIN).endswith("l.t - r.t is from -1.5s to 0s.")
    assert not join_text(replace(JOIN, within=None))


NEAR = "JOIN t ON s.k = t.k AND s.ts BETWEEN t.ts - INTERVAL '2' MINUTE AND t.ts"


@pytest.mark.parametrize(
    ("sql", "shape"),
    [
        (f"SELECT s.k, t.i FROM s {NEAR}", Shape.JOINED_ROWS),
        (f"SELECT DISTINCT s.k, t.i FROM s {NEAR}", Shape.DISTINCT_ROWS),
        (f"SELECT t.i, COUNT(*) AS n FROM s {NEAR} GROUP BY t.i", Shape.PLAIN),
        (f"SELECT t.i, COUNT(DISTINCT s.i) AS n FROM s {NEAR} GROUP BY t.i", Shape.DISTINCT),
        (f"SELECT COUNT(*) AS n FROM s {NEAR} GROUP BY HOP(s.ts, INTERVAL '1' DAY, INTERVAL '2' DAY)", Shape.PLAIN),
    ],
)
def test_the_reason_names_the_kind_of_join(sql: str, shape: Shape) -> None:
    plan = planned(sql, timed=True)
    assert plan.shape is shape
    assert plan.reason.startswith("Spark joins the rows of both streams, since the query uses joined rows")
    assert "is from -120s to 0s." in plan.reason


def test_a_join_in_one_state_keeps_no_rows() -> None:
    sql = "SELECT s.k, s.ts, COUNT(*) AS n FROM s JOIN t ON s.k = t.k AND s.ts = t.ts GROUP BY s.k, s.ts"
    assert planned(sql, timed=True).shape is Shape.JOINED
    assert planned(sql, timed=True).node == planned(sql).node
