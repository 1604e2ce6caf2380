"""Tests that the measured rows of a node are those that the node emits when it runs alone, or are missing.

The plans of every rule run as on a worker; then each node runs alone, without adaptive execution. For a scan, the rows
are those read, which can be fewer than the table has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from service.contract.job import JobSpec
from service.contract.reports import NodeFigures, OperatorReport
from service.sql.compile import compile_job
from tests.conformance.laboratory import interpreted, parquet, table_input
from workers.engine.plan.nodes import Node, Scan
from workers.engine.report.operator_matching import figures_of
from workers.engine.report.operator_tree import Numbered, numbered
from workers.engine.spark.corrupt_records import CorruptRecords
from workers.engine.spark.engine import Engine, PlannedQuery
from workers.engine.spark.lowering import lower
from workers.engine.spark.monitor import SparkMonitor
from workers.engine.spark.sources import ScanReads, TableInput

pytestmark = pytest.mark.spark

SHUFFLED = {"join.ship": "REPARTITION"}
JOINED = "SELECT a.w, SUM(b.z) AS s FROM a JOIN b ON a.k = b.k GROUP BY a.w"
DISTINCT = "SELECT a.w, COUNT(DISTINCT a.v) AS n FROM a GROUP BY a.w"
TWO_SETS = "SELECT a.w, COUNT(DISTINCT a.v) AS n, COUNT(DISTINCT a.k) AS m FROM a GROUP BY a.w"
COUNTED = "(SELECT a.k, COUNT(*) AS n FROM a GROUP BY a.k) q"

QUICK: list[tuple[str, dict[str, Any], set[str]]] = [
    # With the operators that must have a row count.
    (JOINED, {**SHUFFLED, "join.skew": "ISOLATE"}, {"Join", "Union", "Aggregate"}),
    (DISTINCT, {"distinct_split.enabled": "true"}, {"Aggregate"}),
    ("SELECT a.w, COUNT(*) AS n FROM a WHERE a.v > 100 GROUP BY a.w HAVING COUNT(*) > 414 ORDER BY n", {}, {"Filter"}),
    ("SELECT a.v FROM a JOIN b ON a.k = b.k ORDER BY a.v LIMIT 5", {}, {"Join", "Sort", "Limit"}),
    (
        "SELECT a.w, SUM(b.z) AS s FROM a JOIN b ON a.k = b.k WHERE a.v > (SELECT AVG(c.v) FROM a AS c) GROUP BY a.w",
        {},
        {"Aggregate"},
    ),
]
THOROUGH: list[tuple[str, dict[str, Any], set[str]]] = [
    ("SELECT a.w, COUNT(*) AS n FROM a GROUP BY a.w", {"agg_phase": "ONE_PHASE"}, {"Aggregate", "Exchange"}),
    ("SELECT COUNT(*) AS n, SUM(a.v) AS s FROM a WHERE a.v % 2 = 0", {}, {"Aggregate", "Filter"}),
    (DISTINCT, {"distinct_split.enabled": "true", "incremental_agg": "false"}, {"Aggregate"}),
    (DISTINCT, {"distinct_split.enabled": "true", "agg_phase": "ONE_PHASE"}, {"Aggregate", "Exchange"}),
    (DISTINCT, {"agg_phase": "ONE_PHASE"}, {"Aggregate", "Exchange"}),
    (DISTINCT, {"distinct_method": "bitmap"}, {"Aggregate"}),
    (TWO_SETS, {}, {"Aggregate"}),
    (TWO_SETS, {"distinct_split.enabled": "true"}, {"Aggregate", "Expand"}),
    (TWO_SETS, {"distinct_method": "branches"}, {"Join"}),
    (JOINED, {}, {"Join", "Aggregate"}),
    (JOINED, SHUFFLED, {"Join", "Aggregate"}),
    (JOINED, {"join.local": "HASH_RIGHT", "join.ship": "REPARTITION"}, {"Join", "Aggregate"}),
    (JOINED, {**SHUFFLED, "join.skew": "SALT"}, {"Join", "Union", "Aggregate"}),
    (JOINED, {**SHUFFLED, "eager_aggregation": "true"}, {"Join", "Aggregate"}),
    (JOINED.replace("JOIN", "LEFT JOIN"), {**SHUFFLED, "join.skew": "ISOLATE"}, {"Join", "Union", "Filter"}),
    (JOINED.replace("JOIN", "FULL JOIN"), SHUFFLED, {"Join", "Aggregate"}),
    ("SELECT a.v, b.z FROM a RIGHT JOIN b ON a.k = b.k WHERE b.z > 10", SHUFFLED, {"Filter"}),
    ("SELECT a.v FROM a LEFT SEMI JOIN b ON a.k = b.k", SHUFFLED, {"Join"}),
    ("SELECT a.v FROM a LEFT ANTI JOIN b ON a.k = b.k", SHUFFLED, {"Join"}),
    ("SELECT a.v, b.z, c.y FROM a JOIN b ON a.k = b.k JOIN c ON a.w = c.w", SHUFFLED, {"Join"}),
    ("SELECT a.v, b.z, c.y FROM a LEFT JOIN b ON a.k = b.k LEFT JOIN c ON a.w = c.w", SHUFFLED, {"Join"}),
    ("SELECT a.v, b.z, c.y FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.w", SHUFFLED, {"Join"}),
    ("SELECT x.w, COUNT(*) AS n FROM a x JOIN a y ON x.v = y.v GROUP BY x.w", SHUFFLED, {"Join", "Aggregate"}),
    ("SELECT a.v, b.z FROM a CROSS JOIN b WHERE a.v < 5 AND b.z < 9", {}, {"Filter"}),
    ("SELECT a.v FROM a WHERE a.v > 50 LIMIT 10", {}, {"Limit"}),
    ("SELECT a.v FROM a JOIN b ON a.k = b.k LIMIT 10", SHUFFLED, {"Limit"}),
    ("SELECT a.w, COUNT(*) AS n FROM a GROUP BY a.w LIMIT 3", {}, {"Limit"}),
    # Spark groups no rows here.
    ("SELECT DISTINCT a.w FROM a LIMIT 1", {}, set()),
    ("SELECT DISTINCT a.w FROM a ORDER BY a.w", {}, {"Sort", "Aggregate"}),
    ("SELECT a.w, a.k FROM a WHERE a.k IN (5, 6) UNION ALL SELECT c.w, c.y FROM c", {}, {"Union", "Filter"}),
    ("SELECT a.w FROM a UNION SELECT c.w FROM c", {}, {"Union"}),
    (f"SELECT q.n, COUNT(*) AS m FROM {COUNTED} GROUP BY q.n", {}, {"Aggregate"}),
    (f"SELECT q.k, q.n FROM {COUNTED} WHERE q.k > 10 AND q.n > 3", {}, {"Filter"}),
    (f"SELECT q.n, b.z FROM {COUNTED} JOIN b ON q.k = b.k", SHUFFLED, {"Join"}),
    (f"SELECT q.n, b.z FROM b LEFT JOIN {COUNTED} ON q.k = b.k", {}, {"Join"}),
    (f"SELECT q.n FROM {COUNTED} WHERE q.k = 7 OR (q.k = 7 AND q.n > 3)", {}, {"Filter"}),
    ("SELECT a.w, COUNT(*) AS n FROM a GROUP BY ROLLUP(a.w)", {}, {"Aggregate"}),
    ("SELECT a.w, COUNT(DISTINCT a.v) AS n FROM a GROUP BY CUBE(a.w)", {}, {"Aggregate"}),
    ("SELECT a.w, MAX(a.v) AS m FROM a WHERE 1 = 0 GROUP BY a.w", {}, set()),
    # Spark counts no rows of calls with OVER.
    ("SELECT a.w, SUM(b.z) OVER (PARTITION BY a.w ORDER BY a.v) AS s FROM a JOIN b ON a.k = b.k", SHUFFLED, {"Join"}),
    ("SELECT a.w, RANK() OVER (ORDER BY COUNT(*)) AS r FROM a GROUP BY a.w", {}, {"Aggregate"}),
    (f"SELECT r FROM (SELECT RANK() OVER (ORDER BY q.n) AS r, q.k FROM {COUNTED}) x WHERE r < 3", {}, {"Filter"}),
    ("SELECT COUNT(*) OVER (PARTITION BY a.w) AS n, RANK() OVER (ORDER BY a.k) AS r FROM a LIMIT 9", {}, {"Limit"}),
    ("SELECT a.w FROM a QUALIFY COUNT(*) OVER (PARTITION BY a.w) > 3 AND a.w > 2", {}, {"Filter"}),
]


@dataclass
class Ran:
    """A query that has run, with its metrics."""

    planned: PlannedQuery
    tables: dict[str, TableInput]
    report: OperatorReport

    def figures(self) -> dict[int, NodeFigures]:
        return {figures.id: figures for figures in self.report.nodes}

    def nodes(self) -> dict[int, Node]:
        return {each.id: each.node for each in _all(numbered(self.planned.plan))}


def _all(top: Numbered) -> Iterator[Numbered]:
    for each in top.inputs:
        yield from _all(each)
    yield top


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, TableInput]:
    """Tables with a hot key and NULL keys on both sides, in files with several row groups."""
    root = tmp_path_factory.mktemp("figures")
    key = "CASE WHEN id % 3 = 0 THEN 7 WHEN id % 50 = 1 THEN NULL ELSE id % 100 END"
    spark.range(3_000, numPartitions=3).selectExpr(f"{key} AS k", "id AS v", "id % 7 AS w").write.parquet(
        str(root / "a")
    )
    spark.range(400, numPartitions=2).selectExpr("NULLIF(id, 9) AS k", "id * 2 AS z").write.parquet(str(root / "b"))
    spark.range(70, numPartitions=1).selectExpr("NULLIF(id, 3) AS w", "id * 2 AS y").write.parquet(str(root / "c"))
    return {name: table_input(root, name, parquet(f"{name}/")) for name in "abc"}


def run(spark: SparkSession, tables: dict[str, TableInput], sql: str, settings: dict[str, Any], to: Path) -> Ran:
    used = {name: table for name, table in tables.items() if f" {name} " in f"{sql} "}
    job = {"tables": {name: {"format": "parquet", "path": f"{name}/"} for name in used}, "sql": sql}
    spec = JobSpec.model_validate({**job, "settings": settings})
    query = compile_job(spec, {name: table.schema for name, table in used.items()})
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "4")
    engine, tag, context = Engine(session, 2), f"figures of {to}", spark.sparkContext
    planned = engine.plan(query, used, spec.settings)
    context.addJobTag(tag)
    try:
        written = engine.execute(planned, to)
    finally:
        context.removeJobTag(tag)
    found = SparkMonitor(context).operators(tag, planned.frame)
    if written.is_collected:
        found = SparkMonitor.with_collected(found, written.rows, written.bytes)
    files = {name: [str(path) for path in table.files.files] for name, table in used.items()}
    return Ran(planned, used, figures_of(planned.plan, found.operators, files))


def counted(spark: SparkSession, ran: Ran) -> dict[int, int]:
    """Returns the rows of every node that runs alone, in one action."""

    def count(number: int, node: Node) -> DataFrame:
        rows = lower(node, ScanReads(spark, ran.tables, CorruptRecords()).frames(node))
        return rows.groupBy().agg(F.lit(number).alias("node"), F.count(F.lit(1)).alias("rows"))

    with interpreted(spark):
        counts = [count(number, node) for number, node in ran.nodes().items()]
        return {row["node"]: row["rows"] for row in reduce(DataFrame.union, counts).collect()}


def check(
    spark: SparkSession,
    tables: dict[str, TableInput],
    case: tuple[str, dict[str, Any], set[str]],
    to: Path,
) -> None:
    sql, settings, must_have_rows = case
    ran = run(spark, tables, sql, settings, to)
    assert ran.report.operators, "operators must have metrics even if nodes have none"
    figures, nodes, rows = ran.figures(), ran.nodes(), counted(spark, ran)
    measured = {number: found.rows for number, found in figures.items() if found.rows is not None}
    for number, found in measured.items():
        if isinstance(nodes[number], Scan):
            assert found <= rows[number]
        else:
            assert found == rows[number], (number, nodes[number])
    assert must_have_rows <= {type(nodes[number]).__name__ for number in measured}
    assert measured[max(nodes)] == rows[max(nodes)], "the result's rows are always known"


@pytest.mark.parametrize("case", QUICK, ids=lambda case: f"{case[0][:60]} {case[1]}")
def test_measured_rows_are_those_of_the_node_alone(
    spark: SparkSession, tables: dict[str, TableInput], tmp_path: Path, case: tuple[str, dict[str, Any], set[str]]
) -> None:
    check(spark, tables, case, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", THOROUGH, ids=lambda case: f"{case[0][:60]} {case[1]}")
def test_every_kind_of_plan_has_row_counts(
    spark: SparkSession, tables: dict[str, TableInput], tmp_path: Path, case: tuple[str, dict[str, Any], set[str]]
) -> None:
    check(spark, tables, case, tmp_path / "out")


def test_operators_have_node_stages_and_size(
    spark: SparkSession, tables: dict[str, TableInput], tmp_path: Path
) -> None:
    ran = run(spark, tables, JOINED, SHUFFLED, tmp_path / "out")
    nodes, figures = ran.nodes(), ran.figures()
    by_name: dict[str, list[Any]] = {}
    for operator in ran.report.operators:
        by_name.setdefault(operator.operator, []).append(operator)
    node_of = {type(node).__name__: number for number, node in nodes.items()}
    assert {each.node for each in by_name["SortMergeJoin"]} == {node_of["Join"]}
    assert {each.node for each in by_name["HashAggregate"]} == {node_of["Aggregate"]}
    # Three exchanges: two for the sides of the join, and one for the groups.
    assert sorted(each.node for each in by_name["Exchange"]) == sorted(
        [node_of["Join"], node_of["Join"], node_of["Aggregate"]]
    )
    assert all(each.bytes > 0 and each.rows > 0 for each in by_name["Exchange"])
    assert figures[node_of["Join"]].bytes == sum(
        each.bytes for each in by_name["Exchange"] if each.node == node_of["Join"]
    )
    scans = [each for each in by_name["Scan parquet"] if each.rows == 3_000]
    assert [len(each.stage_ids) for each in scans] == [1], "one stage of several tasks read the larger table"
    top = ran.report.operators[0]
    assert top.detail == "", "the path of the attempt must not be shown"
    assert str(tmp_path) not in top.model_dump_json()
    ids = {each.id for each in ran.report.operators}
    assert all(set(each.inputs) <= ids for each in ran.report.operators)
