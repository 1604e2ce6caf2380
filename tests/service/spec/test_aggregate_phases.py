"""Phases that are demanded of a query where no aggregate can run in them are refused."""

from __future__ import annotations

import pytest

from service.spec.errors import SpecError
from tests.support.compiled import compiled

COLUMNS = {"t": "k INT, v BIGINT", "u": "k INT, name STRING"}
NO_AGGREGATE = "the query has no aggregate"
SETS = "several grouping sets"


@pytest.mark.parametrize(
    ("sql", "phase", "words"),
    [
        *(("SELECT v FROM t", phase, NO_AGGREGATE) for phase in ("ONE_PHASE", "TWO_PHASE")),
        ("SELECT v, name FROM t JOIN u ON t.k = u.k ORDER BY v LIMIT 3", "TWO_PHASE", NO_AGGREGATE),
        ("SELECT v FROM t UNION ALL SELECT k FROM u", "ONE_PHASE", NO_AGGREGATE),
        *(("SELECT k, COUNT(*) FROM t GROUP BY ROLLUP (k)", phase, SETS) for phase in ("ONE_PHASE", "TWO_PHASE")),
        ("SELECT COUNT(*), SUM(v) FROM t", "ONE_PHASE", "without group keys"),
        ("SELECT MAX(DISTINCT v) FROM (SELECT v FROM t WHERE k > 0) a", "ONE_PHASE", "without group keys"),
    ],
)
def test_what_no_aggregate_can_follow_is_an_error(sql: str, phase: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        compiled(COLUMNS, sql, settings={"table.optimizer.agg-phase-strategy": phase})
    (issue,) = caught.value.issues
    assert (issue.code, issue.pointer, issue.line) == ("unsupported_agg_phase", "/settings/agg_phase", None)
    assert issue.detail.startswith(f"agg_phase {phase} cannot be had: ")
    assert words in issue.detail
    assert issue.detail.endswith("Leave the setting out, or set it to AUTO.")
    for free in ("AUTO", "NONE"):
        compiled(COLUMNS, sql, settings={"table.optimizer.agg-phase-strategy": free})


@pytest.mark.parametrize("phase", ["ONE_PHASE", "TWO_PHASE"])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT k, COUNT(*) FROM t GROUP BY k",
        "SELECT DISTINCT k FROM t",
        "SELECT k FROM t UNION SELECT k FROM u",
        "SELECT k FROM t GROUP BY k UNION ALL SELECT k FROM u",
        "SELECT a.k FROM (SELECT k, COUNT(*) AS n FROM t GROUP BY k) a JOIN u ON a.k = u.k",
        "SELECT k, SUM(n) FROM (SELECT k, v, COUNT(*) AS n FROM t GROUP BY k, v) a GROUP BY ROLLUP (k)",
        "SELECT COUNT(DISTINCT v) FROM t",
        "SELECT COUNT(*), SUM(v) FROM t JOIN u ON t.k = u.k",
    ],
)
def test_what_one_may_follow_is_taken(sql: str, phase: str) -> None:
    compiled(COLUMNS, sql, settings={"table.optimizer.agg-phase-strategy": phase})


def test_one_row_is_aggregated_in_two_phases() -> None:
    compiled(COLUMNS, "SELECT COUNT(*), SUM(v) FROM t", settings={"table.optimizer.agg-phase-strategy": "TWO_PHASE"})
