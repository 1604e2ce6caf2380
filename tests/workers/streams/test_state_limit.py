"""The limit of a stream's disk space."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from workers.engine.streaming.query import BatchDone
from workers.streams.state_limit import StateLimit, StateLimitError, bytes_below


class Inner:
    """A fence that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def begin(self, batch_id: int) -> None:
        """See `BatchFence`."""
        self.calls.append(("begin", batch_id))

    def finish(self, done: BatchDone) -> None:
        """See `BatchFence`."""
        self.calls.append(("finish", done.batch_id))


def _write(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


def test_the_files_of_the_state_are_measured_from_time_to_time(tmp_path: Path) -> None:
    inner, now = Inner(), [100.0]
    directories = (tmp_path / "checkpoint", tmp_path / "changes")
    limit = StateLimit(inner, directories, 1000, 0, lambda: now[0])
    limit.begin(0)
    limit.finish(BatchDone(0, 1, 1, None))
    _write(directories[0] / "state" / "0" / "1.delta", 600)
    _write(directories[1] / "0" / "1" / "1-0.arrow", 600)
    (directories[1] / "link").symlink_to(directories[0])
    limit.begin(1)
    now[0] += 11
    with pytest.raises(StateLimitError, match=re.escape("more than 'state.limit', 1000b")) as caught:
        limit.begin(2)
    assert caught.value.code == "state_limit_exceeded"
    assert inner.calls == [("begin", 0), ("finish", 0), ("begin", 1), ("begin", 2)]
    (directories[0] / "state" / "0" / "1.delta").unlink()
    limit.begin(2)
    assert bytes_below(tmp_path / "none") == 0


class Usage(NamedTuple):
    """See `shutil.disk_usage`."""

    total: int
    used: int
    free: int


def test_a_disk_that_is_almost_full_stops_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [5 << 20]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 30, 0, free[0]))
    limit = StateLimit(Inner(), (tmp_path,), None, 4 << 20, lambda: 0.0)
    limit.begin(0)
    free[0] = 3 << 20
    with pytest.raises(StateLimitError, match="has 3MB of free space, less than EVENKEEL_LIMITS_FREE_BYTES, 4MB"):
        StateLimit(Inner(), (tmp_path,), None, 4 << 20, lambda: 0.0).begin(1)
    StateLimit(Inner(), (tmp_path,), None, 0, lambda: 0.0).begin(1)
