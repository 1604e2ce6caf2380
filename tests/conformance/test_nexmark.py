"""Tests the queries of Nexmark as streams: after each mini-batch, also if it was interrupted, the result is that of a
batch query. Windows that are emitted when they are closed are compared once all are.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from service.contract.enums import OutputMode
from service.results.columns import arrow_schema
from service.sql.types.data_types import BIGINT, STRING, Field, Schema
from tests.benchmarks.nexmark_cases import QUERIES, STREAMS
from tests.conformance.conftest import SEED
from tests.conformance.stream_runs import StreamRun, catch_up_roughly, in_batch, write_rows
from tests.sql.case_files import tables_of
from tests.support.rows import difference

pytestmark = pytest.mark.spark

_SCHEMAS = {name: Schema(table.schema.fields) for name, table in tables_of("nexmark").items()}
_SIDE = Schema((Field("id", BIGINT), Field("note", STRING)))
_ROWS = {"person": 40, "auction": 200, "bid": 600}
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_STRETCH = 300
"""Times are stretched so much that the few rows fill some windows."""
_FILES = 2


def _file(path: Path, name: str, number: int) -> Path:
    """Writes the rows of a file of a stream: those that the benchmark has."""
    rows = _ROWS[name]
    made: dict[str, Any] = STREAMS[name].make(np.random.default_rng([5, number]), number * rows, rows)
    schema = arrow_schema(_SCHEMAS[name].fields)
    columns = {one.name: _column(made[one.name], one.type) for one in schema}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns, schema=schema), path)
    return path


def _column(values: Any, type_: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(type_):
        times = (datetime.fromisoformat(value).replace(tzinfo=UTC) for value in values)
        return pa.array([_BEGIN + _STRETCH * (time - _BEGIN) for time in times], type_)
    return pa.array(values.tolist(), type_)


def _with_windows_of_spark(sql: str) -> str:
    """Returns the text with Spark's function for windows."""
    lengths = r"INTERVAL '(\d+)' SECOND"
    for part, suffix in (("_START", ".start"), ("_END", ".end"), ("", "")):
        sql = re.sub(rf"\bTUMBLE{part}\(ts, {lengths}\)", rf"window(ts, '\1 seconds'){suffix}", sql)
        hop = rf"\bHOP{part}\(ts, {lengths}, {lengths}\)"
        sql = re.sub(hop, rf"window(ts, '\2 seconds', '\1 seconds'){suffix}", sql)
        sql = re.sub(rf"\bSESSION{part}\(ts, {lengths}\)", rf"session_window(ts, '\1 seconds'){suffix}", sql)
    return sql


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", QUERIES)
def test_queries_have_the_batch_result(spark: SparkSession, tmp_path: Path, name: str) -> None:
    random = Random(f"{SEED} {name}")
    sql = QUERIES[name]
    streams = [one for one in STREAMS if re.search(rf"\b(FROM|JOIN) {one}\b", sql)]
    statics = {}
    side = tmp_path / "static" / "side" / "side.parquet"
    if "JOIN side" in sql:
        write_rows(side, _SIDE, [(number, f"note {number}") for number in range(0, 100, 2)])
        statics["side"] = side.parent.parent
    run = StreamRun(
        spark,
        tmp_path / "run",
        sql,
        {one: _SCHEMAS[one] for one in streams},
        statics,
        event_time=dict.fromkeys(streams, ("ts", "5s")),
        output=OutputMode.UPDATE if "GROUP BY" in sql else None,
    )
    put: dict[str, list[Path]] = {one: [] for one in streams}
    story: list[str] = []
    for number in range(_FILES):
        for one in streams:
            file = _file(tmp_path / "files" / f"{one}{number}.parquet", one, number)
            put[one].append(file)
            run.put(one, file)
        catch_up_roughly(run, random, story)
        assert run.catch_up() is None
        tables = {**put, **({"side": [side]} if statics else {})}
        expected = in_batch(spark, _with_windows_of_spark(sql), tables, {})
        assert expected or name in {"q2", "q14"}, "the data do not test the query"
        assert difference(expected, run.rows) is None, (number, story)
