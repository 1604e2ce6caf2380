"""A file that differs from what was found is named, whatever happened to it and wherever it is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from service.contract.problems import SpecError
from service.contract.tables import TableSource
from service.data.file_changes import CODE, changed_files
from service.data.file_io import DataFile, UriFile
from service.data.files import TableFiles, find_table_files
from service.data.roots import ListingOverdueError, Root, StoreUnavailableError
from tests.support.object_store import Bucket, Roots, running_object_store


def find(root: Root, path: str = "t", format_: str = "csv") -> TableFiles:
    return find_table_files("t", TableSource.model_validate({"format": format_, "path": path}), [root])


def told(found: TableFiles) -> str:
    """The detail of the error."""
    error = changed_files(found)
    assert error is not None
    assert (error.code, error.issues[0].pointer) == (CODE, "/tables/t/path")
    return str(error)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "t" / "deep").mkdir(parents=True)
    (tmp_path / "t" / "a.csv").write_text("1\n")
    (tmp_path / "t" / "deep" / "b.csv").write_text("2\n")
    return tmp_path


def longer(path: Path) -> None:
    with path.open("a") as file:
        file.write("3\n")


def same_size(path: Path) -> None:
    path.write_text("9\n")


def renamed_over(path: Path) -> None:
    before = path.stat()
    aside = path.with_name(".aside")
    aside.write_text("9\n")
    os.utime(aside, ns=(before.st_atime_ns, before.st_mtime_ns))
    aside.rename(path)


def touched(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def other_permissions(path: Path) -> None:
    path.chmod(0o600)


def other_link(path: Path) -> None:
    path.with_name(".backup").hardlink_to(path)


CHANGES = [longer, same_size, renamed_over, touched]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_file_that_was_written(root: Path, change: Callable[[Path], None]) -> None:
    found = find(root)
    assert changed_files(found) is None
    _tick(root)
    change(root / "t" / "deep" / "b.csv")
    assert told(found).startswith("The file 'deep/b.csv' of the table 't' has changed since the job was planned")


@pytest.mark.parametrize("change", [other_permissions, other_link], ids=lambda change: change.__name__)
def test_a_file_of_which_no_byte_was_written(root: Path, change: Callable[[Path], None]) -> None:
    found = find(root)
    path = root / "t" / "deep" / "b.csv"
    before = path.stat()
    _tick(root)
    change(path)
    assert path.stat().st_ctime_ns != before.st_ctime_ns
    assert changed_files(found) is None


def test_a_file_that_was_removed(root: Path) -> None:
    found, alone = find(root), find(root, "t/a.csv")
    (root / "t" / "a.csv").unlink()
    assert told(found).startswith("The file 'a.csv' of the table 't' was removed since")
    assert "'a.csv'" in told(alone)
    shutil.rmtree(root / "t")
    (root / "t").write_text("no directory any more")
    assert "'a.csv' of the table 't' was removed" in told(found)


def test_a_file_that_was_added_is_not_read_and_no_change(root: Path) -> None:
    found = find(root)
    (root / "t" / "c.csv").write_text("3\n")
    assert changed_files(found) is None


def test_a_name_that_is_no_text(root: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(root / "t") + b"/\xff.csv"))
    odd.write_text("1\n")
    found = find(root)
    odd.unlink()
    assert "'?.csv'" in told(found)


def test_a_file_that_cannot_be_looked_at(root: Path) -> None:
    found = find(root)
    (root / "t" / "a.csv").unlink()
    (root / "t" / "a.csv").symlink_to("a.csv")
    with pytest.raises(SpecError) as caught:
        changed_files(found)
    assert caught.value.code == "unreadable_file"


@pytest.mark.parametrize("format_", ["parquet", "csv", "json"])
@pytest.mark.parametrize("scheme", ["s3a", "s3"])
def test_objects(bucket: Bucket, roots: Roots, scheme: str, format_: str) -> None:
    keys = [f"in/t/a.{format_}", f"in/t/deep/b.{format_}"]
    bucket.put(*keys)
    (root,) = roots(f"{scheme}://{bucket.name}/in")
    found, alone = find(root, "t", format_), find(root, f"t/a.{format_}", format_)
    before = len(bucket.server.requests())
    assert (changed_files(found), changed_files(alone)) == (None, None)
    asked = bucket.server.requests()[before:]
    assert len(asked) <= 3, "a listing for each directory, and a look at the file that is a table"
    bucket.put(f"in/t/c.{format_}")
    assert changed_files(found) is None

    bucket.server.put(bucket.name, {keys[1]: b"123456"})
    assert told(found).startswith(f"The file 'deep/b.{format_}' of the table 't' has changed")
    assert changed_files(alone) is None
    found = find(root, "t", format_)
    bucket.server.delete(bucket.name, keys[0])
    assert told(found).startswith(f"The file 'a.{format_}' of the table 't' was removed")
    assert "was removed" in told(alone)


def test_an_object_of_the_same_size_in_another_second(bucket: Bucket, roots: Roots) -> None:
    bucket.put("in/t/a.csv")
    (root,) = roots(f"s3a://{bucket.name}/in")
    found = find(root)
    _written_later(bucket, found, "in/t/a.csv")
    assert "'a.csv' of the table 't' has changed" in told(found)


def _written_later(bucket: Bucket, found: TableFiles, key: str) -> None:
    """Writes the object until the store's time of it, which has a resolution, is another one."""
    while changed_files(found) is None:
        bucket.server.put(bucket.name, {key: b"54321"})


def test_a_store_that_does_not_answer(tmp_path: Path, roots: Roots, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_object_store(tmp_path) as server:
        server.make_bucket("bucket")
        server.put("bucket", {"t/a.csv": b"1"})
        (root,) = roots("s3a://bucket", **{**server.variables("s3a://bucket"), "EVENKEEL_DATA_STORE_ATTEMPTS": "1"})
        found = find(root)
        assert changed_files(found) is None
    with pytest.raises(StoreUnavailableError):
        changed_files(found)


@pytest.mark.parametrize("seconds", [5, 50])
def test_all_listings_together_take_no_longer_than_a_search(bucket: Bucket, roots: Roots, seconds: int) -> None:
    bucket.put(*(f"in/t/{directory}/a.csv" for directory in range(8)))
    (root,) = roots(f"s3a://{bucket.name}/in")
    found = find(root)
    seen = count()

    def hurried(file: DataFile) -> UriFile:
        """The file in the same store, by whose clock each listing takes a second."""
        assert isinstance(file, UriFile)
        assert file.store is not None
        return replace(file, store=replace(file.store, clock=lambda: next(seen), search_seconds=seconds))

    found = replace(found, files=tuple(map(hurried, found.files)))
    if seconds > len(found.files):
        assert changed_files(found) is None
    else:
        with pytest.raises(ListingOverdueError):
            changed_files(found)


def _tick(root: Path) -> None:
    """Waits until the clock of the file system has gone on: what is written in one tick has one time."""
    probe = root / ".probe"
    probe.touch()
    begun = probe.stat().st_mtime_ns
    while probe.stat().st_mtime_ns == begun:
        probe.touch()
