"""Tests of all kinds of joins with all supported strategies: rows as in plain Spark, and the requested operator."""

from __future__ import annotations

import re
from collections import Counter
from functools import reduce
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from service.contract.options import JoinLocal, JoinShip
from service.contract.query import JoinKind
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.data_types import BIGINT, BOOLEAN, DOUBLE, STRING, Field
from tests.support.scalars import scalar
from workers.engine.plan.nodes import Aggregate, Exchange, Join, JoinStrategy, Named, Phases, Scan
from workers.engine.rules.joins.strategy_cost import JoinAlgorithm, possible_algorithms
from workers.engine.spark.lowering import lower
from workers.engine.statistics.model import Statistics
from workers.engine.statistics.partitioning import is_partitioned_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COLUMNS = (("k", BIGINT), ("d", DOUBLE), ("s", STRING))
LEFT, RIGHT = (
    Scan(name, name, tuple((Field(f"{name}.{called}", type_), called) for called, type_ in COLUMNS)) for name in "lr"
)
KEYS = tuple((column(f"l.{name}", type_), column(f"r.{name}", type_)) for name, type_ in COLUMNS[:2])
RESIDUAL = scalar("`l.s` < `r.s`", BOOLEAN)
KINDS = [kind for kind in JoinKind if kind is not JoinKind.CROSS]
OPERATORS = {
    JoinAlgorithm.SORT_MERGE: "SortMergeJoin",
    JoinAlgorithm.HASH_LEFT: "ShuffledHashJoin BuildLeft",
    JoinAlgorithm.HASH_RIGHT: "ShuffledHashJoin BuildRight",
    JoinAlgorithm.BROADCAST_LEFT: "BroadcastHashJoin BuildLeft",
    JoinAlgorithm.BROADCAST_RIGHT: "BroadcastHashJoin BuildRight",
}
NASTY = (
    (None, None, None, None, 1, 1, 1, 2, 2, 3, -(2**63), 2**63 - 1),
    (None, 0.0, float("nan"), 1.0, 0.0, -0.0, float("nan"), float("inf"), 1.0, None, -0.0, float("-inf")),
    ("a", "b", "é", "E", "", None, "a", "b", "c", "d", "e", "f"),
)

Row = tuple[int | None, float | None, str | None]


def frame(spark: SparkSession, alias: str, rows: list[Row]) -> DataFrame:
    ddl = ", ".join(f"`{alias}.{name}` {type_}" for name, type_ in COLUMNS)
    return spark.createDataFrame(rows, ddl).repartition(2)


def joins(kind: JoinKind, residual: Scalar | None = None) -> dict[JoinAlgorithm | None, Join]:
    """Returns the join with every strategy, and as Spark would run it."""
    plain = Join(LEFT, RIGHT, kind, KEYS, residual)
    ways = possible_algorithms(plain, JoinShip.AUTO, JoinLocal.AUTO)
    forced: dict[JoinAlgorithm | None, Join] = {
        way: Join(LEFT, RIGHT, kind, KEYS, residual, strategy=JoinStrategy(*way.pair)) for way in ways
    }
    return {None: plain, **forced}


def run(
    nodes: dict[JoinAlgorithm | None, Join], scans: dict[str, DataFrame]
) -> tuple[dict[JoinAlgorithm | None, Counter[str]], str]:
    """Returns the rows of each and the physical plan, in one action."""
    tagged = [lower(node, scans).withColumn("way", F.lit(str(way))) for way, node in nodes.items()]
    union = reduce(DataFrame.union, tagged)
    rows = union.collect()
    found = {way: Counter(repr(tuple(row)[:-1]) for row in rows if row["way"] == str(way)) for way in nodes}
    return found, str(union._jdf.queryExecution().executedPlan().toString())


def operators(physical: str) -> list[str]:
    """Returns the join operators of the final plan, in order."""
    final = physical.partition("== Initial Plan ==")[0]
    found = []
    for line in re.findall(r"\w+Join .*", final):
        side = re.search(r"Build(?:Left|Right)", line)
        found.append(" ".join([line.split(" ", 1)[0], *([side.group()] if side else [])]))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_each_strategy_has_its_operator_with_adaptive_execution(kind: JoinKind, spark: SparkSession) -> None:
    rows = list(zip(*NASTY, strict=True))
    scans = {"l": frame(spark, "l", rows), "r": frame(spark, "r", rows[2:] + rows[4:])}
    nodes = joins(kind, RESIDUAL if kind in {JoinKind.LEFT, JoinKind.FULL, JoinKind.LEFT_ANTI} else None)
    found, physical = run(nodes, scans)
    assert "isFinalPlan=true" in physical
    assert all(of_way == found[None] for of_way in found.values())
    # The first is Spark's default.
    assert operators(physical)[1:] == [OPERATORS[way] for way in nodes if way is not None]


ROW: st.SearchStrategy[Any] = st.tuples(*(st.sampled_from(values) for values in NASTY))


@settings(max_examples=4)
@given(
    kind=st.sampled_from(KINDS),
    residual=st.sampled_from([None, RESIDUAL]),
    left=st.lists(ROW, max_size=12),
    right=st.lists(ROW, max_size=12),
)
def test_random_rows_are_joined_as_by_plain_spark(
    kind: JoinKind, residual: Scalar | None, left: list[Row], right: list[Row], spark: SparkSession
) -> None:
    found, _ = run(joins(kind, residual), {"l": frame(spark, "l", left), "r": frame(spark, "r", right)})
    assert all(of_way == found[None] for of_way in found.values())


def shuffles(node: Aggregate | Join, scans: dict[str, DataFrame]) -> int:
    physical = lower(node, scans)._jdf.queryExecution().executedPlan().toString()
    return str(physical).count("Exchange hashpartitioning")


def test_existing_partitioning_is_reused(spark: SparkSession) -> None:
    rows: list[Row] = [(1, 1.0, "a"), (2, 2.0, "b")]
    schemas = {
        alias: spark.createDataFrame(rows, f"`{alias}.k` BIGINT, `{alias}.d` DOUBLE, `{alias}.s` STRING")
        for alias in "lr"
    }
    by_k = ((column("l.k", BIGINT), column("r.k", BIGINT)),)
    merge = JoinStrategy(JoinShip.REPARTITION, JoinLocal.SORT_MERGE)
    joined = Join(LEFT, RIGHT, JoinKind.INNER, by_k, strategy=merge)
    grouped = (Named(column("l.k", BIGINT), "k"), Named(column("l.s", STRING), "s"))
    # An aggregate by the join key and more needs no further shuffle; after a broadcast, it needs one.
    assert shuffles(Aggregate(joined, grouped, ()), schemas) == 2
    broadcast = Join(LEFT, RIGHT, JoinKind.INNER, by_k, strategy=JoinStrategy(JoinShip.BROADCAST_RIGHT))
    assert shuffles(Aggregate(broadcast, grouped, ()), schemas) == 1
    # The only exchange is the engine's, below the broadcast, the join and the aggregate.
    parted = Exchange(LEFT, (column("l.k", BIGINT),))
    over = Join(parted, RIGHT, JoinKind.INNER, by_k, strategy=JoinStrategy(JoinShip.BROADCAST_RIGHT))
    assert shuffles(Aggregate(over, grouped, ()), schemas) == 1
    assert shuffles(Join(parted, RIGHT, JoinKind.INNER, by_k, strategy=merge), schemas) == 2
    # The rows of an aggregate are partitioned by its keys, so one by the same or more keys needs no exchange.
    by_key = (Named(column("l.k", BIGINT), "k"),)
    for below in (Aggregate(LEFT, by_key, ()), Aggregate(parted, by_key, (), phases=Phases.ONE_PHASE)):
        again = Aggregate(below, (Named(column("k", BIGINT), "again"),), (), phases=Phases.TWO_PHASE)
        assert shuffles(again, schemas) == 1
        assert is_partitioned_by(below, (column("k", BIGINT),), Statistics({}, {}, slots=2))
    # A join by the key and more over sides partitioned by the key shuffles neither.
    both = tuple((column(f"l.{name}", type_), column(f"r.{name}", type_)) for name, type_ in COLUMNS[::2])
    other = Exchange(RIGHT, (column("r.k", BIGINT),))
    assert shuffles(Join(parted, other, JoinKind.INNER, both, strategy=merge), schemas) == 2
