"""What is refused when a streaming job is submitted is what the planner of streams cannot run, and nothing else.

No Spark: nothing is run.
"""

from __future__ import annotations

import pytest

from service.spec.compile import compile_job
from service.spec.errors import SpecError
from service.spec.job import JobSpec
from service.spec.modes import OutputMode
from tests.conformance.test_streams import BESIDE_STATIC, JOINED, QUERIES
from tests.support.stream_queries import SCHEMAS, job, planned, taken
from workers.engine.plan.stream_shape import StreamPlanError

ACCEPTED = (
    *QUERIES.values(),
    *JOINED.values(),
    *BESIDE_STATIC.values(),
    # One aggregate
    "SELECT COUNT(*) AS c FROM s",
    "SELECT k FROM s GROUP BY k",
    "SELECT k FROM s GROUP BY k HAVING k > 'a'",
    "SELECT k, g FROM s GROUP BY ROLLUP (k, g)",
    "SELECT k, g, GROUPING(k) AS x, SUM(i) AS c FROM s GROUP BY CUBE (k, g)",
    "SELECT a, COUNT(*) AS c FROM s GROUP BY a",
    "SELECT k, COUNT(p) AS c FROM s GROUP BY k",
    "SELECT l, COUNT(DISTINCT l, i) AS c FROM s GROUP BY l",
    "SELECT k, APPROX_COUNT_DISTINCT(i) AS c FROM s GROUP BY k",
    "SELECT d, COUNT(DISTINCT f) AS c FROM s GROUP BY d",
    "SELECT x, SUM(c) AS c FROM (SELECT k AS x, i AS c FROM s WHERE g > 0) v GROUP BY x",
    "SELECT x, COUNT(*) AS c FROM (SELECT k AS x FROM s UNION ALL SELECT k FROM t) v GROUP BY x",
    "SELECT x FROM (SELECT k AS x FROM s UNION SELECT k FROM t) v",
    "SELECT k, c FROM (SELECT DISTINCT k, i AS c FROM s) v WHERE c > 1",
    "SELECT k FROM (SELECT k, COUNT(*) AS c FROM s GROUP BY k) v",
    "SELECT s.k, COUNT(*) AS x FROM s JOIN (SELECT k, COUNT(*) AS c FROM t GROUP BY k) v ON s.k = v.k GROUP BY s.k",
    # HAVING that stays true
    "SELECT k FROM s GROUP BY k HAVING COUNT(*) >= 2 AND k <> 'a'",
    "SELECT k FROM s GROUP BY k HAVING COUNT(DISTINCT i) > 2 OR MAX(b) > 10",
    "SELECT k FROM s GROUP BY k HAVING MIN(ts) < '2026-01-01'",
    "SELECT k FROM s GROUP BY k HAVING NOT (COUNT(*) <= 3)",
    "SELECT k FROM s GROUP BY k HAVING 5 < COUNT(*) + COUNT(i) - 1",
    "SELECT k FROM s GROUP BY k HAVING MAX(i) IS NOT NULL",
    "SELECT k FROM s GROUP BY k HAVING MAX(q)",
    "SELECT k FROM s GROUP BY k HAVING SUM(CASE WHEN q THEN 1 ELSE 0 END) > 3",
    "SELECT k FROM s GROUP BY k HAVING MAX(b) - MIN(i) > 100",
    "SELECT g FROM s GROUP BY g HAVING COUNT(*) > g",
    # Joined with static tables
    "SELECT s.k, COUNT(*) AS c FROM s CROSS JOIN n GROUP BY s.k",
    "SELECT s.k, COUNT(*) AS c FROM n JOIN s ON s.g = n.g GROUP BY s.k",
    "SELECT s.k, x.name FROM s JOIN (SELECT name, g FROM n ORDER BY d LIMIT 3) x ON x.g = s.g",
    "SELECT s.k, COUNT(*) AS c FROM s JOIN n ON s.g = n.g JOIN n AS o ON o.g = s.i GROUP BY s.k",
    # Joined with each other
    "SELECT s.k, COUNT(*) AS c FROM s JOIN s AS o ON s.k = o.k GROUP BY s.k",
    "SELECT s.k, COUNT(*) AS c FROM s, t WHERE s.k = t.k AND s.i > 0 GROUP BY s.k",
    "SELECT x.k, SUM(x.i) AS c FROM (SELECT s.k, s.i FROM s JOIN t ON s.k = t.k WHERE t.q) x WHERE x.i > 3 "
    "GROUP BY x.k",
    "SELECT s.k, COUNT(*) AS c FROM s JOIN (SELECT DISTINCT k FROM t) x ON s.k = x.k GROUP BY s.k",
    "SELECT s.k, COUNT(*) AS c FROM s JOIN (SELECT t.k FROM t JOIN n ON t.g = n.g) x ON s.k = x.k GROUP BY s.k",
    "SELECT s.k, COUNT(*) AS c FROM s JOIN (SELECT k FROM t UNION ALL SELECT k FROM u) x ON s.k = x.k GROUP BY s.k",
    "SELECT s.k, SUM(s.d * t.d) AS c, AVG(t.m) AS a FROM s JOIN t ON s.k = t.k GROUP BY s.k",
    "SELECT s.k, SUM(1) AS c FROM s JOIN t ON s.k = t.k GROUP BY s.k HAVING COUNT(*) > 3 AND MIN(t.i) < 3",
    "SELECT t.b, COUNT(*) AS c FROM s JOIN t ON s.g = t.b GROUP BY t.b",
    "SELECT s.k, COUNT(1) FILTER (WHERE t.q) AS c, AVG(2) AS a, MAX(1.5) AS b FROM s JOIN t ON s.k = t.k GROUP BY s.k",
    "SELECT s.k, SUM(s.i) FILTER (WHERE t.q AND t.i > 2) AS c FROM s LEFT JOIN t ON s.k = t.k GROUP BY s.k",
    "SELECT t.k, SUM(DISTINCT s.m) AS c, AVG(DISTINCT t.z) AS a FROM s RIGHT JOIN t ON s.k = t.k GROUP BY t.k",
    "SELECT s.k, MIN(t.da) AS c, LAST_VALUE(t.i ORDER BY t.ts) AS a FROM s LEFT JOIN t ON s.k = t.k GROUP BY s.k",
    "SELECT s.k, COUNT(*) FILTER (WHERE t.q) AS c FROM s LEFT JOIN t ON s.k = t.k AND t.i > 2 GROUP BY s.k",
    "SELECT s.g, MAX(s.g) AS c FROM s JOIN t ON s.g = t.g GROUP BY s.g",
    "SELECT s.k, SUM(s.z) AS c FROM s LEFT SEMI JOIN t ON s.k = t.k AND t.i > 3 GROUP BY s.k",
    "SELECT s.k, COUNT(DISTINCT t.d + 1) AS c FROM s LEFT JOIN t ON s.k = t.k GROUP BY s.k",
)

_JOIN = "FROM s JOIN t ON s.k = t.k"
REFUSED = {
    "no_stream": ("SELECT COUNT(*) AS c FROM n", "SELECT name FROM n"),
    "aggregate_of_aggregate": (
        "SELECT c, COUNT(*) AS x FROM (SELECT k, COUNT(*) AS c FROM s GROUP BY k) v GROUP BY c",
        "SELECT k, c FROM (SELECT k, COUNT(*) AS c FROM s GROUP BY k) v WHERE c > 3",
        "SELECT k, c + 1 AS c FROM (SELECT k, COUNT(*) AS c FROM s GROUP BY k) v",
        "SELECT DISTINCT COUNT(*) AS c FROM s GROUP BY k",
        "SELECT 1 AS x FROM (SELECT COUNT(*) AS c FROM s) v",
        "SELECT s.k, SUM(c) AS x FROM s JOIN (SELECT k, COUNT(*) AS c FROM t GROUP BY k) v ON s.k = v.k GROUP BY s.k",
        "SELECT n.name, v.c FROM n JOIN (SELECT g, COUNT(*) AS c FROM s GROUP BY g) v ON n.g = v.g",
        "SELECT x FROM (SELECT k AS x FROM s UNION ALL SELECT k FROM t GROUP BY k HAVING COUNT(*) > 1) v",
        "SELECT k, g FROM (SELECT k, g FROM s GROUP BY ROLLUP (k, g)) v",
    ),
    "having_may_turn_false": tuple(
        f"SELECT k FROM s GROUP BY k HAVING {condition}"
        for condition in (
            "COUNT(*) < 3",
            "COUNT(*) = 3",
            "NOT COUNT(*) > 3",
            "COUNT(*) > 3 AND SUM(i) > 3",
            "COUNT(*) > 3 OR AVG(i) > 3",
            "SUM(b) > 3",
            "MAX(i) < 3",
            "MIN(i) > 3",
            "MAX(k) > 3",
            "COUNT(*) BETWEEN 3 AND 9",
            "MAX(i) - COUNT(*) > 3",
            "MAX(d) + MAX(f) > 3",
            "LAST_VALUE(q ORDER BY id)",
            "MAX(i) IS NULL",
            "COUNT(*) % 2 = 0",
            "MAX(ts) > current_timestamp()",
            "COUNT(*) > COUNT(i)",
        )
    ),
    "unbounded_order": (
        "SELECT k, COUNT(*) AS c FROM s GROUP BY k ORDER BY c",
        "SELECT k, i FROM s ORDER BY i DESC",
        "SELECT k, i FROM s LIMIT 3",
        "SELECT k, COUNT(*) AS c FROM s GROUP BY k LIMIT 3",
        "SELECT k, COUNT(*) AS c FROM (SELECT k FROM s ORDER BY i LIMIT 9) v GROUP BY k",
        "SELECT s.k, COUNT(*) AS c FROM s JOIN (SELECT k FROM t LIMIT 5) v ON s.k = v.k GROUP BY s.k",
        "SELECT k FROM (SELECT k FROM s UNION ALL SELECT k FROM t LIMIT 5) v",
        "SELECT DISTINCT k FROM s ORDER BY k",
    ),
    "outer_side_static": (
        "SELECT n.name, COUNT(s.id) AS c FROM n LEFT JOIN s ON s.g = n.g GROUP BY n.name",
        "SELECT n.name, COUNT(s.id) AS c FROM s RIGHT JOIN n ON s.g = n.g GROUP BY n.name",
        "SELECT n.name, COUNT(*) AS c FROM s FULL JOIN n ON s.g = n.g GROUP BY n.name",
        "SELECT n.name FROM n FULL JOIN s ON s.g = n.g",
        "SELECT n.name FROM n LEFT SEMI JOIN s ON s.g = n.g",
        "SELECT n.name FROM n LEFT ANTI JOIN s ON s.g = n.g",
        "SELECT v.name, COUNT(*) AS c FROM (SELECT n.name FROM n LEFT JOIN s ON s.g = n.g) v GROUP BY v.name",
    ),
    "union_with_static": (
        "SELECT x, COUNT(*) AS c FROM (SELECT k AS x FROM s UNION ALL SELECT name FROM n) v GROUP BY x",
        "SELECT name AS x FROM n UNION ALL SELECT k FROM s",
        "SELECT name AS x FROM n UNION SELECT k FROM s",
    ),
    "distinct_with_grouping_sets": (
        "SELECT k, g, COUNT(DISTINCT i) AS c FROM s GROUP BY ROLLUP (k, g)",
        "SELECT k, COUNT(DISTINCT i) AS c, COUNT(*) AS n FROM s GROUP BY CUBE (k)",
    ),
    "stream_value_type": (
        "SELECT k, COUNT(DISTINCT a) AS c FROM s GROUP BY k",
        "SELECT a, COUNT(DISTINCT i) AS c FROM s GROUP BY a",
        "SELECT DISTINCT a FROM s",
        "SELECT k, COUNT(*) AS c FROM (SELECT DISTINCT k, a FROM s) v GROUP BY k",
        "SELECT k, COUNT(DISTINCT i) AS c, COUNT(p) AS p FROM s GROUP BY k",
    ),
    "full_outer_stream_join": (
        "SELECT s.k, COUNT(*) AS c FROM s FULL JOIN t ON s.k = t.k GROUP BY s.k",
        "SELECT s.k FROM s FULL JOIN t ON s.k = t.k",
    ),
    "stream_anti_join": (
        "SELECT s.k, COUNT(*) AS c FROM s LEFT ANTI JOIN t ON s.k = t.k GROUP BY s.k",
        "SELECT s.k FROM s LEFT ANTI JOIN t ON s.k = t.k",
    ),
    "stream_join_no_equality": (
        "SELECT s.k, COUNT(*) AS c FROM s CROSS JOIN t GROUP BY s.k",
        "SELECT s.k, t.i FROM s CROSS JOIN t",
    ),
    "join_residual_two_sided": (
        f"SELECT s.k, COUNT(*) AS c {_JOIN} AND s.i < t.i GROUP BY s.k",
        f"SELECT s.k, COUNT(*) AS c {_JOIN} WHERE s.i + t.i > 3 GROUP BY s.k",
        "SELECT s.k, COUNT(*) AS c FROM s LEFT JOIN t ON s.k = t.k WHERE t.i > 3 GROUP BY s.k",
        "SELECT s.k, COUNT(*) AS c FROM s LEFT JOIN t ON s.k = t.k AND s.i > 3 GROUP BY s.k",
        "SELECT s.k, COUNT(*) AS c FROM s LEFT JOIN t ON s.k = t.k WHERE t.k IS NULL GROUP BY s.k",
        "SELECT x.k, COUNT(*) AS c FROM (SELECT s.k, s.i - t.i AS e FROM s JOIN t ON s.k = t.k) x WHERE x.e > 0 "
        "GROUP BY x.k",
    ),
    "join_group_not_key": (
        f"SELECT s.g, COUNT(*) AS c {_JOIN} GROUP BY s.g",
        f"SELECT s.k, s.g, COUNT(*) AS c {_JOIN} GROUP BY s.k, s.g",
        f"SELECT COUNT(*) AS c {_JOIN}",
        f"SELECT s.k, COUNT(*) AS c {_JOIN} AND s.g = t.g GROUP BY s.k",
        f"SELECT upper(s.k) AS u, COUNT(*) AS c {_JOIN} GROUP BY upper(s.k)",
        "SELECT t.k, COUNT(*) AS c FROM s LEFT JOIN t ON s.k = t.k GROUP BY t.k",
        "SELECT s.k, COUNT(*) AS c FROM s RIGHT JOIN t ON s.k = t.k GROUP BY s.k",
        "SELECT s.g, COUNT(*) AS c FROM s JOIN t ON s.g + 1 = t.g GROUP BY s.g",
        f"SELECT s.k, COUNT(*) AS c {_JOIN} GROUP BY ROLLUP (s.k)",
        "SELECT s.g, COUNT(*) AS c FROM s JOIN t ON s.g = t.b GROUP BY s.g",
    ),
    "stream_join_needs_rows": (
        f"SELECT s.k, SUM(s.i + t.i) AS c {_JOIN} GROUP BY s.k",
        f"SELECT s.k, MAX(s.d - t.d) AS c {_JOIN} GROUP BY s.k",
        f"SELECT s.k, STDDEV_POP(s.i) AS c {_JOIN} GROUP BY s.k",
        f"SELECT s.k, APPROX_COUNT_DISTINCT(s.i) AS c {_JOIN} GROUP BY s.k",
        f"SELECT s.k, COUNT(DISTINCT s.i, t.i) AS c {_JOIN} GROUP BY s.k",
        f"SELECT s.k, COUNT(DISTINCT s.i) FILTER (WHERE t.q) AS c {_JOIN} GROUP BY s.k",
        f"SELECT s.k, COUNT(DISTINCT 100 / s.i) AS c {_JOIN} GROUP BY s.k",
        f"SELECT s.k, SUM(100 / s.i) AS c {_JOIN} GROUP BY s.k",
        f"SELECT s.k, COUNT(*) FILTER (WHERE s.i < t.i) AS c {_JOIN} GROUP BY s.k",
        f"SELECT s.k, COUNT(*) FILTER (WHERE 1 / s.i > 1) AS c {_JOIN} GROUP BY s.k",
        f"SELECT s.k, SUM(s.w) AS c {_JOIN} GROUP BY s.k",
        f"SELECT s.k, AVG(s.z) AS c {_JOIN} GROUP BY s.k",
        f"SELECT s.k, FIRST_VALUE(s.i ORDER BY t.id) AS c {_JOIN} GROUP BY s.k",
        f"SELECT s.k, FIRST_VALUE(1 ORDER BY 2) AS c {_JOIN} GROUP BY s.k",
        f"SELECT s.k, COUNT(s.p) AS c {_JOIN} GROUP BY s.k",
        f"SELECT s.k, SUM(s.z * t.z) AS c {_JOIN} GROUP BY s.k",
        "SELECT s.g, MAX(s.g + t.g) AS c FROM s JOIN t ON s.g = t.g GROUP BY s.g",
        "SELECT s.g, SUM(s.g + 1) AS c FROM s JOIN t ON s.g = t.g GROUP BY s.g",
        "SELECT s.k, COUNT(coalesce(t.i, 1)) AS c FROM s LEFT JOIN t ON s.k = t.k GROUP BY s.k",
        "SELECT s.k, COUNT(DISTINCT coalesce(t.i, 1)) AS c FROM s LEFT JOIN t ON s.k = t.k GROUP BY s.k",
        "SELECT s.k, COUNT(*) FILTER (WHERE t.k IS NULL) AS c FROM s LEFT JOIN t ON s.k = t.k GROUP BY s.k",
        "SELECT x.k, SUM(x.e) AS c FROM (SELECT s.k, s.i - t.i AS e FROM s JOIN t ON s.k = t.k) x GROUP BY x.k",
    ),
    "too_many_streams_joined": (
        f"SELECT s.k, COUNT(*) AS c {_JOIN} JOIN u ON u.k = s.k GROUP BY s.k",
        f"SELECT s.k, u.i {_JOIN} JOIN u ON u.k = s.k",
    ),
    "stream_join_needs_watermark": (
        f"SELECT s.k, t.i {_JOIN}",
        "SELECT s.k, t.i FROM s LEFT JOIN t ON s.k = t.k",
        f"SELECT DISTINCT s.k, t.i {_JOIN}",
        f"SELECT s.k, t.i {_JOIN} AND s.ts = t.ts",
    ),
    "stream_join_not_last": (
        f"SELECT s.k, COUNT(*) AS c {_JOIN} JOIN n ON n.g = s.g GROUP BY s.k",
        f"SELECT x.k, COUNT(*) AS c FROM (SELECT DISTINCT s.k, t.i {_JOIN}) x GROUP BY x.k",
        f"SELECT x.k, COUNT(*) AS c FROM (SELECT s.k {_JOIN} UNION ALL SELECT k FROM u) x GROUP BY x.k",
    ),
    "unbounded_value": (
        "SELECT k, LISTAGG(k, ',') WITHIN GROUP (ORDER BY k) AS c FROM s GROUP BY k",
        "SELECT k, PERCENTILE(i, 0.9) AS c, COUNT(DISTINCT i) AS n FROM s GROUP BY k",
        "SELECT k, LISTAGG(DISTINCT k, ',') WITHIN GROUP (ORDER BY k) AS c FROM s GROUP BY k",
    ),
}


_WITHIN = "s.ts BETWEEN t.ts - INTERVAL '1' HOUR AND t.ts + INTERVAL '90' SECOND"
_NEAR = f"{_JOIN} AND {_WITHIN}"
_TUMBLE = "TUMBLE(s.ts, INTERVAL '1' HOUR)"
TIMED = (
    # Rows
    f"SELECT s.k, t.i {_NEAR}",
    f"SELECT s.k, t.i {_NEAR} AND s.i < t.i AND s.g > 0 WHERE s.i + t.i > 3",
    f"SELECT s.k, t.i FROM s LEFT JOIN t ON s.k = t.k AND {_WITHIN}",
    f"SELECT t.k, s.i FROM s RIGHT JOIN t ON s.k = t.k AND {_WITHIN} WHERE s.i IS NULL",
    f"SELECT s.k FROM s LEFT SEMI JOIN t ON s.k = t.k AND {_WITHIN}",
    f"SELECT s.k, t.i FROM s, t WHERE s.k = t.k AND {_WITHIN} AND s.i > t.i",
    "SELECT s.k, t.i FROM s, t, n WHERE s.k = t.k AND n.g = s.g AND s.ts > t.ts AND s.ts < INTERVAL '1' WEEK + t.ts",
    "SELECT s.k, t.i FROM s JOIN t ON s.ts = t.ts",
    "SELECT s.k, t.i FROM s LEFT JOIN t ON s.ts - INTERVAL '1' DAY = t.ts + INTERVAL '0.5' SECOND",
    f"SELECT s.k, t.i, n.name {_NEAR} LEFT JOIN n ON n.g = t.g",
    "SELECT x.k, s.i FROM (SELECT k, ts AS a FROM t WHERE i > 3 UNION ALL SELECT k, ts FROM s) x JOIN s ON s.k = x.k "
    "AND x.a <= s.ts AND s.ts <= x.a + INTERVAL '1' HOUR",
    "SELECT s.k, o.i FROM s JOIN s AS o ON s.k = o.k AND o.ts BETWEEN s.ts AND s.ts + INTERVAL '1' MINUTE",
    f"SELECT v.k FROM (SELECT s.k, t.i {_NEAR}) v WHERE v.i > 3",
    f"SELECT k FROM (SELECT s.k {_NEAR} UNION ALL SELECT k FROM u) v",
    f"SELECT DISTINCT s.k, t.i {_NEAR}",
    # Groups of them
    f"SELECT s.i, COUNT(*) AS c {_NEAR} GROUP BY s.i",
    f"SELECT SUM(s.i + t.i) AS c {_NEAR}",
    f"SELECT s.k, COUNT(DISTINCT s.i, t.i) AS c, MAX(s.ts) AS m {_NEAR} GROUP BY s.k HAVING COUNT(*) > 3",
    f"SELECT s.g, t.g AS h, STDDEV_POP(s.d) AS c {_NEAR} GROUP BY ROLLUP (s.g, t.g)",
    f"SELECT k, COUNT(*) AS c FROM (SELECT DISTINCT s.k, t.i {_NEAR}) v GROUP BY k",
    f"SELECT n.name, COUNT(*) AS c {_NEAR} JOIN n ON n.g = t.i GROUP BY n.name",
    # Windows of them
    f"SELECT s.k, COUNT(*) AS c {_NEAR} GROUP BY s.k, {_TUMBLE}",
    f"SELECT COUNT(DISTINCT t.i) AS c, COUNT(*) AS n FROM s LEFT JOIN t ON s.k = t.k AND {_WITHIN} "
    "GROUP BY HOP(t.ts, INTERVAL '1' MINUTE, INTERVAL '3' MINUTE) HAVING COUNT(*) < 9",
    f"SELECT e, c FROM (SELECT TUMBLE_END(s.ts, INTERVAL '1' HOUR) AS e, COUNT(*) AS c FROM s LEFT SEMI JOIN t "
    f"ON s.k = t.k AND {_WITHIN} GROUP BY {_TUMBLE}) v WHERE c > 3",
    f"SELECT COUNT(*) AS c FROM (SELECT DISTINCT s.k, t.ts AS x {_NEAR}) v GROUP BY TUMBLE(x, INTERVAL '1' HOUR)",
)

REFUSED_TIMED = {
    "stream_join_needs_watermark": (
        "SELECT s.k, u.i FROM s JOIN u ON s.k = u.k AND s.ts = u.ts",
        "SELECT s.k, v.i FROM s JOIN (SELECT k, i, ts FROM t UNION ALL SELECT k, i, ts FROM u) v ON s.k = v.k "
        "AND s.ts = v.ts",
    ),
    "stream_join_not_bounded": (
        f"SELECT s.k, t.i {_JOIN}",
        f"SELECT s.k, t.i {_JOIN} AND s.ts > t.ts",
        f"SELECT s.k, t.i {_JOIN} AND s.ts <= t.ts + INTERVAL '1' HOUR",
        f"SELECT s.k, t.i {_JOIN} AND (s.ts = t.ts OR s.i = t.i)",
        f"SELECT s.k, t.i {_JOIN} AND s.ts BETWEEN t.ts AND t.ts + INTERVAL '1' MONTH",
        f"SELECT s.k, t.i {_JOIN} AND s.da = t.da",
        f"SELECT s.k, t.i {_JOIN} AND s.ts BETWEEN TIMESTAMP '2026-01-01' AND TIMESTAMP '2026-02-01'",
        f"SELECT s.k, t.i FROM s LEFT JOIN t ON s.k = t.k WHERE {_WITHIN}",
        "SELECT s.k, v.i FROM s JOIN (SELECT k, i, ts + INTERVAL '1' DAY AS x FROM t) v ON s.k = v.k AND s.ts = v.x",
        f"SELECT k FROM (SELECT s.k, s.ts AS a, t.ts AS b {_JOIN}) v WHERE a = b",
        "SELECT v.b, t.i FROM (SELECT TUMBLE_START(ts, INTERVAL '1' HOUR) AS b, COUNT(*) AS c FROM s "
        f"GROUP BY {_TUMBLE}) v JOIN t ON v.b = t.ts",
    ),
    "stream_join_not_first": (
        "SELECT v.k, t.i FROM (SELECT DISTINCT k, ts FROM s) v JOIN t ON v.k = t.k AND v.ts = t.ts",
        "SELECT v.g, COUNT(*) AS c FROM t JOIN (SELECT k, g, ts FROM s UNION SELECT k, g, ts FROM s) v ON v.k = t.k "
        "AND v.ts = t.ts GROUP BY v.g",
    ),
    "outer_stream_join_updated": (
        f"SELECT s.i, COUNT(*) AS c FROM s LEFT JOIN t ON s.k = t.k AND {_WITHIN} GROUP BY s.i",
        f"SELECT s.k, COUNT(t.i) AS c FROM s LEFT JOIN t ON s.k = t.k AND {_WITHIN} GROUP BY s.k",
        f"SELECT t.i, COUNT(*) AS c FROM s RIGHT JOIN t ON s.k = t.k AND {_WITHIN} GROUP BY t.i",
        f"SELECT s.i, COUNT(*) AS c FROM s LEFT SEMI JOIN t ON s.k = t.k AND {_WITHIN} GROUP BY s.i",
    ),
    "full_outer_stream_join": (f"SELECT s.k, t.i FROM s FULL JOIN t ON s.k = t.k AND {_WITHIN}",),
    "stream_anti_join": (f"SELECT s.k FROM s LEFT ANTI JOIN t ON s.k = t.k AND {_WITHIN}",),
    "stream_join_no_equality": (f"SELECT s.k, t.i FROM s CROSS JOIN t WHERE {_WITHIN}",),
    "too_many_streams_joined": (f"SELECT s.k, u.i {_NEAR} JOIN u ON u.k = s.k",),
    "join_group_not_key": (f"SELECT s.g, COUNT(*) AS c {_JOIN} GROUP BY s.g",),
    "unbounded_order": (f"SELECT s.k, t.i {_NEAR} LIMIT 3",),
    "unbounded_value": (f"SELECT s.i, PERCENTILE(t.i, 0.5) AS c {_NEAR} GROUP BY s.i",),
    "outer_side_static": (f"SELECT n.name, t.i {_NEAR} RIGHT JOIN n ON n.g = t.g",),
}


def is_planned(sql: str, output: OutputMode | None = None, *, timed: bool = False) -> bool:
    try:
        planned(sql, output, timed=timed)
    except StreamPlanError:
        return False
    return True


@pytest.mark.parametrize("sql", ACCEPTED)
def test_what_is_accepted_can_be_planned(sql: str) -> None:
    compile_job(job(sql=sql), SCHEMAS)
    assert is_planned(sql)


@pytest.mark.parametrize(("sql", "code"), [(sql, code) for code, texts in REFUSED.items() for sql in texts])
def test_what_is_refused_cannot_be_planned(sql: str, code: str) -> None:
    with pytest.raises(SpecError) as caught:
        compile_job(job(sql=sql), SCHEMAS)
    assert code in {issue.code for issue in caught.value.issues}
    assert {issue.pointer for issue in caught.value.issues} == {"/sql"}
    assert all(issue.column or "LIMIT" in issue.detail for issue in caught.value.issues)
    assert not is_planned(sql)


@pytest.mark.parametrize("sql", TIMED)
def test_joins_within_bounds_of_time_can_be_planned(sql: str) -> None:
    compile_job(job(sql=sql, timed=True), SCHEMAS)
    assert is_planned(sql, timed=True)


@pytest.mark.parametrize(("sql", "code"), [(sql, code) for code, texts in REFUSED_TIMED.items() for sql in texts])
def test_joins_without_cannot(sql: str, code: str) -> None:
    with pytest.raises(SpecError) as caught:
        compile_job(job(sql=sql, timed=True), SCHEMAS)
    assert code in {issue.code for issue in caught.value.issues}
    assert {issue.pointer for issue in caught.value.issues} == {"/sql"}
    assert not is_planned(sql, timed=True)


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT s.k, t.i {_JOIN} AND s.ts BETWEEN t.ts + INTERVAL '2' HOUR AND t.ts + INTERVAL '1' HOUR",
        f"SELECT s.k, t.i {_JOIN} WHERE s.ts > t.ts AND t.ts > s.ts + INTERVAL '1' SECOND",
        f"SELECT s.k, t.i {_JOIN.replace('JOIN', 'LEFT JOIN')} AND s.ts = t.ts AND s.ts = t.ts - INTERVAL '1' DAY",
        f"SELECT s.k, COUNT(*) AS c {_JOIN} AND s.ts BETWEEN t.ts AND t.ts - INTERVAL '1' DAY GROUP BY s.k",
    ],
)
def test_joins_that_are_always_empty_are_refused_though_they_could_run(sql: str) -> None:
    with pytest.raises(SpecError) as caught:
        compile_job(job(sql=sql, timed=True), SCHEMAS)
    assert "stream_join_always_empty" in {issue.code for issue in caught.value.issues}
    assert {issue.pointer for issue in caught.value.issues} == {"/sql"}
    # A job that was taken before runs on.
    assert taken(sql, timed=True).joins[0].within is not None


@pytest.mark.parametrize("kind", ["INNER", "LEFT", "RIGHT", "LEFT SEMI"])
def test_windows_of_joined_rows_change_where_the_join_is_an_inner_one(kind: str) -> None:
    sql = f"SELECT COUNT(*) AS c FROM s {kind} JOIN t ON s.k = t.k AND {_WITHIN} GROUP BY {_TUMBLE}"
    compile_job(job(sql=sql, timed=True), SCHEMAS)
    assert is_planned(sql, timed=True)
    update = job(sql=sql, timed=True, output="update")
    assert is_planned(sql, OutputMode.UPDATE, timed=True) is (kind == "INNER")
    if kind == "INNER":
        compile_job(update, SCHEMAS)
        return
    with pytest.raises(SpecError) as caught:
        compile_job(update, SCHEMAS)
    assert [issue.code for issue in caught.value.issues] == ["outer_stream_join_updated"]


@pytest.mark.parametrize("sql", [sql for texts in REFUSED.values() for sql in texts])
def test_what_streams_cannot_run_is_a_batch_job(sql: str) -> None:
    tables = {name: {"format": "parquet", "path": name} for name in SCHEMAS}
    compile_job(JobSpec.model_validate({"tables": tables, "sql": sql}), SCHEMAS)
