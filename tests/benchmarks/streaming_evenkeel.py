"""Evenkeel's side of the streaming benchmark: runs a query over CSV directories with the engine, as a worker does, in
its own process with its own Spark driver.

    python streaming_evenkeel.py '{"tables": {"t": {"columns": "k BIGINT", "path": "/data/t"}}, "sql": "SELECT …",
        "settings": {}, "work": "/scratch", "sink": "blackhole", "rounds": 2, "slots": 2, "memory": "4g",
        "multi_line": true}'

Each file is read as a whole by one task, as in Flink; without `multi_line`, line by line, which is the default of jobs.
Every round starts without state in the same JVM, processes all input in mini-batches, and ends. With the sink
`managed`, mini-batches are staged and committed as on a worker; with `blackhole`, their output is computed and
discarded. The worker's writes to the database are not included.

The last line of the output is JSON: `seconds` from the start of the query to its end for each round, and `cpu_seconds`
of the JVM and this process; `checkpoint_bytes` of the last checkpoint; `shape` and `reason` of the plan; `mini_batches`
with rows, milliseconds and state operations per row; `read_seconds` of the whole result with the sink `managed`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from pyspark import SparkConf
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).parents[2]))

from service.config.spark import SparkSettings
from service.contract.enums import Mode
from service.contract.job import JobSpec
from service.results.stream_result import open_stream_result
from service.sql.compile import compile_job
from workers.driver.configuration import spark_configuration
from workers.driver.hadoop import prepare_hadoop
from workers.engine.streaming.engine import PlannedStream, StreamEngine
from workers.engine.streaming.query import BatchDone, BatchFunction, RunningStream, Stage, Trigger
from workers.engine.streaming.sinks.base import Sink, SinkTarget, Staged
from workers.engine.streaming.sinks.managed import ManagedSink
from workers.engine.streaming.sources import StreamInput, bound_of
from workers.engine.streaming.state import StateOptions
from workers.streams.batch_metrics import measures_of
from workers.streams.inputs import find_inputs

_LOOK_SECONDS = 0.5


class Unguarded:
    """A guard that allows everything."""

    def begin(self, batch_id: int) -> None:
        """Does nothing."""

    def finish(self, done: BatchDone) -> None:
        """Does nothing."""


class Blackhole:
    """A sink without commits: each mini-batch updates its state, and its rows are computed and discarded. Rows that are
    computed by changes are staged, since a mini-batch that the sink has is not computed again.
    """

    def __init__(self, *, is_staged: bool) -> None:
        self._is_staged = is_staged

    def prepare(self) -> None:
        """See `Sink`."""

    def committed(self) -> int | None:
        """See `Sink`."""
        return None if self._is_staged else sys.maxsize

    def commit(self, batch_id: int, staged: Staged) -> None:
        """Discards the rows."""
        assert self._is_staged, f"{staged.rows} rows of mini-batch {batch_id} were staged"

    def tidy(self) -> None:
        """See `Sink`."""

    def close(self) -> None:
        """See `Sink`."""


def main() -> None:
    """Runs the query of the argument and prints the measurements."""
    asked = json.loads(sys.argv[1])
    work = Path(asked["work"])
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    session = _session(asked, work)
    measured: dict[str, Any] = {"seconds": [], "cpu_seconds": []}
    for number in range(asked.get("rounds", 2)):
        root = work / f"round-{number}"
        used = _cpu_seconds()
        measured |= _run(session, asked, root, measured["seconds"])
        measured["cpu_seconds"].append(round(_cpu_seconds() - used, 2))
        shutil.rmtree(root)
    sys.stdout.write(json.dumps(measured) + "\n")
    session.stop()


def _session(asked: dict[str, Any], work: Path) -> SparkSession:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = SparkSettings(master=f"local[{asked.get('slots', 2)}]", driver_memory=asked.get("memory", "4g"))
    (work / "spark").mkdir()
    conf = SparkConf(loadDefaults=False).setAll(list(spark_configuration(settings, work / "spark").items()))
    session = SparkSession.builder.config(conf=conf.set("spark.ui.enabled", "false")).getOrCreate()
    prepare_hadoop(session.sparkContext)
    return session


def _run(session: SparkSession, asked: dict[str, Any], root: Path, seconds: list[float]) -> dict[str, Any]:
    # Their results change, as those of Flink's groups by windows above other operators.
    has_windows = "TUMBLE(" in asked["sql"] or "HOP(" in asked["sql"]
    tables = {
        name: {
            "format": "csv",
            "path": table["path"],
            # Flink's times of milliseconds.
            "schema": table["columns"].replace("TIMESTAMP(3)", "TIMESTAMP"),
            "role": "stream",
            "options": {"multi_line": asked.get("multi_line", True)},
            **({"event_time": {"column": "ts", "delay": "4s"}} if has_windows else {}),
        }
        for name, table in asked["tables"].items()
    }
    spec = JobSpec.model_validate(
        {
            "mode": Mode.INCREMENTAL,
            "tables": tables,
            "sql": asked["sql"],
            "settings": asked.get("settings", {}),
            "output_mode": "update" if has_windows else None,
        }
    )
    inputs = find_inputs(spec, [Path("/")], {})
    query = compile_job(spec, inputs.schemas)
    slots = asked.get("slots", 2)
    bounds = {
        name: bound_of(spec.settings.mini_batch, table.source, table.files)
        for name, table in inputs.tables.items()
        if isinstance(table, StreamInput)
    }
    planned = StreamEngine(session.newSession(), slots).plan(
        query,
        inputs.tables,
        StateOptions(spec.settings.state.provider, spec.settings.state.partitions or slots),
        bounds,
        output=spec.output_mode,
        settings=spec.settings,
    )
    sink = _sink(asked.get("sink", "blackhole"), planned, root)
    sink.prepare()
    computing = None if planned.changes is None else planned.changes.of_attempt(root / "changes", 1)
    stage = Stage(root / "stage", 1, collects=planned.collects)
    batch = BatchFunction(stage, sink, Unguarded(), computing=computing)
    begun = time.perf_counter()
    running = RunningStream.start(planned.frame, planned.output, root / "checkpoint", Trigger(), batch)
    while not running.wait(_LOOK_SECONDS):
        if running.progress(None):
            sink.tidy()
    seconds.append(round(time.perf_counter() - begun, 3))
    error = running.error()
    if error is not None:
        raise error
    batches = [measures_of(one, planned.reads) for one in running.progress(None)]
    measured: dict[str, Any] = {
        "shape": planned.plan.shape.value,
        "reason": planned.plan.reason,
        "checkpoint_bytes": sum(
            path.stat().st_size
            for place in ("checkpoint", "changes")
            for path in (root / place).rglob("*")
            if path.is_file()
        ),
        "mini_batches": [
            {
                "rows": one.rows_in,
                "ms": one.metrics["duration_ms"],
                "operations_per_row": one.metrics["state_operations_per_row"],
            }
            for one in batches
        ],
    }
    if isinstance(sink, ManagedSink):
        begun = time.perf_counter()
        measured["result_rows"] = open_stream_result(root / "result").files.rows
        measured["read_seconds"] = round(time.perf_counter() - begun, 3)
    return measured


def _sink(kind: str, planned: PlannedStream, root: Path) -> Sink:
    if kind == "blackhole":
        return Blackhole(is_staged=planned.changes is not None)
    plan = planned.plan
    target = SinkTarget("evenkeel/benchmark/1", 1, plan.columns, plan.output, plan.keys, plan.final, plan.weight)
    return ManagedSink(root / "result", target)


def _cpu_seconds() -> float:
    """Returns the processor seconds of this process and its JVM since their start."""
    own = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (own, *own.children(recursive=True)))


if __name__ == "__main__":
    main()
