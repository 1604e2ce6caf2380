"""Flink's side of the streaming benchmark: runs a query over CSV directories in its own process and cluster.

    FLINK_VENV/bin/python streaming_flink.py '{"tables": {"t": {"columns": "k BIGINT", "path": "/data/t"}},
        "sql": "SELECT …", "settings": {"table.exec.…": "…"}, "backend": "rocksdb",
        "checkpoints": "/scratch/checkpoints", "interval": "5 s", "parallelism": 2, "rounds": 1, "options": {}}'

Runs in an environment with apache-flink and imports nothing of the project. The streams are bounded, but the job runs
in STREAMING mode: it updates its result row by row, has state and checkpoints, and ends after the last row. Its output
goes to a blackhole.

The last line of the output is JSON: `seconds` of the query's jobs in order, and `cpu_seconds` of the JVM;
`checkpoint_bytes` of the newest complete checkpoint during the last job, including files shared with earlier ones
(null: the job ended before its first checkpoint). `seconds` are Flink's net run times, without the start of the JVM and
planning, which only `cpu_seconds` includes. The first round has a cold JVM.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MEMORY = {
    "taskmanager.memory.managed.size": "1 gb",
    "taskmanager.memory.network.min": "128 mb",
    "taskmanager.memory.network.max": "128 mb",
}
"""A local cluster has 128 MB of managed memory by default, which limits RocksDB's caches."""

HEAP = "-Xmx4g"
_LOOK_SECONDS = 0.1


class Checkpoints:
    """Observes the size of the newest complete checkpoint below a directory that Flink cleans up after a job."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.newest_bytes: int | None = None

    def look(self) -> None:
        """Measures the current checkpoint; a file that is deleted meanwhile is not counted."""
        whole = {path.parent for path in self._root.glob("*/chk-*/_metadata")}
        if not whole:
            return
        newest = max(whole, key=lambda path: int(path.name.removeprefix("chk-")))
        folders = (newest, newest.parent / "shared", newest.parent / "taskowned")
        found = sum(_size(path) for folder in folders for path in folder.rglob("*"))
        if (newest / "_metadata").exists():
            self.newest_bytes = found

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Measures repeatedly during the block."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(_LOOK_SECONDS):
                self.look()

        thread = threading.Thread(target=watch, name="checkpoints")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def main() -> None:
    """Runs the query of the argument and prints the measurements."""
    asked = json.loads(sys.argv[1])
    root = Path(asked["checkpoints"])
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    # The process that PyFlink starts for the JVM reads this.
    os.environ["JVM_ARGS"] = f"{os.environ.get('JVM_ARGS', '')} {asked.get('heap', HEAP)}".strip()
    environment = _environment(asked, root)
    measured: dict[str, Any] = {"seconds": [], "cpu_seconds": []}
    for _ in range(asked.get("rounds", 1)):
        checkpoints = Checkpoints(root)
        used = _cpu_seconds()
        with checkpoints.watched():
            measured["seconds"].append(_run(environment, asked["sql"]))
        measured["cpu_seconds"].append(round(_cpu_seconds() - used, 2))
        measured["checkpoint_bytes"] = checkpoints.newest_bytes
        for left in root.iterdir():
            shutil.rmtree(left, ignore_errors=True)
    sys.stdout.write(json.dumps(measured) + "\n")


def _environment(asked: dict[str, Any], root: Path) -> Any:
    from pyflink.common import Configuration  # type: ignore[import-not-found,unused-ignore]
    from pyflink.datastream import StreamExecutionEnvironment  # type: ignore[import-not-found,unused-ignore]
    from pyflink.table import StreamTableEnvironment  # type: ignore[import-not-found,unused-ignore]

    parallelism = str(asked.get("parallelism", 2))
    # Set before the environment is created, because the cluster's configuration is fixed then.
    configuration = Configuration()
    for key, value in {
        **MEMORY,
        "execution.runtime-mode": "STREAMING",
        "parallelism.default": parallelism,
        "taskmanager.numberOfTaskSlots": parallelism,
        "state.backend.type": asked["backend"],
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.interval": asked.get("interval", "5 s"),
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": root.as_uri(),
        "table.exec.resource.default-parallelism": parallelism,
        **asked.get("options", {}),
        **asked["settings"],
    }.items():
        configuration.set_string(key, value)
    streams = StreamExecutionEnvironment.get_execution_environment(configuration)
    environment = StreamTableEnvironment.create(streams)
    for name, table in asked["tables"].items():
        source = f"'connector' = 'filesystem', 'format' = 'csv', 'path' = '{Path(table['path']).as_uri()}'"
        # Groups by windows need a time attribute.
        watermark = ", WATERMARK FOR ts AS ts - INTERVAL '4' SECOND" if "(ts, INTERVAL" in asked["sql"] else ""
        environment.execute_sql(f"CREATE TABLE {name} ({table['columns']}{watermark}) WITH ({source})")
    return environment


def _run(environment: Any, sql: str) -> float:
    """Runs a job that writes the query's changes to a blackhole and returns its seconds. Raises PyFlink's errors."""
    from pyflink.table import TableDescriptor

    result = environment.sql_query(sql).execute_insert(TableDescriptor.for_connector("blackhole").build())
    result.wait()
    done = result.get_job_client().get_job_execution_result().result()
    return float(done.get_net_runtime()) / 1000


def _cpu_seconds() -> float:
    """Returns the processor seconds of the JVM since its start, in user and system mode."""
    from pyflink.java_gateway import get_gateway  # type: ignore[import-not-found,unused-ignore]

    pid = get_gateway().jvm.java.lang.ProcessHandle.current().pid()
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0


if __name__ == "__main__":
    began = time.perf_counter()
    main()
    sys.stderr.write(f"{time.perf_counter() - began:.1f} s in all\n")
