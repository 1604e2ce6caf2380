"""How many entries Spark's hash aggregate of objects may have: it is bounded by their number, not by memory."""

from __future__ import annotations

from pyspark.sql import SparkSession

from service.spec.query import AggregateFunction
from workers.engine.plan.bitmaps import BLOCK_BYTES
from workers.engine.plan.nodes import Aggregate, Node, PlanFunction
from workers.engine.plan.transform import walk_up

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
