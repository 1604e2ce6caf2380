"""Lookup tables of streaming jobs on real Spark."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.config.settings import Settings
from service.contract.enums import JobStatus
from service.contract.problems import SpecError
from service.store import streaming_jobs
from service.store.attempts import attempts_of
from tests.support.bench import Bench, SharedDriver
from tests.support.stream_runs import PER_USER, resume, rows, run, stream, supervised
from workers.jobs.attempt import StopReason
from workers.process.job_runner import JobRunner
from workers.streams.inputs import StreamPlans

pytestmark = pytest.mark.spark

NAMES: dict[str, Any] = {
    "tables": {
        "c": {"format": "parquet", "path": "clicks/", "role": "stream"},
        "u": {"format": "parquet", "path": "names/", "role": "static", "refresh": True},
    },
    "sql": "SELECT u.name, COUNT(*) AS n, COUNT(DISTINCT c.page) AS p FROM c JOIN u ON c.uid = u.uid GROUP BY u.name",
}
"""Clicks beside names of users that change: how often, and on how many pages, by name."""


class Clicks:
    """Clicks that come, names that change, and the answer by the names that there were when a click was read."""

    def __init__(self, bench: Bench) -> None:
        self._data = bench.settings.state_dir / "data"
        self._read: list[tuple[str, int]] = []
        self._names: dict[int, str] = {}
        self._files = 0
        for name in ("clicks", "names"):
            (self._data / name).mkdir()

    def name(self, **changed: str) -> None:
        """Writes the names' file again, in its place: those of the users `u1`, `u2` and so on."""
        self._names = {int(user[1:]): name for user, name in changed.items()}
        users = pa.table({"uid": pa.array(self._names, pa.int64()), "name": list(self._names.values())})
        pq.write_table(users, self._data / "names" / "0.parquet")

    def come(self, *users: int) -> None:
        """One more file, of which each row is a click on a page of its own. They are joined with the names of now."""
        self._files += 1
        pages = [len(self._read) + place for place in range(len(users))]
        self._read += [(self._names[user], page) for user, page in zip(users, pages, strict=True)]
        hidden = self._data / "clicks" / ".hidden"
        pq.write_table(pa.table({"uid": pa.array(users, pa.int64()), "page": pages}), hidden)
        hidden.rename(hidden.with_name(f"{self._files}.parquet"))

    @property
    def expected(self) -> list[list[Any]]:
        """The result."""
        counted = Counter(name for name, _ in self._read)
        return [[name, counted[name], counted[name]] for name in sorted(counted)]


def followed(bench: Bench, job_id: str) -> dict[str, Any]:
    """What is told of the only table that is followed; nothing before the first look."""
    return next(iter((stream(bench, job_id).metrics or {}).get(streaming_jobs.FOLLOWED, [])), {})


def not_taken(bench: Bench, job_id: str) -> str | None:
    """The code of the reason why it is not taken as it is."""
    return (followed(bench, job_id).get("not_taken") or {}).get("code")


def test_a_repeated_mini_batch_uses_the_same_version_of_a_lookup_table(bench: Bench) -> None:
    clicks = Clicks(bench)
    clicks.name(u1="a", u2="b")
    job_id = bench.submit({**PER_USER, **NAMES})
    clicks.come(1, 1, 2)
    assert run(bench, job_id).error is None
    assert rows(bench, job_id) == clicks.expected
    kept = bench.settings.streams_dir / job_id / "g1"
    # As if everything had been killed when the sink had the mini-batch, and Spark had not noted it.
    for path in (kept / "checkpoint" / "commits" / "0", kept / "checkpoint" / "commits" / ".0.crc"):
        path.unlink()
    resume(bench, job_id)
    clicks.name(u1="b", u2="c")
    clicks.come(1, 2)
    assert run(bench, job_id).error is None
    assert rows(bench, job_id) == clicks.expected
    with bench.database.read() as session:
        told = {batch.batch_id: batch.metrics for batch in streaming_jobs.batches_before(session, job_id, None, 10)}
    assert {number: (metrics or {}).get("versions") for number, metrics in told.items()} == {0: {"u": 1}, 1: {"u": 2}}
    assert (followed(bench, job_id)["version"], followed(bench, job_id)["since_batch"]) == (2, 1)
    assert [path.name for path in kept.glob("dimensions/u-*/*")] == ["v2"]


def test_an_unreadable_version_of_a_lookup_table_can_be_replaced(bench: Bench) -> None:
    names = bench.settings.state_dir / "data" / "names"
    clicks = Clicks(bench)
    clicks.name(u1="a", u2="b")
    (names / "0.parquet").unlink()
    (names / "0.csv").write_text("1,a\ntwo,b\n")
    clicks.come(1, 2)
    table = {**NAMES["tables"]["u"], "format": "csv", "schema": "uid BIGINT, name STRING", "options": {"header": False}}
    # A table that is broadcast is read before the mini-batch begins: nothing is decided yet.
    sql = NAMES["sql"].replace("SELECT", "SELECT /*+ MERGE(u) */", 1)
    job_id = bench.submit({**PER_USER, "sql": sql, "tables": {**NAMES["tables"], "u": table}})
    failed = run(bench, job_id)
    assert failed.error is not None
    assert failed.error["code"] == "corrupt_file"
    assert "'names/0.csv' (of the lookup table 'u'" in failed.error["detail"]
    assert str(bench.settings.state_dir) not in failed.error["detail"]
    kept = bench.settings.streams_dir / job_id / "g1" / "versions"
    assert [path.name for path in kept.glob("0-*.json")] == ["0-1.json"]
    (names / "0.csv").write_text("1,a\n2,b\n")
    resume(bench, job_id)
    assert run(bench, job_id).error is None
    assert rows(bench, job_id) == clicks.expected
    assert (followed(bench, job_id)["version"], followed(bench, job_id)["since_batch"]) == (2, 0)


def test_an_error_outside_of_a_mini_batch_is_reported_as_it_is(bench: Bench) -> None:
    data = bench.settings.state_dir / "data"
    Clicks(bench).name(u1="a")
    pq.write_table(pa.table({"uid": [1], "page": [0]}), data / "clicks" / "1.parquet")
    (data / "names" / "0.parquet").unlink()
    (data / "names" / "0.csv").write_text("one,a\n")
    table = {**NAMES["tables"]["u"], "format": "csv", "schema": "uid BIGINT, name STRING"}
    # Spark reads what it broadcasts before it calls us.
    sql = NAMES["sql"].replace("SELECT", "SELECT /*+ BROADCAST(u) */", 1)
    job = run(bench, bench.submit({**PER_USER, "sql": sql, "tables": {**NAMES["tables"], "u": table}}))
    assert job.error is not None
    assert (job.status, job.error["code"], job.error["status"]) == (JobStatus.STOPPED, "corrupt_file", 422)
    assert '"one" is not a number' in job.error["detail"]
    assert "'names/0.csv' (of the lookup table 'u'" in job.error["detail"]
    for hidden in ("Identifier", str(bench.settings.state_dir)):
        assert hidden not in job.error["detail"]


def test_a_running_job_uses_a_changed_lookup_table(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_WORKER_FOLLOW_SECONDS", "0.1")
    bench.runner = JobRunner(
        Settings(), bench.database, SharedDriver(bench.driver), bench.running_attempts, "w1", bench.announce
    )
    clicks = Clicks(bench)
    clicks.name(u1="a", u2="b")
    clicks.come(1, 2)
    quick = {"mini_batch": {"allow_latency": "50ms"}, "state": {"partitions": 2}}
    job_id = bench.submit({**PER_USER, **NAMES, "mode": "continuous", "settings": quick})
    assert run(bench, job_id).status == JobStatus.RUNNING
    (attempt,) = bench.running_attempts.all()
    supervised(bench, lambda: stream(bench, job_id).rows_in == 2 and followed(bench, job_id)["since_batch"] == 0)

    clicks.name(u1="b", u2="c")
    supervised(bench, lambda: followed(bench, job_id)["version"] == 2)
    clicks.come(1, 2)
    supervised(bench, lambda: stream(bench, job_id).rows_in == 4)
    assert rows(bench, job_id) == clicks.expected

    names = bench.settings.state_dir / "data" / "names"

    def refuse(*_: object) -> None:
        raise SpecError.of("unreadable_file", "Spark cannot read it.")

    with monkeypatch.context() as broken:
        broken.setattr(StreamPlans, "plan", refuse)
        pq.write_table(pa.table({"uid": [1, 2], "name": ["x", "y"]}), names / "0.parquet")
        supervised(bench, lambda: not_taken(bench, job_id) == "unreadable_file")
    pq.write_table(pa.table({"uid": ["1"], "name": ["d"]}), names / "0.parquet")
    supervised(bench, lambda: not_taken(bench, job_id) == "schema_changed")
    (names / "0.parquet").unlink()
    supervised(bench, lambda: not_taken(bench, job_id) == "empty_directory")
    clicks.come(1, 1)
    supervised(bench, lambda: stream(bench, job_id).rows_in == 6)
    assert rows(bench, job_id) == clicks.expected
    assert followed(bench, job_id)["version"] == 2

    attempt.stop(StopReason.STOP_REQUESTED)
    supervised(bench, lambda: not bench.running_attempts.all())
    with bench.database.read() as session:
        assert len(attempts_of(session, job_id)) == 1
