"""How much memory a task has, as far as Spark's configuration tells.

What Spark hashes and broadcasts by its own choice, and runs in which it does not.

How many entries Spark's hash aggregate of objects may have: it is bounded by their number, not by memory.
"""

from __future__ import annotations

import re

from pyspark.sql import SparkSession

from service.contract.options import JoinLocal, JoinShip
from service.contract.query import AggregateFunction, JoinKind
from workers.engine.plan.nodes import Aggregate, Join, Node, PlanFunction
from workers.engine.plan.traversal import walk_up
from workers.engine.rules.distinct.bitmaps import BLOCK_BYTES

_RESERVED = 300 << 20
"""What Spark keeps of every heap for itself (`RESERVED_SYSTEM_MEMORY_BYTES`)."""
_FRACTION = "0.6"
"""`spark.memory.fraction`: what execution and storage share of the rest."""
_DRIVER_PARTS = 8
"""A broadcast is gathered and hashed on the driver, which has other jobs: a task counts with so small a part of it."""


def is_in_driver(master: str) -> bool:
    """Whether tasks run in the driver's JVM. `local-cluster[…]` starts executors of their own.

    >>> is_in_driver("local[4]"), is_in_driver("local"), is_in_driver("local-cluster[2,1,1024]")
    (True, True, False)
    """
    return master == "local" or master.startswith("local[")


def task_memory(session: SparkSession, slots: int) -> int:
    """Bytes that a task may take while all of its executor's slots are taken; never below one.

    In local mode the driver's heap is the executor's. Where the cores of an executor are not configured, all `slots`
    are taken to be in one: the standalone master gives a worker's cores to a single executor.
    """
    context = session.sparkContext
    jvm = context._jvm
    # Not the context's configuration: to get it copies every setting of the driver, one call after the other.
    conf = session.conf
    driver = int(jvm.java.lang.Runtime.getRuntime().maxMemory()) if jvm is not None else 1 << 30
    fraction = float(conf.get("spark.memory.fraction", _FRACTION) or _FRACTION)
    if is_in_driver(str(context.master)):
        return max(1, round((driver - _RESERVED) * fraction / slots))
    told = conf.get("spark.executor.memory", "1g") or "1g"
    heap = int(jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes(told)) if jvm is not None else 1 << 30
    cores = int(conf.get("spark.executor.cores", str(slots)) or slots)
    return max(1, round(min((heap - _RESERVED) * fraction / cores, driver / _DRIVER_PARTS)))


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


_ENTRIES = "spark.sql.objectHashAggregate.sortBased.fallbackThreshold"
"""Entries of a task after which it sorts instead; 128 where nothing is set."""

_UNBOUNDED = frozenset({AggregateFunction.LISTAGG, AggregateFunction.PERCENTILE})
"""Calls whose buffers are objects that grow with the rows."""

_MEMORY_PARTS = 2
"""Blocks are chosen where they are expected to take a quarter of a task's memory; beyond twice that Spark sorts."""


def has_blocks(plan: Node) -> bool:
    """Whether values are counted in blocks of bitmaps."""
    return PlanFunction.BITMAP_CONSTRUCT_AGG in _functions(plan)


def may_hash_blocks(plan: Node) -> bool:
    """Whether a query may have blocks: not beside other objects that would be hashed as well, as many of them."""
    return not _functions(plan) & _UNBOUNDED


def hash_blocks(session: SparkSession, plan: Node, task_memory: int) -> None:
    """Lets `session` hash the blocks of `plan`, as many as half of `task_memory` (bytes) holds; a plan without them is
    left alone.
    """
    if has_blocks(plan) and may_hash_blocks(plan):
        session.conf.set(_ENTRIES, str(max(128, task_memory // _MEMORY_PARTS // BLOCK_BYTES)))


def _functions(plan: Node) -> frozenset[AggregateFunction | PlanFunction]:
    return frozenset(call.function for node in walk_up(plan) if isinstance(node, Aggregate) for call in node.calls)
