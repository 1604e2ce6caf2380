"""The plan of a query over streams: its shape, its output, and queries that a stream cannot run.

What is refused is held together with what submission refuses in tests/sql/cases/streams.
"""

from __future__ import annotations

import pytest

from service.contract.query import JoinKind
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT
from tests.support.joined import call, col, scan
from tests.support.stream_queries import built, planned
from workers.engine.plan.explain import text_of
from workers.engine.plan.nodes import Aggregate, Deduplicate, Join, Named, Project
from workers.engine.streaming.stream_plan import Shape, StreamPlanError, groups_rows, is_streaming, stream_plan


@pytest.mark.parametrize(
    ("sql", "shape", "text"),
    [
        (
            "SELECT k, i + 1 AS j FROM s WHERE q",
            Shape.ROWS,
            """\
Project s.k AS k, s.i + 1 AS j
  Filter s.q
    Scan s AS s [s.k, s.i, s.q]""",
        ),
        (
            "SELECT DISTINCT d, k FROM s",
            Shape.DISTINCT_ROWS,
            """\
Project d, k
  Deduplicate
    Project if(s.d = 0, CAST(0 AS DOUBLE), nanvl(s.d, CAST('NaN' AS DOUBLE))) AS d, s.k AS k
      Scan s AS s [s.k, s.d]""",
        ),
        (
            "SELECT k, COUNT(*) AS n FROM s GROUP BY k HAVING COUNT(*) > 3",
            Shape.PLAIN,
            """\
Project k, n
  Filter n > 3
    Aggregate BY s.k AS k [COUNT(*) AS n]
      Scan s AS s [s.k]""",
        ),
        (
            "SELECT k, COUNT(DISTINCT i) AS c FROM s GROUP BY k",
            Shape.DISTINCT,
            """\
Project k, c
  Aggregate BY k [COUNT($u1) AS c]
    Project $u0 AS k, $u1
      Deduplicate
        Project s.k AS $u0, s.i AS $u1
          Scan s AS s [s.k, s.i]""",
        ),
        (
            "SELECT k, COUNT(DISTINCT i) AS c, SUM(b) AS x FROM s GROUP BY k",
            Shape.UNITED,
            """\
Project k, c, x
  Aggregate BY k [COUNT($u1) AS c, SUM($u2) AS x]
    Union 2 inputs
      Project $u0 AS k, $u1, CAST(NULL AS BIGINT) AS $u2
        Deduplicate
          Project s.k AS $u0, s.i AS $u1
            Scan s AS s [s.k, s.i, s.b]
      Project s.k AS k, CAST(NULL AS INT) AS $u1, s.b AS $u2
        Scan s AS s [s.k, s.i, s.b]""",
        ),
        (
            "SELECT s.k, COUNT(*) AS n FROM s LEFT SEMI JOIN t ON s.k = t.k GROUP BY s.k",
            Shape.JOINED,
            """\
Project k, n
  Project k, coalesce($f0, 0L) AS n
    Project k, $l0, $l0 AS $f0
      Project $k0 AS k, $l0
        Filter $l0 > 0L AND $nr > 0L
          Aggregate BY $k0 [COUNT($u0) AS $l0, COUNT($u1) AS $nr]
            Union 2 inputs
              Project s.k AS $k0, 1 AS $u0, CAST(NULL AS INT) AS $u1
                Filter s.k IS NOT NULL
                  Scan s AS s [s.k]
              Project t.k AS $k0, CAST(NULL AS INT) AS $u0, 1 AS $u1
                Filter t.k IS NOT NULL
                  Scan t AS t [t.k]""",
        ),
    ],
)
def test_a_query_of_each_shape(sql: str, shape: Shape, text: str) -> None:
    plan = planned(sql)
    assert (plan.shape, text_of(plan.node)) == (shape, text)
    assert plan.before == built(sql)[0]


@pytest.mark.parametrize(
    ("sql", "keys", "emitted", "shown"),
    [
        ("SELECT i, k FROM s", None, "i k", "i k"),
        ("SELECT DISTINCT k FROM s", None, "k", "k"),
        ("SELECT COUNT(*) AS n FROM s", "", "n", "n"),
        ("SELECT COUNT(*) AS n, k AS who FROM s GROUP BY k", "who", "n who", "n who"),
        ("SELECT k, k AS again, COUNT(*) AS n FROM s GROUP BY k", "k", "k again n", "k again n"),
        ("SELECT COUNT(*) AS n, g FROM s GROUP BY k, g", "$key0 g", "n g $key0", "n g"),
        ("SELECT upper(k) AS u, COUNT(*) AS n FROM s GROUP BY k", "$key0", "u n $key0", "u n"),
        ("SELECT COUNT(*) AS `$KEY0` FROM s GROUP BY k", "$key0_", "$KEY0 $key0_", "$KEY0"),
        ("SELECT k, COUNT(*) AS n FROM s GROUP BY ROLLUP (k)", "k $key1", "k n $key1", "k n"),
        ("SELECT k FROM s GROUP BY CUBE (k)", "k $key1", "k $key1", "k"),
    ],
)
def test_columns_that_identify_groups_are_emitted(sql: str, keys: str | None, emitted: str, shown: str) -> None:
    plan = planned(sql)
    assert plan.keys == (None if keys is None else tuple(keys.split()))
    assert [field.name for field in plan.columns] == emitted.split()
    assert [field.name for field in plan.output] == shown.split()


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT name FROM n", "reads no stream"),
        ("SELECT k FROM s LIMIT 3", "ORDER BY and LIMIT need the complete result"),
        (
            "SELECT k, COUNT(*) AS n FROM (SELECT k FROM s ORDER BY i) v GROUP BY k",
            "LIMIT need the complete",
        ),
        ("SELECT n + 1 AS m FROM (SELECT COUNT(*) AS n FROM s) v", "cannot read the result of an aggregate as rows"),
        ("SELECT name AS x FROM n UNION ALL SELECT k FROM s", "UNION ALL of a stream and a static table"),
        ("SELECT n.name FROM n LEFT JOIN s ON s.g = n.g", "keeps rows of a static table"),
        ("SELECT s.k FROM s JOIN t ON s.k = t.k", "would be kept for ever"),
        ("SELECT s.k, COUNT(*) AS c FROM s JOIN t ON s.k = t.k JOIN n ON n.g = s.g GROUP BY s.k", "not directly below"),
        ("SELECT s.g, COUNT(*) AS c FROM s JOIN t ON s.k = t.k GROUP BY s.g", "grouped by s.g"),
        ("SELECT s.k, COUNT(s.p) AS c FROM s JOIN t ON s.k = t.k GROUP BY s.k", "cannot be computed in one state"),
        ("SELECT k, COUNT(DISTINCT i) AS c, COUNT(p) AS n FROM s GROUP BY k", "cannot be computed in one state"),
        ("SELECT k, COUNT(DISTINCT a) AS c FROM s GROUP BY k", "s.a contains nested FLOAT or DOUBLE"),
        ("SELECT k, COUNT(DISTINCT i) AS c FROM s GROUP BY ROLLUP (k)", "several grouping sets"),
        ("SELECT k, PERCENTILE(i, 0.5) AS c FROM s GROUP BY k", "keeps every value of its group"),
        ("SELECT k FROM s GROUP BY k HAVING AVG(i) > 3", "HAVING .* > 3 may become false again"),
    ],
)
def test_queries_that_no_stream_can_run(sql: str, words: str) -> None:
    with pytest.raises(StreamPlanError, match=words) as caught:
        planned(sql)
    assert caught.value.code == "not_for_streams"


def test_a_plan_begins_with_its_select() -> None:
    with pytest.raises(StreamPlanError, match="top node of a query must be its SELECT"):
        stream_plan(scan("s"), frozenset("s"))


def test_a_node_is_streaming_if_any_scan_is() -> None:
    join = Join(scan("l"), scan("r"), JoinKind.INNER, ((col("l.k"), col("r.k")),))
    assert is_streaming(join, frozenset("r"))
    assert not is_streaming(join, frozenset({"s"}))


def test_groups_without_a_call_are_distinct_rows() -> None:
    keys = (Named(col("l.k"), "k"),)
    assert not groups_rows(Aggregate(scan("l"), keys, ()))
    assert groups_rows(Aggregate(scan("l"), keys, (call("COUNT"),)))
    assert groups_rows(Aggregate(scan("l"), (), ()))
    assert groups_rows(Aggregate(scan("l"), keys, (), grouping_sets=((0,), ())))
    kept = Project(Aggregate(scan("l"), keys, ()), (Named(column("k", BIGINT), "k"),))
    plan = stream_plan(kept, frozenset("l"))
    assert plan.node == Project(Deduplicate(Project(scan("l"), keys)), kept.items)
