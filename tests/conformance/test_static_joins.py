"""Tests of streams joined with static tables, with another join strategy in each mini-batch and the same state and
checkpoint: the result is that of a batch query.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from service.sql.types.data_types import INT, STRING, Field, Schema
from tests.conformance.stream_runs import StreamRun, in_batch
from tests.sql.case_files import named_texts
from tests.support.rows import difference
from workers.engine.plan.nodes import Expand, Scan
from workers.engine.plan.traversal import walk_up

pytestmark = pytest.mark.spark

_SCHEMA = Schema((Field("g", INT), Field("k", STRING), Field("i", INT)))
_HOT = 7

QUERIES = named_texts("streams/static_joins")

_SALT = {"ship": "REPARTITION", "skew": "SALT"}
_ALL_WAYS: tuple[dict[str, str], ...] = (
    # Without statistics, because there is no file.
    _SALT,
    {},
    _SALT,
    {"ship": "REPARTITION", "skew": "ISOLATE"},
    {"ship": "REPARTITION", "local": "HASH_LEFT"},
    {"ship": "BROADCAST_LEFT"},
)
"""The join strategy of each mini-batch."""
_SOME_WAYS: tuple[dict[str, str], ...] = ({}, _SALT, {"ship": "REPARTITION"})


def _rows(spark: SparkSession, start: int, path: Path) -> Path:
    """Writes 60 rows, half of them with one key, some without a key."""
    g = f"CASE WHEN id % 2 = 0 THEN {_HOT} WHEN id % 9 = 0 THEN NULL ELSE id % 12 END"
    frame = spark.range(start, start + 60).selectExpr(
        f"CAST({g} AS INT) AS g", "CONCAT('k', id % 5) AS k", "CAST(id AS INT) AS i"
    )
    pq.write_table(frame.toArrow(), path)
    return path


@pytest.mark.parametrize("name", QUERIES)
def test_state_does_not_depend_on_the_join_strategy(spark: SparkSession, tmp_path: Path, name: str) -> None:
    sql = QUERIES[name]
    static = tmp_path / "static" / "n" / "n.parquet"
    static.parent.mkdir(parents=True)
    names = [(_HOT, "h"), (_HOT, "again"), (1, "one"), (3, None), (None, "none"), (40, "far")]
    pq.write_table(spark.createDataFrame(names, "g INT, name STRING").toArrow(), static)
    run = StreamRun(spark, tmp_path / "run", sql, {"s": _SCHEMA}, {"n": static.parents[1]})
    files: list[Path] = []
    readings = 2 if name == "inner" else 1
    for number, way in enumerate(_ALL_WAYS if name == "inner" else _SOME_WAYS):
        run.plan_again(join=way)
        plan = run.planned.plan.node
        salted = any(isinstance(node, Expand) for node in walk_up(plan))
        assert salted == (number > 0 and way.get("skew") == "SALT"), run.planned.report.rules
        files.append(_rows(spark, 60 * number, tmp_path / f"{number}.parquet"))
        run.put("s", files[-1])
        assert run.catch_up() is None
        # Spark only continues with the same number of reads of a stream.
        assert sum(isinstance(node, Scan) and node.alias == "s" for node in walk_up(plan)) == readings
    expected = in_batch(spark, sql, {"s": files, "n": [static]}, {})
    assert difference(expected, run.rows) is None
