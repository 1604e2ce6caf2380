"""What Spark hashes and broadcasts by its own choice, and runs in which it does not."""

from __future__ import annotations

import re

from pyspark.sql import SparkSession

from service.spec.query import JoinKind
from service.spec.strategies import JoinLocal, JoinShip
from workers.engine.plan.nodes import Join, Node
from workers.engine.plan.transform import walk_up

_ADAPTIVE, _ADAPTIVE_BROADCAST = "spark.sql.adaptive.enabled", "spark.sql.adaptive.autoBroadcastJoinThreshold"
_BROADCAST = "spark.sql.autoBroadcastJoinThreshold"

_NOTHING_BROADCAST = {
    _BROADCAST: "-1",
    _ADAPTIVE_BROADCAST: "-1",
    "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": "0",
    "spark.sql.join.preferSortMergeJoin": "true",
}

_PARTITIONS = "spark.sql.shuffle.partitions"
"""What a session for a job is told beside Spark's own configuration."""

_HASHED = re.compile(r"^[ :+*-]*(?:BroadcastHashJoin|BroadcastNestedLoopJoin|ShuffledHashJoin)\b", re.M)


def cautious_session(session: SparkSession) -> SparkSession:
    """Another session beside `session` in which Spark sorts and merges where a join has keys and no hint. Without keys
    it compares all pairs, where that gives the same, and else broadcasts a side: it has no other way.
    """
    cautious = session.newSession()
    cautious.conf.set(_PARTITIONS, session.conf.get(_PARTITIONS) or "200")
    for key, value in _NOTHING_BROADCAST.items():
        cautious.conf.set(key, value)
    return cautious


def hashed_joins(physical_plan: str | None) -> int:
    """Joins of a plan, as `EXPLAIN FORMATTED` prints it, that hash or broadcast a side."""
    return len(_HASHED.findall(physical_plan or ""))


def may_hash_while_it_runs(plan: Node, session: SparkSession) -> bool:
    """Whether adaptive execution may broadcast a side of a join of `plan`, which it decides by the bytes that a shuffle
    wrote: in no plan that was made before the run does that stand. A join with a hint keeps to it, and a full join with
    keys has no side that could be broadcast.
    """
    if session.conf.get(_ADAPTIVE) != "true":
        return False
    threshold = session.conf.get(_ADAPTIVE_BROADCAST, None) or session.conf.get(_BROADCAST) or ""
    return not threshold.startswith("-") and any(_is_left_to_spark(node) for node in walk_up(plan))


def _is_left_to_spark(node: Node) -> bool:
    if not isinstance(node, Join) or not node.keys or node.kind is JoinKind.FULL:
        return False
    return node.strategy.ship is JoinShip.AUTO and node.strategy.local is JoinLocal.AUTO
