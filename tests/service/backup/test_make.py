"""A backup is made while others write, and says what it holds."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import select, text

from service.backup.backup import check_backup, make_backup
from service.backup.manifest import MANIFEST, SUMS, BackupError, copy_with_sum, sum_of
from service.jobs.lifecycle import delete_job
from service.store.session import Database
from service.store.tables import JobRow
from tests.support import lifecycle
from tests.support.installation import Installation


def published(here: Installation) -> list[str]:
    with here.database.read() as session:
        paths = select(JobRow.result_path).where(JobRow.result_path.is_not(None)).order_by(JobRow.id)
        return [str(path) for path in session.scalars(paths)]


def test_the_sums_are_those_of_sha256sum(here: Installation, tmp_path: Path) -> None:
    copy = tmp_path / "new" / "copy"
    manifest = make_backup(here.database, here.results, copy, here.tools)
    done = subprocess.run(["sha256sum", "--quiet", "-c", SUMS], cwd=copy, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    files = [path for path in copy.rglob("*") if path.is_file()]
    assert len(files) == 4 + 1 + 2, "parts of results, the database, sums and manifest: nothing of jobs at work"
    assert manifest.results_bytes == sum(path.stat().st_size for path in files if path.suffix == ".parquet")
    assert (copy.stat().st_mode & 0o777) == 0o700


def test_what_changes_meanwhile_is_left_out_whole(
    here: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the database was copied, a job ends, and another one is deleted."""
    gone, cut = published(here)

    def meanwhile(path: Path) -> str:
        lifecycle.run_whole(here.database, lifecycle.insert(here.database), here.results, pa.table({"a": [1]}))
        delete_job(
            here.database, here.results, here.results.parent / "streams", lifecycle.TENANT, gone.partition("/")[0]
        )
        return sum_of(path)

    monkeypatch.setattr("service.backup.backup.sum_of", meanwhile)
    manifest = make_backup(here.database, here.results, tmp_path / "copy", here.tools)
    assert (manifest.rows["jobs"], manifest.results, manifest.results_missing, manifest.results_lost) == (5, 1, 1, 0)
    assert [path.name for path in (tmp_path / "copy" / "results").iterdir()] == [cut.partition("/")[0]]
    assert check_backup(tmp_path / "copy") == manifest


@pytest.mark.one_database
def test_a_result_that_vanishes_half_way_leaves_nothing(
    here: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def vanishing(source: Path, target: Path) -> tuple[str, int]:
        if source.name == "part-00002.parquet":
            raise FileNotFoundError(source)
        return copy_with_sum(source, target)

    monkeypatch.setattr("service.backup.backup.copy_with_sum", vanishing)
    manifest = make_backup(here.database, here.results, tmp_path / "copy", here.tools)
    assert (manifest.results, manifest.results_missing, manifest.results_lost) == (1, 1, 1)
    assert len(list((tmp_path / "copy" / "results").iterdir())) == 1
    assert check_backup(tmp_path / "copy") == manifest


@pytest.mark.one_database
def test_a_result_that_may_not_be_read_is_told(
    here: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of another user's."""

    def scandir(path: Path) -> Any:
        if "attempt-" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    real = os.scandir
    monkeypatch.setattr("service.backup.backup.os.scandir", scandir)
    with pytest.raises(PermissionError):
        make_backup(here.database, here.results, tmp_path / "copy", None)
    assert not (tmp_path / "copy" / MANIFEST).exists()


@pytest.mark.one_database
def test_a_directory_that_others_may_read_is_shut(here: Installation, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir(mode=0o755)
    make_backup(here.database, here.results, tmp_path / "copy", None)
    assert ((tmp_path / "copy").stat().st_mode & 0o777) == 0o700


@pytest.mark.one_database
def test_a_directory_with_something_in_it_is_refused(here: Installation, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "notes").touch()
    with pytest.raises(BackupError, match="not empty"):
        make_backup(here.database, here.results, tmp_path / "copy", None)
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["notes"]


def test_what_is_not_ours_to_know_is_not_copied_in_part(here: Installation, tmp_path: Path) -> None:
    with here.database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(BackupError, match="does not support"):
        make_backup(here.database, here.results, tmp_path / "copy", here.tools)
    assert not (tmp_path / "copy").exists()


def test_nothing_to_back_up(elsewhere: Installation, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="no tables"):
        make_backup(elsewhere.database, elsewhere.results, tmp_path / "copy", elsewhere.tools)


@pytest.mark.one_database
def test_one_that_fails_half_way_is_none(here: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> tuple[str, int]:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr("service.backup.backup.copy_with_sum", full)
    with pytest.raises(OSError, match="No space"):
        make_backup(here.database, here.results, tmp_path / "copy", None)
    assert not (tmp_path / "copy" / MANIFEST).exists()


@pytest.mark.one_database
def test_two_files_of_a_database_in_use_become_one(here: Installation, tmp_path: Path) -> None:
    make_backup(here.database, here.results, tmp_path / "copy", None)
    shutil.copyfile(tmp_path / "copy" / "database.sqlite", tmp_path / "alone.db")
    with closing(Database(f"sqlite:///{tmp_path / 'alone.db'}")) as alone, alone.read() as session:
        assert session.execute(text("SELECT count(*) FROM jobs")).scalar_one() == 5
        assert session.execute(text("PRAGMA integrity_check")).scalar_one() == "ok"
