"""Tests of streams with a lookup table that changes, while workers and JVMs are killed: results must be exact.

All rows of a table contain its version, so that results show with which version each posted row was joined.
"""

from __future__ import annotations

import logging
import os
import random
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.support.changing_table import ChangingTable
from tests.support.feeding import Feeder, Row, declare_over_http, over_http
from tests.support.production import Api, Production, running_production
from tests.support.streaming import ENVIRONMENT, Instant, StreamJob, Strikes, stream_job

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

_log = logging.getLogger(__name__)

SEED = int(os.environ.get("EVENKEEL_TEST_SEED", "20"))

# A table must be unchanged for this long: much longer than it is partially written.
FOLLOWING = {**ENVIRONMENT, "EVENKEEL_WORKER_FOLLOW_SECONDS": "1"}

STREAM = "clicks"

KEYS = [f"k{number}" for number in range(100)]

REST_SECONDS = (5.0, 8.0)
"""The time between two changes of a table. A starting attempt waits two seconds for a complete table, several times."""

COUNTED = (
    "SELECT d.version, COUNT(*) AS n, COUNT(DISTINCT t.x) AS d, MIN(t.x) AS low, MAX(t.x) AS high, SUM(t.x) AS s "
    "FROM t JOIN d ON t.k = d.k GROUP BY d.version"
)

EACH = "SELECT t.x, d.version FROM t JOIN d ON t.k = d.k"


class Numbered:
    """Rows that are numbered from 0 in the order of their posts, with the time of each."""

    def __init__(self) -> None:
        self.made: list[int] = []
        """The time of each row in milliseconds since the epoch."""

    def __call__(self, random_: random.Random, begin: datetime) -> list[Row]:
        rows: list[Row] = []
        for _ in range(random_.randint(1, 12)):
            rows.append((random_.choice(KEYS), len(self.made), None, begin))
            self.made.append(time.time_ns() // 1_000_000)
        return rows


@dataclass(frozen=True)
class Rows:
    """Statistics of the rows that were joined with one version: count, distinct count, smallest and largest number, and
    sum.
    """

    n: int
    different: int
    low: int
    high: int
    total: int

    @classmethod
    def of(cls, numbers: list[int]) -> Rows:
        return cls(len(numbers), len(set(numbers)), min(numbers), max(numbers), sum(numbers))


@dataclass(frozen=True)
class Follower:
    """A job, its lookup table and its output. `read` returns the result by version, and `taken` the last mini-batch in
    its sink, -1 for none.
    """

    job: StreamJob
    table: ChangingTable
    kept: Path
    read: Callable[[], dict[int, Rows]]
    taken: Callable[[], int]
    in_use: list[tuple[int, int]] = field(default_factory=list)
    """The time by version, in milliseconds since the epoch, after which new rows use no older version."""

    def in_sink_alone(self) -> int | None:
        """Returns the mini-batch that its sink has but that Spark has not committed: after a kill, it is repeated."""
        taken = self.taken()
        noted = (int(path.name) for path in (self.kept / "checkpoint" / "commits").glob("[0-9]*"))
        return taken if taken > max(noted, default=-1) else None

    def wait_until_joined(self, number: int) -> None:
        """Waits until the result contains a row."""

        def is_joined() -> bool:
            return any(rows.high >= number for rows in self.read().values())

        self.job.wait_for(f"row {number}", is_joined, seconds=60)

    def strike(self, kill: Callable[[Instant], int]) -> None:
        """Kills the worker when only the sink has a mini-batch, and changes the table before that mini-batch is
        repeated. The table then stays unchanged until the next mini-batch is committed: a repeated mini-batch with the
        wrong version would have that version.
        """
        what = "its sink alone had mini-batch"
        with self.table.at_rest():
            fence = kill(Instant(self.job, what, self.in_sink_alone, lambda: self.table.change(at_once=True)))
            self.job.wait_for("two mini-batches of another attempt", lambda: self._has_done(2, after=fence))
            begun = min(attempt.started_at for attempt in self.job.attempts if attempt.fence > fence)
            self.in_use.append((begun, self.table.version))

    def _has_done(self, batches: int, *, after: int) -> bool:
        fence = self.job.row.fence
        return fence > after and self.job.committed(fence) >= batches


@pytest.fixture
def production(tmp_path: Path) -> Iterator[Production]:
    """An API and two workers with Spark ready, so that one takes over at once, on SQLite and the embedded broker."""
    environment = {
        **FOLLOWING,
        "EVENKEEL_DATA_SINK_ROOTS": str(tmp_path / "sinks"),
        "EVENKEEL_DATA_STREAMS": str(tmp_path / "streams"),
    }
    with running_production(tmp_path, None, apis=1, workers=2, environment=environment) as running:
        yield running


def submitted(production: Production, name: str, table: dict[str, Any], **further: Any) -> tuple[StreamJob, Path]:
    (api,) = production.apis
    tables = {"t": {"format": "stream", "stream": STREAM}, "d": {"role": "static", "refresh": True, **table}}
    job_id = api.submit(stream_job(name, STREAM, tables=tables, **further))
    return StreamJob(production.database, job_id, production.logs), production.directory / "streams" / job_id / "g1"


def counted(production: Production) -> Follower:
    """A job that counts rows by version. A difference between its state and its sink would be permanent."""
    table = ChangingTable(production.data / "names", "parquet", KEYS, SEED)
    job, kept = submitted(production, "counted", {"format": "parquet", "path": "names/"}, sql=COUNTED)
    (api,) = production.apis

    @cache
    def taken_at(version: int) -> int:
        last = DeltaTable(kept / "result", version=version).transaction_version(f"evenkeel/{job.id}/1")
        return -1 if last is None else int(last)

    def taken() -> int:
        return taken_at(max(int(path.stem) for path in (kept / "result" / "_delta_log").glob("[0-9]*.json")))

    def read() -> dict[int, Rows]:
        rows = [list(row.values()) for row in api.rows(job.id)]
        assert len({version for version, *_ in rows}) == len(rows), rows
        return {version: Rows(*numbers) for version, *numbers in rows}

    return Follower(job, table, kept, read, taken)


def joined(production: Production) -> tuple[Follower, Callable[[], dict[int, set[int]]]]:
    """A job that appends each row with its version to files, and a function that returns each mini-batch's versions."""
    table = ChangingTable(production.data / "lines", "csv", KEYS, SEED + 1)
    source = {"format": "csv", "path": "lines/", "schema": "k STRING, version BIGINT"}
    job, kept = submitted(production, "joined", source, sql=EACH, sink={"kind": "parquet", "path": "rows"})
    directory = production.directory / "sinks" / "rows"

    def parts() -> dict[int, list[tuple[int, int]]]:
        return {
            int(part.name.rpartition("b")[2]): [
                (row["x"], row["version"]) for file in part.glob("*.parquet") for row in pq.read_table(file).to_pylist()
            ]
            for part in directory.glob("part-g1-b*")
        }

    def taken() -> int:
        return max((int(part.name.rpartition("b")[2]) for part in directory.glob("part-g1-b*")), default=-1)

    def read() -> dict[int, Rows]:
        found: dict[int, list[int]] = {}
        for rows in parts().values():
            for number, version in rows:
                found.setdefault(version, []).append(number)
        return {version: Rows.of(numbers) for version, numbers in found.items()}

    def versions() -> dict[int, set[int]]:
        return {number: {version for _, version in rows} for number, rows in parts().items()}

    return Follower(job, table, kept, read, taken), versions


@pytest.mark.withstands(
    "workers and JVMs die while a lookup table changes",
    how="`kill -9` exactly between the sink's write and Spark's commit",
    times=2,
    guaranteed="each row is joined once, with one version of the table",
)
@pytest.mark.full
def test_each_row_is_joined_with_one_version_despite_kills(production: Production) -> None:
    (api,) = production.apis
    declare_over_http(api, STREAM)
    numbered = Numbered()
    feeder = Feeder(over_http(api, STREAM), SEED, make=numbered)
    by_version = counted(production)
    by_row, versions_of_batches = joined(production)
    all_of = (by_version, by_row)
    killer = Strikes(production, [follower.job for follower in all_of], SEED)
    strikes: list[Callable[[], None]] = [
        lambda: by_version.strike(killer.kill_worker_at),
        lambda: by_row.strike(killer.kill_jvm_at),
    ]
    random.Random(SEED).shuffle(strikes)
    with ExitStack() as stack:
        stack.enter_context(feeder.feeding())
        for follower in all_of:
            stack.enter_context(follower.table.changing(REST_SECONDS))
        for strike in strikes:
            strike()
        killer.wait_for_the_last()
    # For the analysis of a failure.
    _log.warning("seed %s: %s", SEED, "; ".join(killer.kills))
    changes = [(follower.table.version, round(follower.table.longest, 2)) for follower in all_of]
    _log.warning("%s rows, %s changes and seconds of the longest", len(numbered.made), changes)

    wait_for_the_newest(all_of, feeder)
    feeder.feed(3)
    for follower in all_of:
        follower.wait_until_joined(len(numbered.made) - 1)
        follower.job.stop()
        check_rows(follower, numbered)
    check_reported_versions(by_version, api)

    reported, versions = check_reported_versions(by_row, api), versions_of_batches()
    assert all(len(of_batch) == 1 for of_batch in versions.values()), versions
    # The reported version of a mini-batch is that of its rows, also for a repeated mini-batch.
    pairs = {(reported[number], *of_batch) for number, of_batch in versions.items() if number in reported}
    assert len({number for number, _ in pairs}) == len(pairs) > 2, pairs
    (followed,) = api.http.get(f"/v1/jobs/{by_row.job.id}/stream").json()["refreshed_tables"]
    newest = by_row.table.version
    assert (followed["version"], newest) in pairs
    assert followed["since_batch"] == min(number for number, of_batch in versions.items() if newest in of_batch)
    assert followed["refresh_error"] is None


def wait_for_the_newest(all_of: Sequence[Follower], feeder: Feeder) -> None:
    """Changes the tables once more and waits until new rows are joined with the new versions."""
    for follower in all_of:
        follower.table.change()

    def are_used() -> bool:
        feeder.feed(1)
        return all(follower.table.version in follower.read() for follower in all_of)

    all_of[0].job.wait_for("the newest versions", are_used, seconds=60)


def check_rows(follower: Follower, numbered: Numbered) -> None:
    """Checks that each row was joined once, with a version that is not older than that of the row before it and that
    was in use when the row arrived.
    """
    found, table, made = follower.read(), follower.table, numbered.made
    versions, lows, next_row = sorted(found), [], 0
    for version in versions:
        lows.append(next_row)
        next_row = found[version].high + 1
        assert found[version] == Rows.of(list(range(lows[-1], next_row))), (version, found, table.longest)
    assert (next_row, versions[-1]) == (len(made), table.version)
    for begun, newest in follower.in_use:
        first = bisect_right(made, begun)
        assert versions[bisect_right(lows, first) - 1] >= newest, (first, newest, found)


def check_reported_versions(follower: Follower, api: Api) -> dict[int, int]:
    """Returns the version of each mini-batch as reported by the API, after checking that versions never decrease."""
    path, reported, cursor = f"/v1/jobs/{follower.job.id}/batches", {}, ""
    while True:
        page = api.http.get(path, params={"page_size": 200, "cursor": cursor}).json()
        for batch in page["batches"]:
            # A mini-batch is measured after its end, so its metrics can be lost with the worker.
            if (batch["metrics"] or {}).get("versions"):
                reported[int(batch["batch_id"])] = int(batch["metrics"]["versions"]["d"])
        cursor = page["next_cursor"]
        if not cursor:
            break
    in_order = [reported[number] for number in sorted(reported)]
    assert in_order == sorted(in_order), reported
    return reported
