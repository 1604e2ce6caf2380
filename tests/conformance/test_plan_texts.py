"""Tests that the SQL text of a plan has the plan's rows and, where possible, Spark's same optimized plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from pyspark.sql import DataFrame, SparkSession

from service.contract.options import JoinLocal, JoinShip
from service.contract.query import AggregateFunction, JoinKind, NullsOrder, SortDirection
from service.sql.ddl import parse_schema
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, BOOLEAN, INT, STRING, TINYINT, Field, TypeName
from tests.conformance.conftest import FACTS, SEED, assert_same_rows, facts
from tests.conformance.test_rules import KNOWN, cases
from tests.golden.test_golden import CASES, planned, read
from tests.support.counts import count
from tests.support.plan_parts import COUNT
from tests.support.scalars import scalar
from workers.engine.plan.nodes import (
    Aggregate,
    Call,
    Exchange,
    Expand,
    Filter,
    Join,
    JoinStrategy,
    Limit,
    MultisetOperation,
    Named,
    Node,
    Project,
    Scan,
    Sort,
    SortItem,
    Union,
    Values,
    WindowFunctions,
)
from workers.engine.plan.sql import sql_of
from workers.engine.plan.traversal import walk_up
from workers.engine.spark.lowering import lower

pytestmark = pytest.mark.spark

ROWS = 60


LEFT = Scan("left", "l", ((Field("l.k", BIGINT), "k"), (Field("l.v", STRING), "v")))
RIGHT = Scan("right", "r", ((Field("r.k", BIGINT), "k"), (Field("r.v", STRING), "v")))
ON = ((column("l.k", BIGINT), column("r.k", BIGINT)),)
LESS = scalar("`l.v` <= `r.v`", BOOLEAN)
PARITY = scalar("`l.k` % 2", BIGINT)


def logical_plan(frame: DataFrame) -> str:
    """Returns Spark's optimized plan."""
    return str(frame._jdf.queryExecution().optimizedPlan().canonicalized().toString())


class Texts:
    """Runs plans, and their texts over views of the same tables."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._views: set[str] = set()

    def register(self, tables: Mapping[str, DataFrame]) -> None:
        """Registers a view for each table."""
        for name, frame in tables.items():
            frame.createOrReplaceTempView(name)
            self._views.add(name)

    def forget(self) -> None:
        """Drops the views."""
        for name in self._views:
            self._spark.catalog.dropTempView(name)

    def check(self, plan: Node, tables: Mapping[str, DataFrame]) -> bool:
        """Checks that the text of `plan` has its columns and rows. Returns whether Spark's optimized plans are
        equal.
        """
        scans = {
            scan.alias: tables[scan.table].toDF(*[f"{scan.alias}.{name}" for name in tables[scan.table].columns])
            for scan in walk_up(plan)
            if isinstance(scan, Scan)
        }
        own, text = lower(plan, scans), self._spark.sql(sql_of(plan))
        assert [(field.name, field.dataType) for field in text.schema] == [
            (field.name, field.dataType) for field in own.schema
        ]
        if logical_plan(text) == logical_plan(own):
            return True
        assert_same_rows(own.collect(), text.collect())
        return False


@pytest.fixture(scope="module")
def texts(spark: SparkSession) -> Iterator[Texts]:
    made = Texts(spark)
    yield made
    made.forget()


@pytest.fixture(scope="module")
def tables(spark: SparkSession, texts: Texts) -> dict[str, DataFrame]:
    ddl = ", ".join(f"{field.name} {field.type}" for field in FACTS.fields)
    found = {
        "mixed": spark.createDataFrame(facts(60, 0.0, SEED), ddl),
        "hot": spark.createDataFrame(facts(60, 0.9, SEED + 1), ddl),
        "empty": spark.createDataFrame([], ddl),
        "names": spark.createDataFrame(
            [(None, "nobody", 0.0), (1, "one", -0.0), (2, "", None)], "g INT, name STRING, d DOUBLE"
        ),
        "left": spark.range(20).selectExpr("IF(id > 17, NULL, id % 5) AS k", "concat('v', id % 3) AS v"),
        "right": spark.range(20).selectExpr("IF(id > 16, NULL, id % 7) AS k", "concat('v', id % 4) AS v"),
    }
    texts.register(found)
    return found


@settings(max_examples=count(sample=6, full=12))
@given(case=cases)
def test_text_of_random_queries(
    oracle: Any, texts: Texts, tables: dict[str, DataFrame], case: tuple[Any, Any, str]
) -> None:
    query, chosen, known = case
    texts.check(oracle.plan(query, chosen, KNOWN[known]).after, tables)


@pytest.mark.parametrize("kind", JoinKind)
def test_joins(texts: Texts, tables: dict[str, DataFrame], kind: JoinKind) -> None:
    for null_safe, residual in ((False, None), (True, None), (False, LESS), (True, LESS)):
        texts.check(Join(LEFT, RIGHT, kind, ON, residual, null_safe), tables)
    texts.check(Join(LEFT, RIGHT, JoinKind.CROSS, ()), tables)


@pytest.mark.parametrize(
    "strategy",
    [
        JoinStrategy(JoinShip.BROADCAST_LEFT),
        JoinStrategy(JoinShip.BROADCAST_RIGHT),
        JoinStrategy(JoinShip.REPARTITION, JoinLocal.HASH_LEFT),
        JoinStrategy(JoinShip.REPARTITION, JoinLocal.HASH_RIGHT),
        JoinStrategy(JoinShip.REPARTITION),
    ],
)
def test_text_has_the_hints_of_its_plan(texts: Texts, tables: dict[str, DataFrame], strategy: JoinStrategy) -> None:
    join = Join(LEFT, RIGHT, JoinKind.INNER, ON, strategy=strategy)
    assert texts.check(join, tables)
    assert texts.check(Aggregate(join, (Named(column("l.v", STRING), "v"),), (COUNT,)), tables)


@pytest.mark.parametrize(
    "node",
    [
        Union((LEFT, Filter(LEFT, scalar("`l.k` > 2", BOOLEAN)), LEFT)),
        Limit(Sort(Union((LEFT, LEFT)), (SortItem(column("l.k", BIGINT), SortDirection.DESC, NullsOrder.LAST),)), 9),
        MultisetOperation(Union((LEFT, LEFT)), LEFT, "except_all"),
        Values((Field("v.x", BIGINT),), ((scalar("1L", BIGINT),), (scalar("CAST(NULL AS BIGINT)", BIGINT),))),
        Limit(Sort(LEFT, (SortItem(column("l.k", BIGINT), SortDirection.DESC, NullsOrder.LAST),)), 3, 2),
        Exchange(LEFT, (PARITY,)),
        Exchange(LEFT, (PARITY,), 3),
        Exchange(LEFT, (column("l.k", BIGINT),), 3),
        Exchange(LEFT, ()),
        Exchange(LEFT, (), 3),
        Expand(Exchange(LEFT, (PARITY,)), 3, "$branch"),
        Filter(
            WindowFunctions(
                LEFT,
                (
                    Named(scalar("count(*) OVER (PARTITION BY `l.v`)", BIGINT), "n"),
                    Named(scalar("lag(`l.v`, 2, 'x') OVER (ORDER BY `l.k` DESC)", STRING), "before"),
                    Named(scalar("sum(`l.k`) OVER (ORDER BY `l.k` RANGE 2 PRECEDING)", BIGINT), "s"),
                ),
            ),
            scalar("`n` > 1", BOOLEAN),
        ),
        Aggregate(LEFT, (Named(scalar("1", INT), "one"),), (COUNT,)),
        Aggregate(LEFT, (Named(scalar("-1", INT), "one"), Named(column("l.v", STRING), "v")), ()),
        Aggregate(
            LEFT,
            (Named(column("l.k", BIGINT), "k"), Named(column("l.v", STRING), "v"), Named(scalar("1", INT), "one")),
            (
                COUNT,
                Call(AggregateFunction.SUM, (column("l.k", BIGINT),), Field("s", BIGINT)),
                Call(AggregateFunction.GROUPING, (column("l.v", STRING),), Field("g", TINYINT)),
                Call(AggregateFunction.GROUPING_ID, (), Field("i", BIGINT)),
            ),
            grouping_sets=((2, 1), (0,), (0, 1), ()),
        ),
        Aggregate(LEFT, (Named(PARITY, "k"),), (), grouping_sets=((0,), ())),
        Project(
            Sort(LEFT, (SortItem(column("l.v", STRING), SortDirection.ASC, NullsOrder.FIRST),)),
            (Named(PARITY, "l.v"), Named(column("l.v", STRING), "v")),
        ),
        Project(Aggregate(Scan("left", "l", ()), (), (COUNT,)), (Named(column("n", BIGINT), "a.b"),)),
    ],
    ids=lambda node: type(node).__name__,
)
def test_other_operators(texts: Texts, tables: dict[str, DataFrame], node: Node) -> None:
    texts.check(node, tables)


@pytest.mark.slow
def test_texts_of_golden_plans(spark: SparkSession, texts: Texts) -> None:
    alike = []
    for path in CASES:
        given_, _ = read(path)
        tables = {name: spark.range(ROWS).selectExpr(*_values(table.columns)) for name, table in given_.tables.items()}
        texts.register(tables)
        plan = planned(given_)
        if plan.after != plan.before:
            alike.append(texts.check(plan.after, tables))
    assert sum(alike) > len(alike) / 2


def _values(ddl: str) -> list[str]:
    """Returns SQL expressions for the columns of row `id`, some NULL, which is faster than rows from Python."""
    made = {
        TypeName.STRING: "concat('v', id % 7)",
        TypeName.DATE: "date_add(DATE'2013-01-01', CAST(id % 5 AS INT))",
        TypeName.TIMESTAMP: "timestamp_seconds(id % 5)",
    }
    return [
        f"IF(id % {5 + place} = 0, NULL, CAST({made.get(field.type.name, 'id % 7')} AS {field.type})) AS `{field.name}`"
        for place, field in enumerate(parse_schema(ddl, "/").fields)
    ]
