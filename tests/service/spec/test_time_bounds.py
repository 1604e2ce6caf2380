"""The time between the rows of two streams, as the condition of their join bounds it."""

from __future__ import annotations

import pytest

from service.spec.bound import BoundTimes, BoundWatermark
from service.spec.compile import compile_job
from service.spec.errors import SpecError
from service.spec.job import JobSpec
from tests.support.stream_queries import SCHEMAS, job

MINUTE = 60_000_000


def bounds(condition: str, *, kind: str = "JOIN", right: str = "t") -> BoundTimes | None:
    sql = f"SELECT s.k FROM s {kind} {right} ON s.k = t.k AND {condition}"
    return compile_job(job(sql=sql, timed=True), SCHEMAS, is_accepted=True).joins[-1].within


@pytest.mark.parametrize(
    ("condition", "least", "most"),
    [
        ("s.ts BETWEEN t.ts - INTERVAL '2' MINUTE AND t.ts + INTERVAL '1' MINUTE", -2, 1),
        ("t.ts BETWEEN s.ts - INTERVAL '2' MINUTE AND s.ts + INTERVAL '1' MINUTE", -1, 2),
        ("s.ts > t.ts AND s.ts - INTERVAL '1' HOUR < t.ts", 0, 60),
        ("s.ts + INTERVAL '1' MINUTE >= t.ts - INTERVAL '1' MINUTE AND t.ts + INTERVAL '5' MINUTE >= s.ts", -2, 5),
        ("s.ts = t.ts", 0, 0),
        ("INTERVAL '3' MINUTE + s.ts = t.ts", -3, -3),
        ("s.ts <= t.ts AND s.ts >= t.ts - INTERVAL '1' DAY AND s.ts >= t.ts - INTERVAL '1' MINUTE", -1, 0),
        ("s.ts > t.ts AND (s.ts < t.ts + INTERVAL '2' MINUTE AND s.i > 3)", 0, 2),
    ],
)
def test_the_narrowest_bounds_count(condition: str, least: int, most: int) -> None:
    found = bounds(condition)
    assert found is not None
    assert (found.left.column, found.right.column) == ("s.ts", "t.ts")
    assert (found.at_least_us, found.at_most_us) == (least * MINUTE, most * MINUTE)
    assert found.watermarks == (BoundWatermark("s", "s.ts", 300_000), BoundWatermark("t", "t.ts", 300_000))


@pytest.mark.parametrize(
    "condition",
    [
        "s.i = t.i",
        "s.ts > t.ts",
        "s.ts < t.ts",
        "s.ts BETWEEN t.ts AND t.ts + INTERVAL '1' MONTH",
        "s.da = t.da",
        "(s.ts = t.ts OR s.i = 3)",
        "NOT s.ts <> t.ts",
        "s.ts BETWEEN TIMESTAMP '2026-01-01' AND t.ts",
    ],
)
def test_what_bounds_nothing(condition: str) -> None:
    assert bounds(condition) is None


def test_only_event_times_bound_it() -> None:
    assert bounds("s.ts = t.x", right="(SELECT k, ts AS x FROM t WHERE i > 3) t") is not None
    assert bounds("s.ts = t.x", right="(SELECT k, ts + INTERVAL '1' DAY AS x FROM t) t") is None
    assert bounds("s.ts = t.ts", right="u AS t") is None


@pytest.mark.parametrize("kind", ["LEFT JOIN", "RIGHT JOIN", "LEFT SEMI JOIN"])
def test_a_condition_behind_the_join_bounds_inner_joins_alone(kind: str) -> None:
    def behind(kind: str) -> BoundTimes | None:
        sql = f"SELECT s.k FROM s {kind} t ON s.k = t.k WHERE s.ts = s.ts + INTERVAL '0' DAY"
        sql = sql if kind == "LEFT SEMI JOIN" else sql.replace("s.ts + INTERVAL '0' DAY", "t.ts")
        return compile_job(job(sql=sql, timed=True), SCHEMAS, is_accepted=True).joins[-1].within

    assert behind(kind) is None
    assert behind("JOIN") is not None


@pytest.mark.parametrize("kind", ["FULL JOIN", "LEFT ANTI JOIN"])
def test_not_every_join_can_forget(kind: str) -> None:
    assert bounds("s.ts = t.ts", kind=kind) is None


def test_bounds_in_the_wrong_order_are_told_with_the_right_one() -> None:
    sql = (
        "SELECT s.k FROM s JOIN t ON s.k = t.k AND s.ts BETWEEN t.ts + INTERVAL '2' HOUR AND t.ts - INTERVAL '1' MINUTE"
    )
    with pytest.raises(SpecError, match="Exchange") as caught:
        compile_job(job(sql=sql, timed=True), SCHEMAS)
    assert caught.value.code == "stream_join_always_empty"
    assert str(caught.value).endswith("s.ts BETWEEN t.ts - INTERVAL '60' SECOND AND t.ts + INTERVAL '7200' SECOND.")


def test_a_batch_has_no_event_time() -> None:
    tables = {name: {"format": "parquet", "path": name} for name in SCHEMAS}
    spec = JobSpec.model_validate({"tables": tables, "sql": "SELECT s.k FROM s JOIN t ON s.ts = t.ts"})
    assert compile_job(spec, SCHEMAS).joins[0].within is None
