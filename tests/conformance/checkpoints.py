"""Checkpoints of earlier releases, stored in `tests/data` by each release that changes the layout of state.

    python -m tests.conformance.checkpoints tests/data/checkpoints/NAME.tar.xz

writes the checkpoints of the current code. An archive has a directory for each of its queries (`ARCHIVES`): the
checkpoint after two mini-batches, its layout as stored in the database, the rows of the sink, and the rows that were
read.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from service.contract.options import DistinctMethod, StateProvider
from service.results.columns import arrow_schema
from service.sql.ddl import parse_schema
from tests.conformance.stream_runs import StreamRun
from workers.engine.streaming.sinks.base import Staged

DDL = "id BIGINT, k STRING, i INT, d DOUBLE, ts TIMESTAMP"
_BATCHES = 2
_KEPT = ("checkpoint", "changes")
"""The directories of a run that are archived."""


@dataclass(frozen=True)
class KeptQuery:
    """A query on a stream. `batch` is the equivalent batch query if its text differs."""

    sql: str
    streams: tuple[str, ...] = ("s",)
    provider: StateProvider = StateProvider.ROCKSDB
    method: DistinctMethod = DistinctMethod.NATIVE
    event_time: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    batch: str | None = None


_LAYOUT_1 = {
    "rows": KeptQuery("SELECT id, k, i + 1 AS j FROM s WHERE i > 1"),
    "distinct_rows": KeptQuery("SELECT DISTINCT k, d FROM s", provider=StateProvider.MEMORY),
    "plain": KeptQuery("SELECT k, COUNT(*) AS n, SUM(i) AS si, AVG(d) AS ad, MIN(ts) AS mt FROM s GROUP BY k"),
    "plain_in_memory": KeptQuery(
        "SELECT k, COUNT(*) AS n, MAX(d) AS md FROM s GROUP BY k", provider=StateProvider.MEMORY
    ),
    "distinct": KeptQuery("SELECT k, COUNT(DISTINCT i) AS c FROM s GROUP BY k"),
    "united": KeptQuery("SELECT k, COUNT(DISTINCT i) AS c, COUNT(DISTINCT d) AS e, SUM(i) AS si FROM s GROUP BY k"),
    "bitmap": KeptQuery(
        "SELECT k, COUNT(DISTINCT i) AS c, COUNT(*) AS n, AVG(i) AS a FROM s GROUP BY k", method=DistinctMethod.BITMAP
    ),
    "joined": KeptQuery(
        "SELECT s.k, COUNT(*) AS n, SUM(t.i) AS ti, COUNT(DISTINCT s.d) AS c FROM s LEFT JOIN t ON s.k = t.k "
        "GROUP BY s.k",
        streams=("s", "t"),
    ),
    "windows": KeptQuery(
        "SELECT k, TUMBLE_START(ts, INTERVAL '1' HOUR) AS b, COUNT(*) AS n, COUNT(DISTINCT i) AS c FROM s "
        "GROUP BY k, TUMBLE(ts, INTERVAL '1' HOUR)",
        event_time={"s": ("ts", "2h")},
        batch="SELECT k, window.start AS b, COUNT(*) AS n, COUNT(DISTINCT i) AS c FROM s "
        "WHERE ts < TIMESTAMP'2025-01-01' GROUP BY k, window(ts, '1 hour')",
    ),
}
_CHANGES_1 = {
    "groups_of_groups": KeptQuery(
        "SELECT n, COUNT(*) AS groups, MAX(si) AS most FROM (SELECT k, COUNT(*) AS n, SUM(i) AS si FROM s GROUP BY k) "
        "c GROUP BY n"
    ),
    "joined_rows": KeptQuery("SELECT s.k, COUNT(*) AS n FROM s JOIN t ON s.i = t.i GROUP BY s.k", streams=("s", "t")),
    "outer_join": KeptQuery("SELECT s.id, s.k, t.d FROM s LEFT JOIN t ON s.id = t.id", streams=("s", "t")),
    "first_rows": KeptQuery(
        "SELECT k, id, d FROM (SELECT k, id, d, ROW_NUMBER() OVER (PARTITION BY k ORDER BY d DESC, id) AS r FROM s) c "
        "WHERE r <= 2"
    ),
    "values_under_conditions": KeptQuery(
        "SELECT k, COUNT(DISTINCT i) AS a, COUNT(DISTINCT i) FILTER (WHERE d > 0.5) AS b, COUNT(DISTINCT d) AS c "
        "FROM s GROUP BY k HAVING COUNT(*) < 9"
    ),
}

ARCHIVES: Mapping[str, Mapping[str, KeptQuery]] = {"layout-1": _LAYOUT_1, "changes-1": _CHANGES_1}
"""The queries of each archive, by its name: an archive has those that no earlier one has, or whose state changed."""

KEPT = {name: kept for queries in ARCHIVES.values() for name, kept in queries.items()}


def rows_of(spark: SparkSession, stream: str, batch: int, directory: Path) -> Path:
    """Writes the rows of a stream's mini-batch `batch` to a file: some keys are those of the previous mini-batch. The
    third mini-batch has an hour far in the future, which closes all earlier windows.
    """
    start = 20 * batch + (0 if stream == "s" else 7)
    frame = spark.range(start, start + 30).selectExpr(
        "id",
        "IF(id % 7 = 0, NULL, CONCAT('k', id % 9)) AS k",
        "CAST(id % 5 AS INT) AS i",
        "id % 4 / 2D AS d",
        "TIMESTAMP'2024-03-01 00:00:00' + make_dt_interval(0, 0, CAST(id * 2 AS INT)) AS ts",
    )
    if batch == _BATCHES:
        frame = frame.union(spark.sql("SELECT 9999L, 'k1', 1, 1D, TIMESTAMP'2030-01-01 00:00:00'"))
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{stream}{batch}.parquet"
    pq.write_table(frame.toArrow(), path)
    return path


def run_of(spark: SparkSession, root: Path, kept: KeptQuery, layout: Mapping[str, Any] | None = None) -> StreamRun:
    """Returns the run of the query below `root`; `layout` is that of an existing state."""
    schemas = dict.fromkeys(kept.streams, parse_schema(DDL, "/tables/s/schema"))
    return StreamRun(
        spark,
        root,
        kept.sql,
        schemas,
        provider=kept.provider,
        method=kept.method,
        event_time=kept.event_time,
        layout=layout,
    )


def write_one(spark: SparkSession, kept: KeptQuery, target: Path) -> None:
    """Runs the query's first mini-batches and writes the archived files to `target`."""
    root = target.parent / f"{target.name}.run"
    run = run_of(spark, root, kept)
    for batch in range(_BATCHES):
        for stream in kept.streams:
            run.put(stream, rows_of(spark, stream, batch, target / "rows"))
        run.catch_up()
    for name in _KEPT:
        if (root / name).is_dir():
            shutil.copytree(root / name, target / name)
    columns = arrow_schema(run.planned.plan.columns)
    pq.write_table(pa.Table.from_pylist(list(run.sink.parts.values()), columns), target / "sink.parquet")
    told = {"layout": run.planned.layout, "newest": run.sink.newest, "fence": run.fence}
    (target / "told.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(root)


def reopened(spark: SparkSession, root: Path, archived: Path, kept: KeptQuery) -> tuple[StreamRun, dict[str, Any]]:
    """Returns the run below `root` that continues from the archive, and the archived layout."""
    told = json.loads((archived / "told.json").read_text(encoding="utf-8"))
    layout: dict[str, Any] = told["layout"]
    run = run_of(spark, root, kept, layout)
    for name in _KEPT:
        if (archived / name).is_dir():
            shutil.copytree(archived / name, root / name)
    run.fence = told.get("fence", 0)
    sunk = archived / "sink.parquet"
    run.sink.commit(told["newest"], Staged((sunk,), pq.read_metadata(sunk).num_rows, sunk.stat().st_size))
    return run, layout


def main(archive: Path) -> None:
    """Writes an archive of this code's checkpoints."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = SparkSession.builder.master("local[2]").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    with tempfile.TemporaryDirectory() as scratch:
        queries = ARCHIVES[archive.name.partition(".")[0]]
        for name, kept in queries.items():
            write_one(spark, kept, Path(scratch) / name)
        with tarfile.open(archive, "w:xz") as tar:
            for name in queries:
                tar.add(Path(scratch) / name, name)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
