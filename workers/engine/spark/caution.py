"""Runs in which Spark hashes and broadcasts nothing by its own choice."""

from __future__ import annotations

import re

from pyspark.sql import SparkSession

_NOTHING_BROADCAST = {
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "-1",
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
