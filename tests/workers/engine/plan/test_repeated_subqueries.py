"""Which subqueries of a plan are uses of one, and what is said of them by the text of a physical plan."""

from __future__ import annotations

import pytest

from tests.support.compiled import compiled
from workers.engine.plan.builder import build
from workers.engine.plan.repeated_subqueries import repeated_subqueries
from workers.engine.report.reused_exchanges import use_of

TABLES = {"o": "k BIGINT, v BIGINT", "u": "k BIGINT, name STRING"}
SUMS = "WITH s AS (SELECT o.k, SUM(o.v) AS v, COUNT(*) AS n FROM o JOIN u ON o.k = u.k GROUP BY o.k) "


def found(sql: str) -> list[tuple[str, ...]]:
    return [one.names for one in repeated_subqueries(build(compiled(TABLES, sql)))]


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        (f"{SUMS} SELECT a.n, b.n AS m FROM s AS a JOIN s AS b ON a.k = b.k", [("a", "b")]),
        (f"{SUMS} SELECT s.v FROM s WHERE s.v > (SELECT AVG(t.v) FROM s AS t WHERE t.k = s.k)", [("s", "t")]),
        (f"{SUMS} SELECT a.n, b.n AS m, c.k FROM s a JOIN s b ON a.k = b.k JOIN s c ON a.n = c.n", [("a", "b", "c")]),
        (f"{SUMS} SELECT v FROM s WHERE n > 1", []),
        # Each use has only the columns that are needed above it, and Spark computes other columns in other exchanges.
        (f"{SUMS} SELECT a.v, b.n FROM s AS a JOIN s AS b ON a.k = b.k", []),
        ("WITH p AS (SELECT k FROM o) SELECT a.k FROM p AS a JOIN p AS b ON a.k = b.k", []),
        (
            "SELECT a.n FROM (SELECT k, COUNT(*) AS n FROM o GROUP BY k) AS a "
            "JOIN (SELECT k, COUNT(*) AS n FROM u GROUP BY k) AS b ON a.k = b.k",
            [],
        ),
        (
            "WITH s AS (SELECT k, COUNT(*) AS n FROM o WHERE v > 1 GROUP BY k), r AS (SELECT k, n FROM s WHERE n > 2) "
            "SELECT a.n, b.n AS m FROM r AS a JOIN r AS b ON a.k = b.k",
            [("a", "b")],
        ),
        (
            "WITH s AS (SELECT k, MAX(v) AS n FROM o GROUP BY k UNION ALL SELECT k, COUNT(*) AS n FROM u GROUP BY k) "
            "SELECT a.n, b.n AS m FROM s AS a JOIN s AS b ON a.k = b.k",
            [("a", "b")],
        ),
    ],
)
def test_uses_of_one_subquery(sql: str, names: list[tuple[str, ...]]) -> None:
    assert found(sql) == names


def test_a_use_whose_scans_are_not_in_the_plan_reuses_an_exchange() -> None:
    sql = f"{SUMS} SELECT a.n, b.n AS m, c.k FROM s a JOIN s b ON a.k = b.k JOIN s c ON a.n = c.n"
    (one,) = repeated_subqueries(build(compiled(TABLES, sql)))
    scans = [f"Project [k#1 AS {scan}.k#2]\n" for use in one.scans for scan in use]
    assert len(scans) == 6
    assert use_of(one, "LocalTableScan <empty>").endswith("there are no rows.")
    assert "computed once: its exchange is reused" in use_of(one, "".join(scans[:2]))
    assert "computed 2 times; the other uses reuse" in use_of(one, "".join(scans[:4]))
    assert use_of(one, "".join(scans[:5])).endswith("Exchanges of some of its tables are reused.")
    assert use_of(one, "".join(scans)).startswith("a, b and c are 3 uses of one subquery, which is computed each time,")
