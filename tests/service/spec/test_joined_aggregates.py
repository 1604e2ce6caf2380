"""Aggregation below joins that is demanded of a query where no aggregate can follow is refused."""

from __future__ import annotations

import pytest

from service.spec.errors import SpecError
from tests.support.compiled import compiled

COLUMNS = {"t": "k INT, v BIGINT", "u": "k INT, name STRING"}


JOINED = "t JOIN u ON t.k = u.k"


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT v FROM t", "no aggregate of the query stands over a join"),
        ("SELECT COUNT(*) FROM t", "no aggregate of the query stands over a join"),
        (f"SELECT v FROM {JOINED}", "no aggregate of the query stands over a join"),
        ("SELECT v, n FROM (SELECT k, COUNT(*) AS n FROM u GROUP BY k) a JOIN t ON a.k = t.k", "no aggregate"),
        (f"SELECT COUNT(*) FROM (SELECT v FROM {JOINED} LIMIT 3) a", "no aggregate"),
        (f"SELECT COUNT(*) FROM (SELECT v FROM {JOINED} ORDER BY v) a", "no aggregate"),
        (f"SELECT COUNT(v) FROM (SELECT v FROM {JOINED} UNION ALL SELECT v FROM t) a", "no aggregate"),
        ("SELECT COUNT(*) FROM t FULL JOIN u ON t.k = u.k", "below the full join with u nothing is aggregated first"),
        ("SELECT COUNT(*) FROM t, u", "the join with u has no equality"),
        (f"SELECT t.k, COUNT(*) FROM {JOINED} GROUP BY ROLLUP (t.k)", "several grouping sets"),
    ],
)
def test_what_no_aggregate_can_follow_is_an_error(sql: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        compiled(COLUMNS, sql, settings={"eager_aggregation": True})
    (issue,) = caught.value.issues
    assert (issue.code, issue.pointer) == ("unsupported_eager_aggregation", "/settings/eager_aggregation")
    assert words in issue.detail
    compiled(COLUMNS, sql, settings={"eager_aggregation": False})


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT COUNT(*) FROM {JOINED}",
        f"SELECT DISTINCT name FROM {JOINED}",
        "SELECT COUNT(*) FROM t, u WHERE t.k = u.k",
        "SELECT COUNT(*) FROM t LEFT SEMI JOIN u ON t.k = u.k WHERE v > 1",
        f"SELECT COUNT(*) FROM (SELECT v + 1 AS w FROM {JOINED} WHERE v > 1) a WHERE w < 9",
        f"SELECT n FROM (SELECT COUNT(*) AS n FROM {JOINED}) a",
        f"SELECT COUNT(*) FROM t UNION ALL SELECT COUNT(*) FROM {JOINED}",
    ],
)
def test_what_one_may_follow_is_taken(sql: str) -> None:
    compiled(COLUMNS, sql, settings={"eager_aggregation": True})
