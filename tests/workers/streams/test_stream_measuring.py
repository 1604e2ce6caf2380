"""The metrics of a stream, which are returned again until they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from service.data.file_changes import Confines, local_arrivals
from service.store.session import Database
from workers.engine.streaming.query import BatchProgress
from workers.metrics import WorkerMetrics
from workers.streams.backlog import BacklogWatch, WatchedDirectory
from workers.streams.batch_metrics import StreamMetrics

pytestmark = pytest.mark.one_database


@pytest.fixture
def measuring(database_url: str, tmp_path: Path) -> Iterator[StreamMetrics]:
    """Of a stream with a file that waits."""
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "1.csv").write_text("1\n")
    streams = [WatchedDirectory("t", f"file://{rows}", lambda: local_arrivals(rows, Confines([rows])))]
    with closing(Database(database_url)) as database:
        watch = BacklogWatch(streams, tmp_path / "checkpoint", database, ("t",), lambda: 0.0)
        yield StreamMetrics(tmp_path / "checkpoint", watch, None, WorkerMetrics())


def test_a_backlog_that_was_not_stored_is_returned_again(measuring: StreamMetrics) -> None:
    told = measuring.measure((), (), at_end=False)
    assert told.backlog is not None
    assert told.backlog["tables"]["t"]["files"] == 1
    # As it is where the database is away just then.
    assert measuring.measure((), (), at_end=False) == told
    measuring.stored(told)
    assert not measuring.measure((), (), at_end=False)


def test_a_backlog_that_was_stored_with_a_mini_batch_is_not_returned_again(measuring: StreamMetrics) -> None:
    batch = BatchProgress(batch_id=0, duration_ms=5, durations_ms={}, watermark=None, state=(), sources=())
    told = measuring.measure([batch], (), at_end=False)
    assert measuring.measure((), (), at_end=False).backlog == told.measures[0].metrics["backlog"]
    measuring.stored(told)
    assert not measuring.measure((), (), at_end=False)
