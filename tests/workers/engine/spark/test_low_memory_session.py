"""Which joins hash or broadcast a side, before the run and in it. What a cautious session does: test_engine.py."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from service.contract.options import JoinLocal, JoinShip
from service.contract.query import JoinKind
from tests.support.joined import col, scan
from workers.engine.plan.nodes import Join, JoinStrategy, Limit, Node
from workers.engine.spark.session_options import count_hashed_joins, low_memory_session, may_broadcast_during_run

PLAN = """== Physical Plan ==
AdaptiveSparkPlan (20)
+- * Project (19)
   +- * BroadcastHashJoin Inner BuildRight (18)
      :- BroadcastNestedLoopJoin BuildLeft LeftOuter (9)
      :  :- * ShuffledHashJoin Inner BuildRight (5)
      :  :  :- * SortMergeJoin Inner (4)
      +- BroadcastExchange (17)

(18) BroadcastHashJoin [codegen id : 2]
Join condition: (name = BroadcastHashJoin Inner)
"""


def test_only_the_operators_of_the_tree_are_counted() -> None:
    assert count_hashed_joins(PLAN) == 3
    assert count_hashed_joins(None) == 0


def joined(kind: JoinKind = JoinKind.LEFT, keyed: bool = True, strategy: JoinStrategy | None = None) -> Node:
    keys = ((col("l.k"), col("r.k")),) if keyed else ()
    return Limit(Join(scan("l"), scan("r"), kind, keys, strategy=strategy or JoinStrategy()), 3)


@pytest.mark.spark
def test_joins_that_adaptive_execution_may_broadcast(spark: SparkSession) -> None:
    session = spark.newSession()
    for key, value in {"adaptive.enabled": "true", "autoBroadcastJoinThreshold": "10m"}.items():
        session.conf.set(f"spark.sql.{key}", value)
    assert may_broadcast_during_run(joined(), session)
    merged = JoinStrategy(JoinShip.REPARTITION, JoinLocal.SORT_MERGE)
    for node in (joined(JoinKind.FULL), joined(JoinKind.CROSS, keyed=False), joined(strategy=merged), scan("l")):
        assert not may_broadcast_during_run(node, session)
    assert not may_broadcast_during_run(joined(), low_memory_session(session))
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    assert not may_broadcast_during_run(joined(), session)
    session.conf.set("spark.sql.adaptive.autoBroadcastJoinThreshold", "1k")
    assert may_broadcast_during_run(joined(), session)
    session.conf.set("spark.sql.adaptive.enabled", "false")
    assert not may_broadcast_during_run(joined(), session)
