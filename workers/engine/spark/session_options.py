"""Options of Spark sessions that depend on memory: what a task may use, which joins hash or broadcast a side, and how
many entries an aggregate may hash.

`low_memory_session` returns a session in which Spark hashes and broadcasts as little as possible. Spark limits the hash
aggregate of objects by the number of its entries, not by memory; `raise_hash_limit` raises that limit for bitmaps.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

from pyspark import SparkContext
from pyspark.sql import SparkSession

from service.contract.query import AggregateFunction, JoinKind
from service.sql.types.aggregates import KEEPS_VALUES
from workers.engine.plan.nodes import Aggregate, Join, Node, PlanFunction
from workers.engine.plan.one_row_joins import has_one_row
from workers.engine.plan.traversal import walk_up
from workers.engine.rules.distinct.bitmaps import BLOCK_BYTES
from workers.engine.statistics.partitioning import is_left_to_spark

_RESERVED = 300 << 20
"""Bytes of every heap that Spark reserves for itself (`RESERVED_SYSTEM_MEMORY_BYTES`)."""

_FRACTION = "0.6"
"""The default of `spark.memory.fraction`: the share of the rest for execution and storage."""

_DRIVER_PARTS = 8
"""A broadcast is collected and hashed on the driver, which runs other jobs too: a task gets one part of its heap."""

_ADAPTIVE, _ADAPTIVE_BROADCAST = "spark.sql.adaptive.enabled", "spark.sql.adaptive.autoBroadcastJoinThreshold"
_BROADCAST = "spark.sql.autoBroadcastJoinThreshold"
_PARTITIONS = "spark.sql.shuffle.partitions"

_NO_HASHING = {
    _BROADCAST: "-1",
    _ADAPTIVE_BROADCAST: "-1",
    "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": "0",
    "spark.sql.join.preferSortMergeJoin": "true",
}

_HASHED_JOIN = re.compile(r"^[ :+*-]*(?:BroadcastHashJoin|BroadcastNestedLoopJoin|ShuffledHashJoin)\b", re.M)

_HASH_LIMIT = "spark.sql.objectHashAggregate.sortBased.fallbackThreshold"
"""The number of entries after which a task sorts instead of hashing."""

_DEFAULT_HASH_LIMIT = 128

_MEMORY_PARTS = 2
"""The rules choose bitmaps if they are expected to need a quarter of a task's memory. Above half of it, Spark sorts."""


def is_in_driver(master: str) -> bool:
    """Whether tasks run in the driver's JVM. `local-cluster[…]` starts separate executors.

    >>> is_in_driver("local[4]"), is_in_driver("local"), is_in_driver("local-cluster[2,1,1024]")
    (True, True, False)
    """
    return master == "local" or master.startswith("local[")


def task_memory(session: SparkSession, slots: int) -> int:
    """Returns the bytes that a task may use while all slots of its executor are in use; at least 1.

    In local mode, the driver's heap is the executor's. If the cores of an executor are not configured, all `slots` are
    assumed to be in one executor: the standalone master gives all cores of a Spark worker to a single executor.
    """
    shared, cores, most = _executor_memory(session.sparkContext)
    return max(1, round(min(shared / (cores or slots), most)))


@lru_cache(maxsize=1)
def _executor_memory(context: SparkContext) -> tuple[float, int | None, float]:
    """Returns the bytes that the tasks of an executor share, its cores if they are configured, and the bytes that the
    driver has for the broadcast of a task. Cached: nothing of it changes, and it takes a dozen calls of the JVM.
    """
    jvm, conf = context._jvm, context.getConf()
    if jvm is None:
        raise RuntimeError("the session has no JVM")
    driver = int(jvm.java.lang.Runtime.getRuntime().maxMemory())
    fraction = float(conf.get("spark.memory.fraction", _FRACTION))
    if is_in_driver(str(context.master)):
        return (driver - _RESERVED) * fraction, None, math.inf
    configured = conf.get("spark.executor.memory", "1g")
    heap = int(jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes(configured))
    cores = conf.get("spark.executor.cores")
    return (heap - _RESERVED) * fraction, None if cores is None else int(cores), driver / _DRIVER_PARTS


def low_memory_session(session: SparkSession) -> SparkSession:
    """Returns another session of the same application, in which Spark uses a sort-merge join if a join has keys and no
    hint. Without keys, Spark compares all pairs of rows, or broadcasts a side if the kind of the join requires it.
    """
    low_memory = session.newSession()
    low_memory.conf.set(_PARTITIONS, session.conf.get(_PARTITIONS) or "200")
    for key, value in _NO_HASHING.items():
        low_memory.conf.set(key, value)
    return low_memory


def count_hashed_joins(physical_plan: str | None) -> int:
    """Returns the number of joins in a plan, as `EXPLAIN FORMATTED` prints it, that hash or broadcast a side."""
    return len(_HASHED_JOIN.findall(physical_plan or ""))


def may_broadcast_during_run(plan: Node, session: SparkSession) -> bool:
    """Whether adaptive execution may broadcast a side of a join of `plan`.

    Spark decides this by the bytes that a shuffle wrote, so the plan before the run does not show it. A join with a
    hint keeps its algorithm, and no side of a full join with keys can be broadcast.
    """
    if session.conf.get(_ADAPTIVE) != "true":
        return False
    threshold = session.conf.get(_ADAPTIVE_BROADCAST, None) or session.conf.get(_BROADCAST) or ""
    return not threshold.startswith("-") and any(
        isinstance(node, Join)
        and node.keys
        and node.kind is not JoinKind.FULL
        and is_left_to_spark(node)
        and not has_one_row(node)
        for node in walk_up(plan)
    )


def has_bitmaps(plan: Node) -> bool:
    """Whether the plan counts distinct values in blocks of bitmaps."""
    return PlanFunction.BITMAP_CONSTRUCT_AGG in _functions(plan)


def may_hash_bitmaps(plan: Node) -> bool:
    """Whether a higher limit is safe: False if the same limit would apply to objects that grow with the rows."""
    return not keeps_values(plan)


def keeps_values(plan: Node) -> bool:
    """Whether an aggregate of the plan has objects that grow with the rows, such as a list of all values."""
    return bool(_functions(plan) & KEEPS_VALUES)


def raise_hash_limit(session: SparkSession, plan: Node, task_memory: int) -> None:
    """Lets `session` hash as many blocks of bitmaps as half of `task_memory` (bytes) holds, if `plan` has bitmaps."""
    if has_bitmaps(plan) and may_hash_bitmaps(plan):
        session.conf.set(_HASH_LIMIT, str(max(_DEFAULT_HASH_LIMIT, task_memory // _MEMORY_PARTS // BLOCK_BYTES)))


def _functions(plan: Node) -> frozenset[AggregateFunction | PlanFunction]:
    return frozenset(call.function for node in walk_up(plan) if isinstance(node, Aggregate) for call in node.calls)
