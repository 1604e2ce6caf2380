"""The backlog of a stream, and how often it is measured."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from service.contract.job import JobSpec
from service.data.file_changes import Confines, local_arrivals
from service.sql.ddl import parse_schema
from service.store.input_streams import NewBatch, find_stream, insert_batch, insert_stream
from service.store.session import Database
from tests.support.clocks import ManualSeconds
from workers.streams.backlog import BacklogWatch, Occasion, Watched, WatchedDirectory, WatchedPosts, watched
from workers.streams.inputs import Posted, find_inputs

SOURCES = ("t",)


def begin(checkpoint: Path, batch_id: int, *paths: str, source: int = 0) -> None:
    """A mini-batch that takes these files."""
    log = checkpoint / "sources" / str(source)
    log.mkdir(parents=True, exist_ok=True)
    entries = [json.dumps({"path": path, "timestamp": 1, "batchId": batch_id}) for path in paths]
    (log / str(batch_id)).write_text("\n".join(["v1", *entries]))


def tables(backlog: dict[str, Any] | None) -> dict[str, Any]:
    assert backlog is not None
    found: dict[str, Any] = backlog["tables"]
    return found


def directory_of(root: Path, table: str = "t") -> WatchedDirectory:
    return WatchedDirectory(table, f"file://{root}", lambda: local_arrivals(root, Confines([root.parent])))


@pytest.mark.one_database
def test_files_are_in_the_backlog_until_a_mini_batch_reads_them(tmp_path: Path, database: Database) -> None:
    rows, elsewhere = tmp_path / "rows", tmp_path / "elsewhere.csv"
    (rows / "deep").mkdir(parents=True)
    elsewhere.write_text("12345")
    for name in ("a b.csv", "deep/2.csv", ".hidden.csv", "_started.csv"):
        (rows / name).write_text("123")
    os.utime(rows / "deep" / "2.csv", (0, 0))
    (rows / "link.csv").symlink_to(elsewhere)
    watch = BacklogWatch([directory_of(rows)], tmp_path / "checkpoint", database, SOURCES, ManualSeconds())
    found = tables(watch.measure(Occasion.BATCH))["t"]
    assert (found["files"], found["bytes"], found["rows"]) == (3, 11, None)
    assert found["oldest_seconds"] == watch.oldest_waiting_seconds > 1e9
    assert watch.waiting_bytes == 11
    begin(tmp_path / "checkpoint", 0, f"file://{rows}/deep/2.csv", f"file://{rows}/link.csv")
    found = tables(watch.measure(Occasion.BATCH))["t"]
    assert (found["files"], found["bytes"]) == (1, 3)
    # What a link leads to that leaves the data roots is nobody's to know.
    (rows / "out.csv").symlink_to("/etc/hostname")
    (rows / "out").symlink_to("/etc")
    assert tables(watch.measure(Occasion.BATCH))["t"] == found
    # Its name is encoded; and one that was taken and is gone says nothing.
    begin(tmp_path / "checkpoint", 1, f"file://{rows}/a%20b.csv", f"file://{rows}/gone.csv")
    assert tables(watch.measure(Occasion.BATCH))["t"] == {"files": 0, "rows": None, "bytes": 0, "oldest_seconds": None}


@pytest.mark.one_database
def test_a_directory_that_cannot_be_listed_has_an_unknown_backlog(tmp_path: Path, database: Database) -> None:
    watch = BacklogWatch([directory_of(tmp_path / "gone")], tmp_path, database, SOURCES)
    assert tables(watch.measure(Occasion.BATCH)) == {"t": None}


@pytest.mark.one_database
def test_measurements_take_a_fiftieth_of_the_time(tmp_path: Path, database: Database) -> None:
    clock = ManualSeconds()
    looks = []

    class Slow(WatchedDirectory):
        def waiting(self, database: Database, now: int) -> Any:
            looks.append(clock.now)
            clock.now += 2.0
            return super().waiting(database, now)

    slow: Watched = Slow("t", f"file://{tmp_path}", lambda: ())
    watch = BacklogWatch([slow], tmp_path, database, SOURCES, clock)
    for _ in range(1000):
        watch.measure(Occasion.BATCH)
        clock.now += 0.5
    assert looks == [0.0, 102.0, 204.0, 306.0, 408.0]


@pytest.mark.one_database
def test_without_mini_batches_the_backlog_is_measured_rarely(tmp_path: Path, database: Database) -> None:
    clock = ManualSeconds()
    (tmp_path / "rows").mkdir()
    watch = BacklogWatch([directory_of(tmp_path / "rows")], tmp_path / "checkpoint", database, SOURCES, clock)
    assert tables(watch.measure(Occasion.IDLE))["t"]["files"] == 0
    (tmp_path / "rows" / "1.csv").touch()
    clock.now = 4.0
    assert tables(watch.measure(Occasion.IDLE))["t"]["files"] == 0
    assert tables(watch.measure(Occasion.BATCH))["t"]["files"] == 1
    (tmp_path / "rows" / "2.csv").touch()
    assert tables(watch.measure(Occasion.END))["t"]["files"] == 2


@pytest.mark.one_database
def test_a_restored_file_is_not_in_the_backlog_again(tmp_path: Path, database: Database) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    watch = BacklogWatch([directory_of(rows)], tmp_path / "checkpoint", database, SOURCES, ManualSeconds())
    begin(tmp_path / "checkpoint", 0, f"file://{rows}/1.csv")
    assert tables(watch.measure(Occasion.BATCH))["t"]["files"] == 0
    (rows / "1.csv").touch()
    assert tables(watch.measure(Occasion.BATCH))["t"]["files"] == 0


@pytest.mark.one_database
def test_nested_directories_have_separate_backlogs(tmp_path: Path, database: Database) -> None:
    outer, inner = tmp_path / "a", tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    for path in (outer / "1.csv", inner / "2.csv"):
        path.touch()
    streams = [
        WatchedDirectory("outer", f"file://{outer}", lambda: local_arrivals(outer, Confines([outer]))),
        WatchedDirectory("inner", f"file://{inner}", lambda: local_arrivals(inner, Confines([inner]))),
    ]
    watch = BacklogWatch(streams, tmp_path / "checkpoint", database, ("inner", "outer"), ManualSeconds())
    # The first log is that of the inner one, whose file lies in both.
    begin(tmp_path / "checkpoint", 0, f"file://{inner}/2.csv")
    begin(tmp_path / "checkpoint", 0, f"file://{outer}/1.csv", f"file://{inner}/2.csv", source=1)
    found = tables(watch.measure(Occasion.BATCH))
    assert (found["outer"]["files"], found["inner"]["files"]) == (0, 0)
    (outer / "3.csv").touch()
    begin(tmp_path / "checkpoint", 1, f"file://{outer}/3.csv", source=1)
    assert tables(watch.measure(Occasion.BATCH))["outer"]["files"] == 0


@pytest.mark.one_database
def test_tables_over_one_directory_have_separate_logs(tmp_path: Path, database: Database) -> None:
    rows = tmp_path / "rows"
    (rows / "deep").mkdir(parents=True)
    for name in ("1.csv", "deep/2.csv"):
        (rows / name).touch()
    first, second, deep = directory_of(rows, "first"), directory_of(rows, "second"), directory_of(rows / "deep", "deep")
    # The plan reads the first table under two aliases. The fourth source lags.
    sources = ("first", "second", "first", "deep")
    watch = BacklogWatch([first, second, deep], tmp_path / "checkpoint", database, sources, ManualSeconds())
    begin(tmp_path / "checkpoint", 0, f"file://{rows}/1.csv", f"file://{rows}/deep/2.csv")
    begin(tmp_path / "checkpoint", 0, f"file://{rows}/1.csv", source=1)
    begin(tmp_path / "checkpoint", 0, f"file://{rows}/1.csv", source=2)
    found = tables(watch.measure(Occasion.BATCH))
    assert {name: table["files"] for name, table in found.items()} == {"first": 0, "second": 1, "deep": 1}
    begin(tmp_path / "checkpoint", 1, f"file://{rows}/deep/2.csv", source=3)
    assert tables(watch.measure(Occasion.BATCH))["deep"]["files"] == 0


def post(database: Database, *rows: int) -> None:
    for number in rows:
        with database.write() as session:
            stream = find_stream(session, "default", "clicks")
            assert stream is not None
            new = NewBatch(f"b{number}", "0" * 64, f"f{number}", rows=number, bytes=10 * number)
            assert insert_batch(session, stream, new, database.now(session)) is not None


def test_posted_rows_are_in_the_backlog_from_their_acceptance_on(tmp_path: Path, database: Database) -> None:
    with database.write() as session:
        insert_stream(session, tenant="default", name="clicks", stream_id="s1", ddl="k STRING", now=0)
    posted = Posted(tmp_path / "posted", parse_schema("k STRING", "/schema"))
    spec = JobSpec.model_validate(
        {
            "mode": "continuous",
            "tables": {"c": {"format": "stream", "stream": "clicks"}, "r": {"format": "rate", "role": "stream"}},
            "sql": "SELECT k, COUNT(*) AS n FROM c GROUP BY k",
        }
    )
    found = watched(spec, find_inputs(spec, (), {"clicks": posted}), (), "default")
    assert [type(one) for one in found] == [WatchedPosts]
    watch = BacklogWatch(found, tmp_path / "checkpoint", database, ("c",), ManualSeconds())
    post(database, 1, 2, 3, 4)
    told = tables(watch.measure(Occasion.BATCH))["c"]
    assert (told["files"], told["rows"], told["bytes"]) == (4, 10, 100)
    # The third one appears before the second.
    place = f"file://{posted.directory}"
    begin(tmp_path / "checkpoint", 0, f"{place}/000000000001-ab.parquet", f"{place}/000000000003-ab.parquet")
    told = tables(watch.measure(Occasion.BATCH))["c"]
    assert (told["files"], told["rows"], told["bytes"]) == (2, 6, 60)
    begin(tmp_path / "checkpoint", 1, *(f"{place}/00000000000{number}-ab.parquet" for number in (2, 4)))
    told = tables(watch.measure(Occasion.BATCH))["c"]
    assert (told["files"], told["rows"], told["oldest_seconds"]) == (0, 0, None)


def test_numbers_after_a_missing_batch_are_not_kept_for_ever() -> None:
    posts = WatchedPosts("c", "file:///c", "default", "clicks")
    for number in range(2, 5000):
        posts.mark_read(f"{number:012d}-ab.parquet")
    assert (posts._read_up_to, posts._read_later) == (4999, set())
