"""Checks of files around mini-batches on real Spark: links to paths outside of the data roots, and changed files."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.config.settings import Settings
from service.contract.enums import JobStatus
from service.contract.problems import SpecError
from service.contract.tables import TableSource
from service.data.file_changes import Confines
from service.data.files import find_table_files
from service.data.roots import Root, roots_of
from service.sql.types.data_types import BIGINT, Field, Schema
from service.store.streaming_state import StreamStopReason
from tests.support.bench import Bench
from tests.support.object_store import ObjectStore
from tests.support.stream_runs import FIRST, PER_USER, add_orders, resume, rows, run, stream, supervised
from tests.support.tables import USERS, parquet
from workers.engine.spark.sources import TableInput
from workers.engine.streaming.query import Stage
from workers.engine.streaming.sinks.base import Staged
from workers.jobs.attempt import StopReason
from workers.streams.inputs import ConfinedReading, Inputs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from service.store.tables import JobRow

pytestmark = pytest.mark.spark

QUICK = {"mini_batch": {"allow_latency": "50ms"}, "state": {"partitions": 2}}
HUSH = "hush"


def secret_in(directory: Path, name: str, *, is_readable: bool = True) -> Path:
    """A file that would fit the stream, if it were read; or one of which Spark could but say what it begins with."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    if is_readable:
        columns = {"uid": pa.array([1], pa.int64()), "category": [HUSH], "price": [1.0]}
        pq.write_table(pa.table(columns), path)
    else:
        path.write_text(f"root:x:0:0:{HUSH}\n")
    return path


def reading_of_taken(tmp_path: Path, taken: Path) -> ConfinedReading:
    """For a checkpoint whose mini-batch 0 has taken the file `taken`."""
    log = tmp_path / "checkpoint" / "sources" / "0"
    log.mkdir(parents=True)
    line = json.dumps({"path": taken.as_uri(), "timestamp": 0, "batchId": 0})
    (log / "0").write_text(f"v1\n{line}\n")
    return ConfinedReading(tmp_path / "checkpoint", Confines([tmp_path]), Inputs)


class Joined:
    """Mini-batches of a stream that is joined with one static table, and a clock that stands still between them."""

    def __init__(self, directory: Path, root: Root) -> None:
        self.now = 0.0
        source = TableSource.model_validate({"format": "csv", "path": "t", "schema": "k BIGINT"})
        table = TableInput(source, find_table_files("t", source, [root]), Schema((Field("k", BIGINT),)))
        confines = Confines([directory])
        checkpoint = directory / "checkpoint"
        self.reading = ConfinedReading(checkpoint, confines, lambda: Inputs({"t": table}), clock=lambda: self.now)
        self._batches = count()

    def mini_batch(self, seconds: float, error: Exception | None = None) -> None:
        """One that ends after these seconds, with the error where that is given."""
        with self.reading(next(self._batches)):
            self.now += seconds
            if error is not None:
                raise error


@pytest.fixture
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of two files has many."""
    monkeypatch.setattr("workers.streams.inputs._FEW_FILES", 1)


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A data root with the table `t` of two files."""
    (tmp_path / "t").mkdir()
    for number in range(2):
        (tmp_path / "t" / f"{number}.csv").write_text("1\n")
    return tmp_path


def refused(job: JobRow) -> dict[str, Any]:
    """The error of a stream that was stopped for a link."""
    assert job.error is not None
    assert (job.status, job.error["code"]) == (JobStatus.STOPPED, "path_outside_data_roots")
    assert HUSH not in str(job.error)
    return job.error


@pytest.mark.withstands(
    "a link appears in the directory of a running stream",
    kind="attack",
    how="a link to a file or a directory outside the data roots is added to the files of a continuous job",
    times=2,
    guaranteed="`path_outside_data_roots` names the link before anything is read; the job continues after the link is "
    "removed",
)
@pytest.mark.parametrize("is_directory", [False, True])
def test_a_link_to_a_path_outside_the_roots_stops_a_running_stream(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_directory: bool
) -> None:
    written: list[int] = []
    write = Stage.write

    def noting(stage: Stage, frame: DataFrame, batch_id: int) -> Staged:
        written.append(batch_id)
        return write(stage, frame, batch_id)

    monkeypatch.setattr(Stage, "write", noting)
    orders = bench.settings.state_dir / "data" / "orders"
    job_id = bench.submit({**PER_USER, "mode": "continuous", "settings": QUICK})
    assert run(bench, job_id).status == JobStatus.RUNNING
    supervised(bench, lambda: stream(bench, job_id).rows_in == 10_000)
    # Links that stay inside are the operator's own affair.
    inside = secret_in(orders.parent / "archive", "1.parquet")
    (orders / "inside.parquet").symlink_to(inside)
    supervised(bench, lambda: stream(bench, job_id).rows_in == 10_001)

    secret = secret_in(tmp_path / "elsewhere", f"{HUSH}.parquet")
    link = orders / ("way" if is_directory else "out [é]+%20.parquet")
    link.symlink_to(secret.parent if is_directory else secret, target_is_directory=is_directory)
    supervised(bench, lambda: not bench.running_attempts.all())
    job = bench.job(job_id)
    expected = f"'orders/' contains the link '{link.name}' to a path outside of the data roots"
    assert refused(job)["detail"].startswith(expected)
    assert stream(bench, job_id).stopped_because == StreamStopReason.FAILED
    assert written[-1] == stream(bench, job_id).last_batch
    known = [[0, 100, 7], [1, 101, 8], [2, 100, 7]]
    assert (rows(bench, job_id), stream(bench, job_id).rows_in) == (known, 10_001)

    # Whoever resumes it with the link in place is told the same.
    resume(bench, job_id)
    assert f"the link '{link.name}'" in refused(run(bench, job_id))["detail"]
    link.unlink()
    add_orders(bench, "part-9.parquet", [2], "new")
    resume(bench, job_id)
    run(bench, job_id)
    supervised(bench, lambda: stream(bench, job_id).rows_in == 10_002)
    assert rows(bench, job_id) == [[0, 100, 7], [1, 101, 8], [2, 101, 8]]


@pytest.mark.withstands(
    "a file is replaced by a link while a stream reads it",
    kind="attack",
    how="a new file of a stream, or a file of a static table, becomes a link out of the data roots after its check",
    times=3,
    guaranteed="the mini-batch fails; no row and no text of the link's target stays in the state or the sink",
)
@pytest.mark.parametrize(
    "swapped",
    ["readable", pytest.param("unreadable", marks=pytest.mark.slow), pytest.param("static", marks=pytest.mark.slow)],
)
def test_what_was_read_through_a_link_is_not_kept(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    data = bench.settings.state_dir / "data"
    joined = {
        **PER_USER,
        "tables": {"orders": {**parquet("orders"), "role": "stream"}, "u": {**USERS, "role": "static"}},
        "sql": "SELECT o.uid, COUNT(*) AS n, COUNT(DISTINCT o.category) AS c FROM orders o JOIN u ON o.uid = u.uid "
        "WHERE o.uid < 3 GROUP BY o.uid",
    }
    job_id = bench.submit(joined if swapped == "static" else PER_USER)
    run(bench, job_id)
    assert rows(bench, job_id) == FIRST
    add_orders(bench, "part-9.parquet", [1], "new")
    victim = data / "users" / "users.csv" if swapped == "static" else data / "orders" / "part-9.parquet"
    kept = victim.read_bytes()
    secret = secret_in(tmp_path / "elsewhere", f"{HUSH}.parquet", is_readable=swapped == "readable")
    if swapped == "static":
        secret.write_text(f"uid,name\n1,{HUSH}\n1,{HUSH}\n1,{HUSH}\n")
    write = Stage.write

    def after_a_swap(stage: Stage, frame: DataFrame, batch_id: int) -> Staged:
        victim.unlink()
        victim.symlink_to(secret)
        return write(stage, frame, batch_id)

    resume(bench, job_id)
    with monkeypatch.context() as patched:
        patched.setattr(Stage, "write", after_a_swap)
        error = refused(run(bench, job_id))
    table, link = ("u", "users.csv") if swapped == "static" else ("orders", "part-9.parquet")
    assert f"contains the link '{link}'" in error["detail"]
    assert error["errors"][0]["pointer"] == f"/tables/{table}/path"
    assert rows(bench, job_id) == FIRST
    generation = bench.settings.streams_dir / job_id / "g1"
    assert [path.name for path in (generation / "stage").glob("*")] == []

    victim.unlink()
    victim.write_bytes(kept)
    resume(bench, job_id)
    assert run(bench, job_id).error is None
    # Exactly: the state forgot what it had been given.
    assert rows(bench, job_id) == [[0, 100, 7], [1, 101, 8], [2, 100, 7]]


@pytest.mark.parametrize("change", ["written", "removed"])
def test_a_static_table_that_changes_stops_the_stream(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    users = bench.settings.state_dir / "data" / "users" / "users.csv"
    job_id = bench.submit(
        {
            **PER_USER,
            "tables": {"orders": {**parquet("orders"), "role": "stream"}, "u": {**USERS, "role": "static"}},
            "sql": "SELECT o.uid, COUNT(*) AS n, COUNT(DISTINCT o.category) AS c FROM orders o JOIN u ON o.uid = u.uid "
            "WHERE o.uid < 3 GROUP BY o.uid",
            "schedule": {"every": "1h"},
        }
    )
    write = Stage.write

    def then_change(stage: Stage, frame: DataFrame, batch_id: int) -> Staged:
        staged = write(stage, frame, batch_id)
        if change == "written":
            users.write_text("uid,name\n1,one\n")
        else:
            users.rename(users.with_name("_aside"))
        return staged

    with monkeypatch.context() as patched:
        patched.setattr(Stage, "write", then_change)
        job = run(bench, job_id)
    assert job.error is not None
    assert (job.status, job.error["code"]) == (JobStatus.STOPPED, "files_changed")
    assert "The file 'users.csv' of the table 'u' " in job.error["detail"]
    assert job.error["errors"][0]["pointer"] == "/tables/u/path"
    assert stream(bench, job_id).rows_out == 0
    assert job.next_run_at is not None, "the next run may succeed"
    if change == "removed":
        users.with_name("_aside").rename(users)
    resume(bench, job_id)
    assert run(bench, job_id).error is None
    assert rows(bench, job_id) == (FIRST if change == "removed" else [FIRST[1]])


@pytest.mark.parametrize("change", ["written", "removed"])
def test_a_file_of_a_stream_that_is_written_while_it_is_read_stops_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    job_id = bench.submit(PER_USER)
    assert run(bench, job_id).error is None
    add_orders(bench, "part-9.parquet", [1], "new")
    write = Stage.write

    def then_change(stage: Stage, frame: DataFrame, batch_id: int) -> Staged:
        staged = write(stage, frame, batch_id)
        if change == "written":
            add_orders(bench, "part-9.parquet", [1, 2], "newer")
        else:
            (bench.settings.state_dir / "data" / "orders" / "part-9.parquet").unlink()
        return staged

    resume(bench, job_id)
    with monkeypatch.context() as patched:
        patched.setattr(Stage, "write", then_change)
        job = run(bench, job_id)
    if change == "removed":
        # It was read once, and wholly.
        assert job.error is None
        assert rows(bench, job_id) == [[0, 100, 7], [1, 101, 8], [2, 100, 7]]
        return
    assert job.error is not None
    assert (job.status, job.error["code"]) == (JobStatus.STOPPED, "files_changed")
    assert "The file 'part-9.parquet' of a stream was written" in job.error["detail"]
    assert job.error["errors"][0]["pointer"] == "/tables/orders/path"
    assert rows(bench, job_id) == FIRST
    resume(bench, job_id)
    assert run(bench, job_id).error is None
    assert rows(bench, job_id) == [[0, 100, 7], [1, 101, 8], [2, 101, 8]]


def other_permissions(path: Path) -> None:
    path.chmod(0o600)


def other_link(path: Path) -> None:
    path.with_name("backup").hardlink_to(path)


@pytest.mark.parametrize("change", [other_permissions, other_link], ids=lambda change: change.__name__)
def test_a_file_whose_bytes_do_not_change_is_accepted(tmp_path: Path, change: Callable[[Path], None]) -> None:
    taken = tmp_path / "part-0.csv"
    taken.write_text("1\n")
    reading = reading_of_taken(tmp_path, taken)
    with reading(0):
        before, probe = taken.stat().st_ctime_ns, tmp_path / "probe"
        probe.touch()
        while probe.stat().st_ctime_ns <= before:
            probe.touch()
        change(taken)
        assert taken.stat().st_ctime_ns != before
    with pytest.raises(SpecError, match=r"The file '.*part-0\.csv' of a stream was written"), reading(0):
        taken.write_text("12\n")


def test_a_table_in_a_store_is_listed_once_a_minute_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, object_store: ObjectStore
) -> None:
    object_store.make_bucket("joined")
    object_store.put("joined", {"t/0.csv": b"1", "t/deep/1.csv": b"1"})
    for name, value in object_store.variables("s3a://joined").items():
        monkeypatch.setenv(name, value)
    (root,) = roots_of(Settings())
    joined = Joined(tmp_path, root)

    def listings(step: Callable[[], None]) -> int:
        before = len(object_store.requests())
        step()
        return len(object_store.requests()) - before

    # Two directories.
    assert [listings(lambda: joined.mini_batch(1.0)) for _ in range(61)] == [2, *[0] * 59, 2]
    assert listings(joined.reading.check_at_end) == 0, "no mini-batch was run since the last check"
    assert listings(lambda: joined.mini_batch(1.0)) == 0
    assert [listings(joined.reading.check_at_end) for _ in range(2)] == [2, 0]
    joined.mini_batch(59.0)
    object_store.put("joined", {"t/deep/1.csv": b"12"})
    # What failed does not wait for a store.
    with pytest.raises(ValueError, match=r"^failed$"):
        joined.mini_batch(1.0, ValueError("failed"))
    checks: list[Callable[[], None]] = [lambda: joined.mini_batch(0.0), joined.reading.check_at_end]
    for check in checks:
        with pytest.raises(SpecError, match=r"The file 'deep/1\.csv' of the table 't' has changed") as caught:
            check()
        assert "Mini-batches since the previous check may have mixed" in str(caught.value)
    roots_of.cache_clear()


def test_a_table_of_few_local_files_is_checked_after_each_mini_batch(local: Path) -> None:
    joined = Joined(local, local)
    joined.mini_batch(1.0)
    (local / "t" / "1.csv").write_text("12\n")
    with pytest.raises(SpecError, match="so nothing of it is kept"):
        joined.mini_batch(1.0)


@pytest.mark.usefixtures("few_files")
def test_a_table_of_many_local_files_is_checked_once_a_minute(local: Path) -> None:
    joined = Joined(local, local)
    joined.mini_batch(1.0)
    (local / "t" / "1.csv").write_text("12\n")
    joined.mini_batch(59.0)
    for error in (None, ValueError("failed")):
        with pytest.raises(SpecError, match="may have mixed old and new rows"):
            joined.mini_batch(1.0, error)


@pytest.mark.usefixtures("few_files")
def test_a_static_table_of_many_files_is_checked_when_the_stream_stops(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.streams.inputs._CHECK_SECONDS", 1e9)
    users = bench.settings.state_dir / "data" / "users"
    (users / "more.csv").write_text("uid,name\n9,nine\n")
    job_id = bench.submit(
        {
            **PER_USER,
            "mode": "continuous",
            "settings": QUICK,
            "tables": {"orders": {**parquet("orders"), "role": "stream"}, "u": {**USERS, "role": "static"}},
            "sql": "SELECT o.uid, COUNT(*) AS n FROM orders o JOIN u ON o.uid = u.uid WHERE o.uid < 3 GROUP BY o.uid",
        }
    )
    assert run(bench, job_id).status == JobStatus.RUNNING
    supervised(bench, lambda: stream(bench, job_id).rows_in == 10_000)
    (users / "more.csv").write_text("uid,name\n10,ten\n")
    add_orders(bench, "part-9.parquet", [1], "new")
    supervised(bench, lambda: stream(bench, job_id).rows_in == 10_001)
    (attempt,) = bench.running_attempts.all()
    attempt.stop(StopReason.STOP_REQUESTED)
    supervised(bench, lambda: not bench.running_attempts.all())
    job = bench.job(job_id)
    assert job.error is not None
    assert (job.status, job.error["code"]) == (JobStatus.STOPPED, "files_changed")
    assert stream(bench, job_id).stopped_because == StreamStopReason.FAILED
    assert "The file 'more.csv' of the table 'u' has changed" in job.error["detail"]
    assert rows(bench, job_id) == [[0, 100], [1, 101], [2, 100]]
