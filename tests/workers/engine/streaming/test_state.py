"""The settings of a stream's state, which must be read as it was written."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from service.contract.options import StateProvider
from service.sql.types.data_types import BIGINT, STRING, Field, Schema
from tests.conformance.stream_runs import StreamRun
from workers.engine.streaming.state import StateOptions, prepare_session

EXCLUDED = "spark.sql.optimizer.excludedRules"
_STORE = "spark.sql.streaming.stateStore"


class Properties:
    """A session of which nothing but properties are set."""

    def __init__(self) -> None:
        self.conf = self
        self.told: dict[str, str] = {}

    def set(self, name: str, value: str) -> None:
        self.told[name] = value

    def unset(self, name: str) -> None:
        self.told.pop(name, None)


def properties(options: StateOptions) -> dict[str, str]:
    session = Properties()
    prepare_session(cast("SparkSession", session), options)
    return session.told


def test_rocksdb_has_a_memory_limit_and_files_named_by_run() -> None:
    told = properties(StateOptions(StateProvider.ROCKSDB, 6, memory_mb=128))
    assert told["spark.sql.shuffle.partitions"] == "6"
    assert told[f"{_STORE}.providerClass"].endswith(".RocksDBStateStoreProvider")
    assert told[f"{_STORE}.rocksdb.boundedMemoryUsage"] == "true"
    assert told[f"{_STORE}.rocksdb.maxMemoryUsageMB"] == "128"
    assert told[f"{_STORE}.checkpointFormatVersion"] == "2"


def test_a_state_in_memory_has_no_settings_of_rocksdb() -> None:
    told = properties(StateOptions(StateProvider.MEMORY, 2))
    assert told[f"{_STORE}.providerClass"].endswith(".HDFSBackedStateStoreProvider")
    assert f"{_STORE}.checkpointFormatVersion" not in told
    assert not any("rocksdb" in name for name in told)


def test_a_reused_session_has_no_settings_of_the_previous_stream() -> None:
    session = Properties()
    for provider in (StateProvider.ROCKSDB, StateProvider.MEMORY):
        prepare_session(cast("SparkSession", session), StateOptions(provider, 2))
    assert session.told == properties(StateOptions(StateProvider.MEMORY, 2))


def test_rules_that_depend_on_empty_input_are_excluded() -> None:
    rules = properties(StateOptions(StateProvider.MEMORY, 2))[EXCLUDED].split(",")
    assert {rule.rpartition(".")[2] for rule in rules} == {"PropagateEmptyRelation", "ConvertToLocalRelation"}


def test_a_mini_batch_can_run_again() -> None:
    for provider in StateProvider:
        assert int(properties(StateOptions(provider, 2))["spark.sql.streaming.minBatchesToRetain"]) >= 2


SCHEMA = Schema((Field("k", STRING), Field("v", BIGINT), Field("w", BIGINT)))
SQL = (
    "SELECT s.k, COUNT(*) AS n, MAX(s.v) AS sv, MAX(s.w) AS sw, MAX(t.v) AS tv, MAX(t.w) AS tw "
    "FROM s JOIN t ON s.k = t.k GROUP BY s.k"
)


@pytest.mark.spark
def test_streams_may_have_rows_in_turns(spark: SparkSession, tmp_path: Path) -> None:
    run = StreamRun(spark, tmp_path, SQL, {"s": SCHEMA, "t": SCHEMA}, provider=StateProvider.MEMORY)
    for number, (table, values) in enumerate((("s", [1, 2]), ("t", [10]), ("s", [3]), ("t", [20]))):
        file = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"k": ["a"] * len(values), "v": values, "w": [100 + value for value in values]}), file)
        run.put(table, file)
        run.catch_up()
    assert run.rows == [("a", 6, 3, 103, 20, 120)]
