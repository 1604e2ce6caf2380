"""Files are read the same way wherever they are, those of a store some at a time."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from service.config.data import DataSettings, parse_root
from service.data.file_io import (
    PARALLEL_READS,
    DataFile,
    UriFile,
    for_each,
    is_same_version,
    local_path,
    opened,
    size_of,
    version_of,
)
from service.data.roots import open_store

STORE = open_store(parse_root("s3a://data"), DataSettings())
REMOTE = [UriFile(f"s3a://data/x/{number}.csv.gz", f"x/{number}.csv.gz", number, STORE) for number in range(40)]


def test_what_is_known_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"123")
    here = UriFile(path.as_uri(), str(path), 3)
    assert [size_of(file) for file in (path, here, REMOTE[7])] == [3, 3, 7]
    assert [local_path(file) for file in (path, here, REMOTE[7])] == [path, path, None]
    assert (REMOTE[7].name, REMOTE[7].suffix) == ("7.csv.gz", ".gz")
    for file in (path, here):
        with opened(file) as stream:
            stream.seek(1)
            assert stream.read() == b"23"


def test_a_written_file_is_another_version(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"123")
    before = version_of(path)
    assert before is not None
    assert before == version_of(UriFile(path.as_uri(), str(path), 3))
    path.write_bytes(b"1234")
    after = version_of(path)
    assert after != before
    other = tmp_path / "b.csv"
    other.write_bytes(b"4321")
    other.replace(path)
    assert version_of(path) not in {before, after}
    path.unlink()
    with pytest.raises(FileNotFoundError):
        version_of(path)


def test_versions_that_differ_by_the_time_of_the_last_status_change_are_the_same() -> None:
    assert is_same_version((3, 17, 100, 100), (3, 17, 100, 999))
    for other in ((4, 17, 100, 100), (3, 18, 100, 100), (3, 17, 101, 100), None):
        assert not is_same_version((3, 17, 100, 100), other)
    assert is_same_version((5, 7), (5, 7))
    assert not is_same_version((5, 7), (5, 8))
    assert is_same_version(None, None)
    assert not is_same_version(None, (5, 7))


def test_a_version_in_a_store_is_what_its_listing_told() -> None:
    assert version_of(REMOTE[7]) is None
    assert version_of(UriFile("s3a://data/x", "x", 5, STORE, modified=7)) == (5, 7)


def test_files_of_a_store_are_read_at_once_and_told_in_order() -> None:
    together = threading.Barrier(PARALLEL_READS, timeout=30)

    def read(file: DataFile) -> int:
        if size_of(file) < PARALLEL_READS:
            together.wait()
        return size_of(file)

    assert list(for_each(REMOTE, read)) == list(range(40))


def test_the_first_failure_in_order_is_raised() -> None:
    def read(file: DataFile) -> int:
        if size_of(file) in {3, 30}:
            raise ValueError(size_of(file))
        return size_of(file)

    found: list[int] = []
    with pytest.raises(ValueError, match=r"^3$"):
        found.extend(for_each(REMOTE, read))
    assert list(for_each(REMOTE[:3], read)) == [0, 1, 2]
