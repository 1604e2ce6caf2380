"""The state directory of an earlier version, with streams that are running and jobs that are queued.

    python -m tests.e2e.upgrade TREE tests/data/upgrade/NAME.tar.xz

starts `evenkeel up` of the version whose sources are in TREE, submits the jobs of `STREAMS` and `BATCHES`, posts the
first rows, stops the service, and writes the archive. Make one from the last version before a change of the database,
of stored JSON or of checkpoints.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from service.contract.enums import JobStatus
from tests.support.client import JobClient
from tests.support.processes import wait_for
from tests.support.service import Service, running_service

STREAM, OTHER = "clicks", "visits"
DDL = "k STRING, x BIGINT, y BIGINT, ts TIMESTAMP"
NAMES = "k,name\na,one\nb,two\nc,one\n"
PLACE = "/evenkeel-recorded"
"""Stands in archives for the directory that the service ran in."""

_TABLE = {"role": "stream", "format": "stream", "stream": STREAM, "event_time": {"column": "ts", "delay": "10s"}}
_OTHER = {**_TABLE, "stream": OTHER}
_CSV = {"format": "csv", "options": {"header": True}}
_NAMES = {**_CSV, "role": "static", "path": "names.csv", "schema": "k STRING, name STRING"}
_MINUTE = "TUMBLE(ts, INTERVAL '1' MINUTE)"


@dataclass(frozen=True)
class StreamQuery:
    """A streaming job. `oracle` is the query in DuckDB's SQL over `t`, `u` and `names`, where it is another one."""

    sql: str
    tables: Mapping[str, Any]
    oracle: str = ""
    output: str = "update"


STREAMS = {
    "plain": StreamQuery(
        "SELECT k, COUNT(*) AS n, SUM(x) AS s, COUNT(DISTINCT y) AS d FROM t GROUP BY k", {"t": _TABLE}
    ),
    "having": StreamQuery("SELECT y, MAX(x) AS m FROM t WHERE x > -500 GROUP BY y HAVING COUNT(*) > 2", {"t": _TABLE}),
    "strings": StreamQuery(
        "SELECT x % 5 AS g, MIN(k) AS a, COUNT(DISTINCT k) AS d, AVG(y) AS v FROM t GROUP BY x % 5", {"t": _TABLE}
    ),
    "joined": StreamQuery(
        "SELECT t.k, COUNT(*) AS n, SUM(u.x) AS s FROM t JOIN u ON t.k = u.k GROUP BY t.k", {"t": _TABLE, "u": _OTHER}
    ),
    "named": StreamQuery(
        "SELECT n.name, COUNT(*) AS n, COUNT(DISTINCT t.y) AS d FROM t JOIN names n ON t.k = n.k GROUP BY n.name",
        {"t": _TABLE, "names": _NAMES},
    ),
    "distinct": StreamQuery("SELECT DISTINCT k, x % 3 AS r FROM t", {"t": _TABLE}, output="append"),
    "windows": StreamQuery(
        f"SELECT k, TUMBLE_START(ts, INTERVAL '1' MINUTE) AS b, COUNT(*) AS n FROM t GROUP BY {_MINUTE}, k",
        {"t": _TABLE},
        "SELECT k, b, COUNT(*) AS n FROM (SELECT k, date_trunc('minute', ts) AS b FROM t) "
        "WHERE b < (SELECT date_trunc('minute', MAX(ts)) FROM t) GROUP BY k, b",
        output="append",
    ),
}

_ROWS = {"r": {**_CSV, "path": "rows.csv", "schema": "g BIGINT, v BIGINT"}}
_BATCH: dict[str, Any] = {"mode": "batch", "tables": _ROWS}
BATCHES: dict[str, dict[str, Any]] = {
    "sql": {**_BATCH, "sql": "SELECT g, COUNT(*) AS n, SUM(v) AS s FROM r GROUP BY g"},
    "forced": {
        **_BATCH,
        "sql": "SELECT g, COUNT(*) AS n, SUM(v) AS s, COUNT(DISTINCT v) AS d FROM r GROUP BY g",
        "settings": {"agg_phase": "two_phase", "distinct_split": {"enabled": True, "bucket_num": 4}},
    },
    "joined": {
        **_BATCH,
        "sql": "SELECT /*+ BROADCAST(b) */ a.g, COUNT(*) AS n FROM r a JOIN r b ON a.g = b.g GROUP BY a.g",
    },
    "structured": {
        **_BATCH,
        "query": {
            "source": {"kind": "table", "table": "r"},
            "group_by": [{"expression": "r.g", "name": "g"}],
            "aggregates": [{"function": "SUM", "arguments": ["r.v"], "name": "s"}],
            "select": [{"expression": "g", "name": "g"}, {"expression": "s", "name": "s"}],
        },
    },
}
"""Jobs that are still queued when the service stops."""

BATCH_ORACLES = {
    "sql": BATCHES["sql"]["sql"],
    "forced": BATCHES["forced"]["sql"],
    "joined": "SELECT a.g, COUNT(*) AS n FROM r a JOIN r b ON a.g = b.g GROUP BY a.g",
    "structured": "SELECT g, SUM(v) AS s FROM r GROUP BY g",
}

Row = tuple[str | None, int | None, int, datetime]


def rows_of(stream: str, batch: int) -> list[Row]:
    """The rows of one post; half of them have key `a`, and some have no key or no `x`."""
    start = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=40 * batch)
    seed = 1 if stream == STREAM else 3
    return [
        (
            "a" if i % 2 else (None, "b", "c", "d")[i // 2 % 4],
            None if i % 11 == 0 else (i * 37 * seed + batch) % 1000 - 500,
            (i * seed + batch) % 17,
            start + timedelta(seconds=i),
        )
        for i in range(40 if stream == STREAM else 6)
    ]


def post(client: JobClient, stream: str, batch: int) -> None:
    """Posts one batch of rows."""
    lines = (json.dumps({"k": k, "x": x, "y": y, "ts": ts.isoformat()}) for k, x, y, ts in rows_of(stream, batch))
    answer = client.http.post(
        f"/v1/streams/{stream}/rows",
        params={"batch_id": f"batch-{batch}"},
        content="\n".join(lines).encode(),
        headers={"Content-Type": "application/x-ndjson"},
    )
    assert answer.status_code == 202, answer.text


def stream_spec(name: str) -> dict[str, Any]:
    """The body of a streaming job."""
    query = STREAMS[name]
    return {
        "name": name,
        "mode": "continuous",
        "tables": query.tables,
        "sql": query.sql,
        "output": query.output,
        "settings": {"mini_batch": {"allow_latency": "200ms"}, "state": {"partitions": 1}},
    }


def has_read(client: JobClient, job_id: str, rows: int) -> bool:
    """Whether a streaming job has read at least `rows` rows and waits for more."""
    job = client.job(job_id)
    assert not job["finished"], job
    assert job["status"] != JobStatus.STOPPED, job
    return bool(progress(client, job_id)["rows_in"] >= rows)


def progress(client: JobClient, job_id: str) -> dict[str, Any]:
    """How far a streaming job has come."""
    answer = client.http.get(f"/v1/jobs/{job_id}/stream")
    assert answer.status_code == 200, answer.text
    progress: dict[str, Any] = answer.json()
    return progress


def _files_of(state: Path) -> Iterator[Path]:
    return (path for path in sorted(state.rglob("*")) if path.is_file())


def replace_text(state: Path, old: str, new: str) -> None:
    """Replaces `old` by `new` in the text files and the SQLite databases of a state directory."""
    for path in _files_of(state):
        content = path.read_bytes()
        if content.startswith(b"SQLite format 3"):
            _replace_in_database(path, old, new)
        elif old.encode() in content and b"\0" not in content:
            path.write_bytes(content.replace(old.encode(), new.encode()))
            # Hadoop's checksum is of the old content.
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def _replace_in_database(path: Path, old: str, new: str) -> None:
    database = sqlite3.connect(path)
    with database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            for column in columns:
                database.execute(
                    f"UPDATE {table} SET {column} = REPLACE({column}, ?, ?) "
                    f"WHERE typeof({column}) = 'text' AND INSTR({column}, ?)",
                    (old, new, old),
                )
    database.close()


def move_times(state: Path, now_ms: int) -> None:
    """Moves all times in the database of a state directory, so that it was recorded now: jobs have a time limit."""
    database = sqlite3.connect(state / "evenkeel.db")
    with database:
        (recorded_ms,) = database.execute("SELECT MAX(updated_at) FROM jobs").fetchone()
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for _, column, declared, *_ in database.execute(f"PRAGMA table_info({table})").fetchall():
                if declared == "BIGINT" and (column == "at" or column.endswith("_at")):
                    database.execute(f"UPDATE {table} SET {column} = {column} + ?", (now_ms - recorded_ms,))
    database.close()


def record(tree: Path, archive: Path) -> None:
    """Writes an archive of what the version in `tree` leaves."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        # The streams take all slots of the worker.
        environment = {"PYTHONPATH": str(tree), "EVENKEEL_WORKER_CONCURRENCY": str(len(STREAMS))}
        with running_service(directory, environment) as service:
            jobs = _submit(service)
        state = directory / "state"
        shutil.rmtree(state / "logs")
        replace_text(state, str(directory), PLACE)
        (state / "recorded.json").write_text(json.dumps(jobs, indent=1) + "\n", encoding="utf-8")
        with tarfile.open(archive, "w:xz", format=tarfile.PAX_FORMAT) as tar:
            tar.add(state, "state")


def _submit(service: Service) -> dict[str, Any]:
    (service.data / "names.csv").write_text(NAMES)
    (service.data / "rows.csv").write_text(
        "g,v\n" + "".join(f"{i * i % 7},{'' if i % 9 == 0 else i % 23}\n" for i in range(200))
    )
    for stream in (STREAM, OTHER):
        assert service.http.put(f"/v1/streams/{stream}", json={"schema": DDL}).is_success
        for batch in range(2):
            post(service, stream, batch)
    streams = {name: service.submit(stream_spec(name)) for name in STREAMS}
    for name, job_id in streams.items():
        wait_for(f"rows of {name}", lambda job_id=job_id: has_read(service, job_id, 80), 180)  # type: ignore[misc]
    generations = {name: progress(service, job_id)["generation"] for name, job_id in streams.items()}
    batches = {name: service.submit({"name": name, **spec}) for name, spec in BATCHES.items()}
    return {"streams": streams, "generations": generations, "batches": batches}


if __name__ == "__main__":
    record(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
