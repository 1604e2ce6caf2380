"""When a lookup table gets a new version, and when it keeps the old one."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.config.settings import Settings
from service.contract.problems import SpecError
from service.contract.read_options import TableFormat
from service.contract.tables import TableSource
from service.data.files import TableFiles, find_table_files, unreadable
from service.data.roots import Root, roots_of
from tests.support.object_store import ObjectStore
from workers.streams.lookup_table_polling import SETTLE_SECONDS, FollowedTable
from workers.streams.lookup_table_versions import TableVersions


class Table:
    """A directory of Parquet files, below a root, that is followed."""

    def __init__(self, directory: Path) -> None:
        self.files = directory / "roots" / "t"
        self.files.mkdir(parents=True)
        self.paused = 0
        self.now = 0.0
        self.while_paused: Callable[[], object] = lambda: None
        self.while_copied: Callable[[], object] = lambda: None
        self._kept = directory / "kept"
        self._fence = 0
        self._written = 0

    def write(self, *values: object, name: str = "0.parquet", column: str = "v") -> None:
        """A file of one column, in the place of one that may be there, with another time."""
        path, before = self.files / name, self._written
        while self._written <= before:
            pq.write_table(pa.table({column: list(values)}), path)
            self._written = path.stat().st_mtime_ns

    def opened(self, *roots: Root) -> FollowedTable:
        """Another attempt's, which is open."""
        self._fence += 1
        source = TableSource(format=TableFormat.PARQUET, path="t/")
        versions = TableVersions(self._kept, "t", self._fence)
        followed = FollowedTable(
            "t", source, roots or [self.files.parent], versions, lambda: self.while_copied(), lambda: self.now
        )
        followed.open(self.pause)
        return followed

    def pause(self, _seconds: float) -> None:
        """Time passes."""
        self.paused += 1
        self.while_paused()


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table(tmp_path)
    table.write(1, 2)
    return table


def values(followed: FollowedTable, number: int | None = None) -> list[object]:
    version = followed.newest if number is None else followed.version(number)
    return [value for file in version.files.files for value in pq.read_table(str(file)).column("v").to_pylist()]


def test_a_change_is_copied_after_two_equal_checks(table: Table) -> None:
    followed = table.opened()
    assert (followed.newest.number, values(followed), followed.poll()) == (1, [1, 2], False)
    table.write(3)
    assert (followed.poll(), followed.is_changing) == (False, True)
    table.write(4, name="1.parquet")
    assert (followed.poll(), followed.is_changing) == (False, True)
    assert (followed.poll(), followed.is_changing) == (True, False)
    assert (followed.newest.number, values(followed), values(followed, 1)) == (2, [3, 4], [1, 2])
    assert followed.poll() is False


@pytest.mark.parametrize("gone", ["files", "directory"])
def test_a_table_without_a_file_is_not_an_empty_table(table: Table, gone: str) -> None:
    followed = table.opened()
    shutil.rmtree(table.files)
    if gone == "files":
        table.files.mkdir()
    for _ in range(3):
        assert followed.poll() is False
    assert followed.not_used is not None
    assert followed.not_used.code == ("empty_directory" if gone == "files" else "path_not_found")
    # An attempt that begins now goes on with what there is.
    assert values(table.opened()) == [1, 2]
    table.files.mkdir(exist_ok=True)
    table.write(5)
    assert [followed.poll(), followed.poll(), values(followed)] == [False, True, [5]]
    assert followed.not_used is None


def test_other_columns_are_refused_and_copied_only_once(table: Table) -> None:
    followed = table.opened()
    table.write("a")
    assert [followed.poll(), followed.poll()] == [False, False]
    assert followed.not_used is not None
    assert followed.not_used.code == "schema_changed"
    assert "v BIGINT" in followed.not_used.detail
    table.while_copied = lambda: pytest.fail("it was copied again")
    assert [followed.poll(), followed.poll(), followed.is_changing] == [False, False, False]
    # The next attempt looks for itself, and comes to the same.
    table.while_copied = lambda: None
    later = table.opened()
    assert (values(later), later.not_used) == ([1, 2], followed.not_used)
    table.write(7)
    assert [followed.poll(), followed.poll(), values(followed), followed.not_used] == [False, True, [7], None]


def test_a_table_that_changes_during_its_copy_is_not_used(table: Table) -> None:
    followed = table.opened()
    table.write(3)
    followed.poll()
    table.while_copied = lambda: table.write(4, name="1.parquet")
    assert (followed.poll(), followed.newest.number) == (False, 1)
    table.while_copied = lambda: None
    assert [followed.poll(), followed.poll(), values(followed)] == [False, True, [3, 4]]


def test_a_file_removed_during_its_copy_is_waited_for(table: Table) -> None:
    followed = table.opened()
    table.write(3)
    table.write(4, name="1.parquet")
    followed.poll()
    table.while_copied = lambda: (table.files / "1.parquet").unlink(missing_ok=True)
    assert (followed.poll(), followed.newest.number, followed.not_used) == (False, 1, None)
    assert [followed.poll(), followed.poll(), values(followed)] == [False, True, [3]]


def test_an_attempt_begins_with_the_newest_version(table: Table) -> None:
    table.opened()
    assert table.opened().newest.number == 1
    assert table.paused == 0
    table.write(3)
    later = table.opened()
    assert (later.newest.number, values(later), table.paused) == (2, [3], 1)


def test_a_table_that_keeps_changing_keeps_its_version(table: Table) -> None:
    table.opened()
    table.write(3)
    table.while_copied = lambda: table.write(4)
    later = table.opened()
    assert (later.newest.number, values(later), later.is_changing) == (1, [1, 2], True)


def test_without_a_version_there_must_be_a_first_one(table: Table) -> None:
    table.while_copied = lambda: table.write(4)
    with pytest.raises(SpecError) as changing:
        table.opened()
    assert changing.value.code == "table_keeps_changing"
    shutil.rmtree(table.files)
    with pytest.raises(SpecError) as gone:
        table.opened()
    assert gone.value.code == "path_not_found"


def test_a_file_removed_during_the_first_listing_is_waited_for(table: Table) -> None:
    vanishes = True

    def listed(*arguments: Any) -> TableFiles:
        if vanishes:
            raise unreadable("t/", FileNotFoundError(errno.ENOENT, "gone"), "/tables/t/path")
        return find_table_files(*arguments)

    def comes_back() -> None:
        nonlocal vanishes
        vanishes = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workers.streams.lookup_table_polling.find_table_files", listed)
        with pytest.raises(SpecError) as caught:
            table.opened()
        assert (caught.value.code, table.paused) == ("unreadable_file", 5)
        table.while_paused = comes_back
        assert values(table.opened()) == [1, 2]


def test_a_copy_to_a_full_disk_is_retried_later(table: Table) -> None:
    followed = table.opened()
    table.write(3)

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    table.while_copied = full
    assert [followed.poll(), followed.poll()] == [False, False]
    assert followed.not_used is not None
    assert (followed.not_used.code, followed.is_changing) == ("dimension_not_copied", False)
    assert "No space left" in followed.not_used.detail
    table.while_copied = lambda: None
    assert [followed.poll() for _ in range(3)] == [False] * 3
    table.now += 300
    assert [followed.poll(), followed.poll(), values(followed)] == [False, True, [3]]
    assert followed.not_used is None


def test_a_missing_version_is_an_error(table: Table) -> None:
    followed = table.opened()
    with pytest.raises(SpecError) as caught:
        followed.version(7)
    assert caught.value.code == "dimension_missing"


def test_a_second_change_within_a_second_is_seen_in_a_store(
    table: Table, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in object_store.variables("s3a://twice").items():
        monkeypatch.setenv(name, value)
    object_store.make_bucket("twice")

    def put(*values: int) -> int:
        table.write(*values)
        written = (table.files / "0.parquet").read_bytes()
        object_store.put("twice", {"t/0.parquet": written})
        return len(written)

    # Times of its objects have whole seconds.
    size = put(1, 2)
    table.while_paused = lambda: put(3, 4) == size or pytest.fail("it tells by the size alone")
    followed = table.opened(*roots_of(Settings()))
    assert values(followed) == [3, 4]
    size = put(5, 6, 7)
    assert [followed.poll(), followed.poll(), followed.is_changing] == [False, False, True]
    assert put(7, 8, 9) == size
    for _ in range(3):
        table.now += SETTLE_SECONDS
        if followed.poll():
            break
    assert values(followed) == [7, 8, 9]
    roots_of.cache_clear()


def test_a_table_in_a_store_is_copied_too(
    table: Table, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in object_store.variables("s3a://followed").items():
        monkeypatch.setenv(name, value)
    object_store.make_bucket("followed")
    object_store.put("followed", {"t/0.parquet": (table.files / "0.parquet").read_bytes()})
    followed = table.opened(*roots_of(Settings()))
    table.write(*range(100))
    object_store.put("followed", {"t/0.parquet": (table.files / "0.parquet").read_bytes()})
    assert followed.poll() is False
    table.now += SETTLE_SECONDS
    assert [followed.poll(), values(followed, 1)] == [True, [1, 2]]
    assert values(followed) == list(range(100))
    object_store.delete("followed", "t/0.parquet")
    assert (followed.poll(), followed.poll(), len(values(followed))) == (False, False, 100)
    roots_of.cache_clear()


@pytest.mark.parametrize("kept", ["kept", "kept é[1]"])
def test_a_copy_is_reported_as_the_tables_own_file(tmp_path: Path, kept: str) -> None:
    for name in ("a.csv", "b/c d.csv"):
        path = tmp_path / "roots" / "t" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1\n")
    source = TableSource.model_validate({"format": "csv", "path": "t/", "schema": "k INT"})
    versions = TableVersions(tmp_path / kept, "t", 1)
    followed = FollowedTable("t", source, [tmp_path / "roots"], versions, lambda: None)
    followed.open(lambda _: None)
    copy = tmp_path / kept / "v1" / "00001.csv"
    whose = "(of the lookup table 't': replace the file, and resume)"
    text = f"reading {copy.as_uri()}. {copy}: x"
    assert followed.with_own_names(text) == f"reading t/b/c d.csv {whose}. t/b/c d.csv: x"
    # As versions before this one wrote it; and a version that is gone.
    manifest = copy.with_name("manifest.json")
    told = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({key: value for key, value in told.items() if key != "own"}))
    assert versions.find(1) == followed.newest
    assert followed.with_own_names(f"reading file://{copy}.") == f"reading t {whose}."
    shutil.rmtree(copy.parent)
    assert followed.with_own_names(f"reading {copy}.") == f"reading t {whose}."
    of_another = str(tmp_path / "kept-too" / "v1" / "00001.csv")
    assert followed.with_own_names(of_another) == of_another


def test_another_header_is_reported_with_the_name_of_the_tables_own_file(tmp_path: Path) -> None:
    file = tmp_path / "roots" / "t" / "names.csv"
    file.parent.mkdir(parents=True)
    file.write_text("k,v\n")
    source = TableSource.model_validate(
        {"format": "csv", "path": "t/", "schema": "k INT, v INT", "options": {"header": True}}
    )
    versions = TableVersions(tmp_path / "kept", "t", 1)
    followed = FollowedTable("t", source, [tmp_path / "roots"], versions, lambda: None)
    followed.open(lambda _: None)
    file.write_text("v,k,x\n")
    assert [followed.poll(), followed.poll()] == [False, False]
    assert followed.not_used is not None
    assert (followed.not_used.code, "'names.csv'" in followed.not_used.detail) == ("schema_mismatch", True)
