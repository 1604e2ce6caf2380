"""Copies of a table's files as versions."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from service.contract.tables import TableSource
from service.data.file_io import opened
from service.data.files import TableFiles, find_table_files
from workers.streams.lookup_table_versions import (
    TableVersions,
    Version,
    directory_name,
    fingerprint_of,
    suffixes_of,
)

SOURCE = TableSource.model_validate({"format": "csv", "path": "t/", "schema": "k INT"})


@pytest.fixture
def table(tmp_path: Path) -> Path:
    directory = tmp_path / "roots" / "t"
    directory.mkdir(parents=True)
    for name in ("a.csv", "b.csv"):
        (directory / name).write_text(f"{name}\n")
    return directory


def listed(table: Path) -> TableFiles:
    return find_table_files("t", SOURCE, [table.parent])


def take(versions: TableVersions, table: Path, check: Callable[[], object] = lambda: None) -> Version:
    found = listed(table)
    return versions.keep(versions.copy(found, fingerprint_of(found) or "", check))


def texts(version: Version | None) -> list[str]:
    assert version is not None
    return [Path(str(file)).read_text() for file in version.files.files]


def test_a_version_does_not_change_with_the_table(table: Path, tmp_path: Path) -> None:
    versions = TableVersions(tmp_path / "kept", "t", 1)
    assert versions.newest() is None
    first = take(versions, table)
    with (table / "a.csv").open("r+") as file:
        file.write("A")
    (table / "b.csv").unlink()
    second = take(versions, table)
    again = TableVersions(tmp_path / "kept", "t", 2)
    assert texts(again.find(1)) == ["a.csv\n", "b.csv\n"]
    assert texts(again.newest()) == ["A.csv\n"]
    assert (first.number, second.number, again.find(1), again.newest()) == (1, 2, first, second)
    third = take(versions, table)
    again.keep_only({1, 2})
    assert (again.find(1), again.find(2), again.newest()) == (first, second, third)
    again.keep_only({1, 3})
    assert (again.find(1), again.find(2), again.newest()) == (first, None, third)


@pytest.mark.parametrize("change", ["grown", "same size and time", "added", "removed", "replaced"])
def test_every_change_of_the_files_changes_the_fingerprint(table: Path, change: str) -> None:
    before, times = fingerprint_of(listed(table)), (table / "a.csv").stat()
    assert fingerprint_of(listed(table)) == before
    if change == "grown":
        with (table / "a.csv").open("a") as file:
            file.write("more\n")
    elif change == "same size and time":
        # The clock of a file's change may stand still for some milliseconds.
        while (table / "a.csv").stat().st_ctime_ns == times.st_ctime_ns:
            (table / "a.csv").write_text("A.CSV\n")
            os.utime(table / "a.csv", ns=(times.st_atime_ns, times.st_mtime_ns))
    elif change == "added":
        (table / "c.csv").write_text("")
    elif change == "removed":
        (table / "a.csv").unlink()
    else:
        (table / ".new").write_text("a.csv\n")
        (table / ".new").rename(table / "a.csv")
    assert fingerprint_of(listed(table)) != before


def test_an_interrupted_copy_is_not_a_version(table: Path, tmp_path: Path) -> None:
    versions = TableVersions(tmp_path / "kept", "t", 1)
    found = listed(table)
    versions.copy(found, "seen", lambda: None)

    def killed() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take(TableVersions(tmp_path / "kept", "t", 2), table, killed)
    later = TableVersions(tmp_path / "kept", "t", 3)
    assert later.newest() is None
    later.drop_drafts()
    assert list((tmp_path / "kept").iterdir()) == []
    assert take(later, table).number == 1


def test_two_attempts_make_two_versions(table: Path, tmp_path: Path) -> None:
    late, newer = (TableVersions(tmp_path / "kept", "t", fence) for fence in (1, 2))
    draft = late.copy(listed(table), "seen", lambda: None)
    assert take(newer, table).number == 1
    assert late.keep(draft).number == 2


def test_a_version_number_of_another_attempt_is_not_used_again(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(TableVersions(tmp_path / "kept", "t", 2), table)
    late = TableVersions(tmp_path / "kept", "t", 1)
    # What it saw before the other one was there.
    monkeypatch.setattr(late, "_numbers", list)
    assert take(late, table).number == 2


def test_a_copy_leaves_space_for_the_checkpoint(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions, size = TableVersions(tmp_path / "kept", "t", 1), listed(table).bytes
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2 * size - 1))
    with pytest.raises(OSError, match="No space left"):
        take(versions, table)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2 * size))
    assert take(versions, table).number == 1


def test_a_copy_keeps_only_the_suffixes_of_a_name() -> None:
    names = ["a.csv", "a.csv.gz", "12:30.csv", "a.1:2.csv", "a", "part-0.c000.snappy.parquet"]
    assert list(map(suffixes_of, names)) == [".csv", ".csv.gz", ".csv", ".csv", "", ".snappy.parquet"]


@pytest.mark.parametrize("lost", ["file", "rows", "manifest"])
def test_an_incomplete_version_is_not_found(table: Path, tmp_path: Path, lost: str) -> None:
    versions = TableVersions(tmp_path / "kept", "t", 1)
    take(versions, table)
    kept = tmp_path / "kept" / "v1"
    if lost == "rows":
        (kept / "00000.csv").write_text("")
    else:
        (kept / ("00000.csv" if lost == "file" else "manifest.json")).unlink()
    assert versions.find(1) is None


def test_a_store_without_modification_times_shows_no_changes(table: Path) -> None:
    found = listed(table)
    silent = TableFiles("t", found.directory_or_file, found.files, found.bytes, (None, None))
    assert fingerprint_of(silent) is None


def test_every_table_has_its_own_directory() -> None:
    names = ["u", "U", "../u", "a/b", "a b", "n" * 64]
    directories = {directory_name(name) for name in names}
    assert len({name.casefold() for name in directories}) == len(names)
    assert all("/" not in name and not name.startswith(".") and len(name) < 60 for name in directories)


def test_versions_in_a_directory_behind_a_link(table: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "here").symlink_to(tmp_path / "there")
    version = take(TableVersions(tmp_path / "here" / "kept", "t", 1), table)
    for file in version.files.files:
        with opened(file) as stream:
            assert stream.read()
