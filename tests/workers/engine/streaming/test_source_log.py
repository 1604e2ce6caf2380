"""The logs of files in a checkpoint, as recorded from Spark 4.3.0."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from workers.engine.streaming.sources import SourceLog, entries_before, logs_of


def line(entry: int) -> str:
    return json.dumps({"path": f"file:///d/a%20b/{entry}.csv", "timestamp": 1, "batchId": entry}, separators=(",", ":"))


def log(checkpoint: Path, entry: int, *, compact: bool = False) -> None:
    directory = checkpoint / "sources" / "0"
    directory.mkdir(parents=True, exist_ok=True)
    entries = range(entry + 1) if compact else (entry,)
    name = f"{entry}.compact" if compact else str(entry)
    (directory / name).write_text("\n".join(["v1", *map(line, entries)]))


def files(first: int, last: int) -> list[str]:
    return [f"file:///d/a b/{entry}.csv" for entry in range(first, last + 1)]


def test_every_file_is_returned_once(tmp_path: Path) -> None:
    log(tmp_path, 0)
    log(tmp_path, 1)
    (tmp_path / "sources" / "0" / ".2.tmp").write_text("v1")
    (path,) = logs_of(tmp_path)
    taken = SourceLog(path)
    assert list(taken.new()) == files(0, 1)
    assert list(taken.new()) == []
    log(tmp_path, 2)
    assert list(taken.new()) == files(2, 2)


def test_compact_entries_are_read_for_new_files(tmp_path: Path) -> None:
    log(tmp_path, 7)
    log(tmp_path, 8)
    log(tmp_path, 9, compact=True)
    log(tmp_path, 10)
    taken = SourceLog(tmp_path / "sources" / "0")
    assert list(taken.new()) == files(0, 10)
    for entry in range(11, 19):
        log(tmp_path, entry)
    assert list(taken.new()) == files(11, 18)
    log(tmp_path, 19, compact=True)
    log(tmp_path, 20)
    assert list(taken.new()) == files(19, 20)


def test_an_unreadable_entry_is_read_again(tmp_path: Path) -> None:
    log(tmp_path, 0)
    broken = tmp_path / "sources" / "0" / "1"
    broken.write_text("v1\n{")
    given: list[str] = []
    taken = SourceLog(tmp_path / "sources" / "0")
    with pytest.raises(ValueError, match="Expecting"):
        given.extend(taken.new())
    log(tmp_path, 1)
    assert [*given, *taken.new()] == files(0, 1)


def test_a_name_that_is_not_utf8_is_decoded_as_in_listings(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("v1\n" + json.dumps({"path": "file:///d/%C3%A9%FF.csv", "batchId": 0}))
    assert list(SourceLog(tmp_path).new()) == ["file:///d/" + os.fsdecode(b"\xc3\xa9\xff.csv")]


def test_logs_of_other_sources_have_no_files(tmp_path: Path) -> None:
    assert logs_of(tmp_path) == []
    for source in (10, 2):
        (tmp_path / "sources" / str(source)).mkdir(parents=True)
        (tmp_path / "sources" / str(source) / "0").write_text("v1\n1795371148048")
    assert [path.name for path in logs_of(tmp_path)] == ["2", "10"]
    assert list(SourceLog(logs_of(tmp_path)[0]).new()) == []
    (tmp_path / "sources" / "2" / "0").unlink()
    assert list(SourceLog(logs_of(tmp_path)[0]).new()) == []


def offsets(checkpoint: Path, batch_id: int, *told: str, version: str = "v1") -> None:
    (checkpoint / "offsets").mkdir(exist_ok=True)
    (checkpoint / "offsets" / str(batch_id)).write_text("\n".join([version, '{"batchWatermarkMs":0}', *told]))


def at(entry: int) -> str:
    return json.dumps({"logOffset": entry}, separators=(",", ":"))


def test_entries_before_a_mini_batch_are_found(tmp_path: Path) -> None:
    for source in (0, 1, 2):
        (tmp_path / "sources" / str(source)).mkdir(parents=True)
    logs = logs_of(tmp_path)
    assert entries_before(tmp_path, 0) == dict.fromkeys(logs, -1)
    # Of files, of something else, and of a source that has had nothing so far.
    offsets(tmp_path, 4, at(7), "12", "-")
    assert entries_before(tmp_path, 5) == dict(zip(logs, (7, -1, -1), strict=True))
    # The plan reads the second source twice.
    offsets(tmp_path, 5, at(8), at(3), at(3), at(9))
    assert entries_before(tmp_path, 6) == dict.fromkeys(logs, 3)
    offsets(tmp_path, 6, at(8), at(4), at(9), version="v9")
    offsets(tmp_path, 7, "{", at(4), at(9))
    for unknown in (7, 8):
        assert entries_before(tmp_path, unknown) == dict.fromkeys(logs, -1)


@pytest.mark.parametrize(("after", "first"), [(-1, 0), (4, 5), (9, 10), (10, 11)])
def test_reading_begins_after_an_entry(tmp_path: Path, after: int, first: int) -> None:
    log(tmp_path, 8)
    log(tmp_path, 9, compact=True)
    log(tmp_path, 10)
    assert list(SourceLog(tmp_path / "sources" / "0", after).new()) == files(first, 10)
