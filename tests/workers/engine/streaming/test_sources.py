"""Streaming sources on real Spark, in the order in which Spark reports them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.contract.tables import TableSource
from service.sql.types.data_types import BIGINT, Field, Schema
from workers.engine.plan.nodes import Scan
from workers.engine.streaming.sources import (
    Input,
    RateInput,
    SourceLog,
    SourceRead,
    StreamInput,
    logs_of,
    read_inputs,
    reads_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from workers.engine.streaming.query import BatchProgress

pytestmark = [pytest.mark.spark, pytest.mark.one_database]

K = Field("k", BIGINT)


def directory(root: Path, name: str, rows: int) -> StreamInput:
    """A directory with one file of so many rows, as a stream."""
    (root / name).mkdir()
    pq.write_table(pa.table({"k": pa.array(range(rows), pa.int64())}), root / name / "0.parquet")
    source = TableSource.model_validate({"format": "parquet", "path": name})
    return StreamInput(source, f"file://{root / name}", Schema((K,)))


def scanned(spark: SparkSession, alias: str, table: str, tables: dict[str, Input], column: Field = K) -> DataFrame:
    """One scan of a table."""
    scan = Scan(table, alias, ((Field("k", column.type), column.name),))
    return read_inputs(spark, scan, tables, {})[alias]


def progress_of(frame: DataFrame, checkpoint: Path) -> BatchProgress:
    """Spark's report of the only mini-batch."""
    from workers.engine.streaming.query import progress_of as read

    writer = frame.writeStream.option("checkpointLocation", f"file://{checkpoint}").trigger(availableNow=True)
    query = writer.foreachBatch(lambda rows, _: rows.write.format("noop").mode("overwrite").save()).start()
    assert query.awaitTermination(60)
    found = read(query._jsq.lastProgress().json())
    assert found is not None
    return found


def test_sources_have_their_tables_in_the_order_of_sparks_reports(spark: SparkSession, tmp_path: Path) -> None:
    orders = directory(tmp_path, "orders", 2)
    tables: dict[str, Input] = {"o": orders, "same": orders, "eu": directory(tmp_path, "orders_eu", 30)}
    o, same, eu, again = (
        scanned(spark, alias, table, tables) for alias, table in (("o", "o"), ("s", "same"), ("e", "eu"), ("p", "o"))
    )
    frame = same.union(eu).union(o).union(eu).union(again).union(o).union(o)

    assert reads_of(frame) == (
        SourceRead("same", 1),
        SourceRead("eu", 2),
        SourceRead("o", 3),
        SourceRead("o", 1),
    )
    # Spark counts a row as often as it is read, and numbers the logs of the sources in the same order.
    assert [source.rows for source in progress_of(frame, tmp_path / "checkpoint").sources] == [2, 60, 6, 2]
    taken = [[Path(uri).parent.name for uri in SourceLog(log).new()] for log in logs_of(tmp_path / "checkpoint")]
    assert taken == [["orders"], ["orders_eu"], ["orders"], ["orders"]]


def test_rate_and_static_tables_are_read(spark: SparkSession) -> None:
    made = scanned(spark, "r", "rate", {"rate": RateInput(5)}, Field("value", BIGINT))
    frame = made.union(made).join(spark.range(3).withColumnRenamed("id", "n"), on=made["k"] == 1)
    assert reads_of(frame) == (SourceRead("rate", 2),)
