"""There and back: what was backed up is what is restored, and nothing else is ever begun."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import select, text, update

from service.backup.backup import check_backup, make_backup, restore_backup
from service.backup.manifest import MANIFEST, SUMS, BackupError, DamagedBackupError, Manifest, sum_of
from service.contract.enums import Queue
from service.jobs.read_result import ResultDirectories, read_result
from service.store import streaming_jobs, streaming_state
from service.store.installation import count_rows
from service.store.maintenance import sweep
from service.store.migrate import alembic_config, check_drift, current_revision, head_revision
from service.store.session import Database
from service.store.streaming_jobs import BatchFacts
from service.store.tables import Base, JobRow, WorkerRow
from tests.support import lifecycle
from tests.support.installation import Installation

PROCESSES = {"workers", "leaders"}


def backed_up(here: Installation, directory: Path) -> Manifest:
    return make_backup(here.database, here.results, directory, here.tools)


def restored(directory: Path, target: Installation, *, replace: bool = False) -> Manifest:
    return restore_backup(directory, target.database, target.results, target.tools, silence_ms=30_000, replace=replace)


def silence_workers(own: Installation) -> None:
    with own.database.write() as session:
        session.execute(update(WorkerRow).values(heartbeat_at=1))


def everything(own: Installation) -> dict[str, list[Any]]:
    """Every row but those of processes, and every page of every result."""
    found: dict[str, list[Any]] = {}
    with own.database.read() as session:
        for name, table in Base.metadata.tables.items():
            if name not in {*PROCESSES, "installation"}:
                found[name] = [tuple(row) for row in session.execute(select(table).order_by(*table.primary_key))]
        done = session.scalars(select(JobRow.id).where(JobRow.status == "SUCCEEDED").order_by(JobRow.id)).all()
    found["results"] = [
        read_result(
            own.database, ResultDirectories(own.results, own.results), lifecycle.TENANT, job_id, "", 100
        ).model_dump()
        for job_id in done
    ]
    return found


def test_jobs_and_results_are_what_they_were(here: Installation, elsewhere: Installation, tmp_path: Path) -> None:
    before = everything(here)
    manifest = backed_up(here, tmp_path / "copy")
    assert (manifest.rows["jobs"], manifest.results, manifest.results_missing) == (5, 2, 0)
    assert everything(here) == before
    assert restored(tmp_path / "copy", elsewhere) == manifest
    assert everything(elsewhere) == before
    assert len(before["results"]) == 2
    assert check_drift(elsewhere.database) == []
    with elsewhere.database.read() as session:
        assert {name: count for name, count in count_rows(session).items() if name in PROCESSES} == {
            "workers": 0,
            "leaders": 0,
        }


def test_jobs_at_work_are_queued_again_and_all_that_wait_are_rung_for(
    here: Installation, elsewhere: Installation, tmp_path: Path
) -> None:
    backed_up(here, tmp_path / "copy")
    restored(tmp_path / "copy", elsewhere)
    with elsewhere.database.write() as session:
        # The leases of the copy are over by then, and the jobs were announced long ago.
        later = elsewhere.database.now(session) + 3_600_000
        announced = sweep(session, later, announce_again_ms=10_000, free={Queue.SHORT.value: 4}).announce
        waiting = session.execute(select(JobRow.id, JobRow.name).where(JobRow.status == "QUEUED")).all()
    assert {name for _, name in waiting} == {"queued", "running"}
    assert {job_id for job_id, _ in announced} == {job_id for job_id, _ in waiting}
    held = lifecycle.claim(elsewhere.database, next(job_id for job_id, name in waiting if name == "running"))
    assert held.fence == 2


def test_streams_rest_and_begin_anew(here: Installation, elsewhere: Installation, tmp_path: Path) -> None:
    """Their state is in no backup."""

    def begun(name: str, now_at: str) -> str:
        job_id = lifecycle.insert(here.database, name=name)
        with here.database.write() as session:
            session.execute(update(JobRow).where(JobRow.id == job_id).values(mode="incremental"))
        held = lifecycle.claim(here.database, job_id)
        with here.database.write() as session:
            now = here.database.now(session)
            streaming_jobs.open_stream(session, held, now)
            assert streaming_jobs.save_layout(session, held, {"partitions": 8}, now)
            assert streaming_jobs.finish_batch(session, held, 1, 4, BatchFacts(9, 9, 9, 9, {}), now)
            if now_at == "rest":
                assert streaming_jobs.mark_stopped(session, held, now, reason="caught_up", next_run_at=now)
        return job_id

    running, due = begun("running stream", "work"), begun("due stream", "rest")
    of_newer_version = begun("stream in a state of a newer version", "work")
    with here.database.write() as session:
        session.execute(update(JobRow).where(JobRow.id == of_newer_version).values(status="PAUSED"))
    backed_up(here, tmp_path / "copy")
    restored(tmp_path / "copy", elsewhere)
    with elsewhere.database.write() as session:
        later = elsewhere.database.now(session) + 3_600_000
        announced = sweep(session, later, announce_again_ms=10_000, free={Queue.SHORT.value: 4}).announce
        for job_id in (running, due):
            stream, row = streaming_state.find_stream(session, job_id), session.get_one(JobRow, job_id)
            assert stream is not None
            # Behind all that can have been used since the backup.
            assert stream.generation > 1_000_000
            assert row.fence > 1_000_000
            assert (stream.layout, stream.last_batch) == (None, None)
            assert (stream.stopped_because, row.status, row.lease_owner) == ("restored", "STOPPED", None)
        stream, row = streaming_state.find_stream(session, of_newer_version), session.get_one(JobRow, of_newer_version)
        assert stream is not None
        assert (stream.layout, stream.stopped_because, row.status) == (None, "restored", "PAUSED")
    assert not {running, due, of_newer_version} & {job_id for job_id, _ in announced}


def test_in_place_of_what_came_later(here: Installation, tmp_path: Path) -> None:
    before = everything(here)
    backed_up(here, tmp_path / "copy")
    later = lifecycle.insert(here.database)
    with here.database.write() as session:
        session.execute(update(JobRow).where(JobRow.name == "failed").values(name="changed"))
        path = session.scalars(select(JobRow.result_path).where(JobRow.result_path.is_not(None)).limit(1)).one()
    stray = here.results / str(path) / "part-99999.parquet"
    stray.write_bytes(b"of another time")
    for replace in (False, True):
        with pytest.raises(BackupError, match="workers are using"):
            restored(tmp_path / "copy", here, replace=replace)
    silence_workers(here)
    with pytest.raises(BackupError, match="contains 6 jobs"):
        restored(tmp_path / "copy", here)
    with here.database.read() as session:
        assert session.get(JobRow, later) is not None
    restored(tmp_path / "copy", here, replace=True)
    assert everything(here) == before
    assert not stray.exists()


def test_an_older_backup_is_migrated(here: Installation, elsewhere: Installation, tmp_path: Path) -> None:
    with here.database.write() as session:
        command.downgrade(alembic_config(session.connection()), "0001")
    backed_up(here, tmp_path / "copy")
    assert restored(tmp_path / "copy", elsewhere).revision == "0001"
    assert current_revision(elsewhere.database) == head_revision()
    assert check_drift(elsewhere.database) == []
    assert len(everything(elsewhere)["jobs"]) == 5


@pytest.fixture
def copy(here: Installation, tmp_path: Path) -> Path:
    backed_up(here, tmp_path / "copy")
    return tmp_path / "copy"


def result_file(copy: Path) -> Path:
    return sorted(copy.glob("results/*/*/*.parquet"))[0]


def told(copy: Path, **changes: object) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_text(json.dumps({**manifest, **changes}))


@pytest.mark.one_database
class TestDamage:
    """Whatever is wrong is found before anything is changed."""

    def refused(self, copy: Path, target: Installation, match: str) -> None:
        with pytest.raises(BackupError, match=match):
            restored(copy, target)
        assert not target.results.exists()
        with target.database.read() as session:
            assert count_rows(session) == {}

    def test_bytes_that_changed(self, copy: Path, elsewhere: Installation) -> None:
        for path in (copy / "database.sqlite", result_file(copy)):
            whole = path.read_bytes()
            path.write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
            self.refused(copy, elsewhere, f"{path.name} has changed")
            path.write_bytes(whole)
        assert check_backup(copy).results == 2

    def test_a_file_that_is_cut_off_or_gone(self, copy: Path, elsewhere: Installation) -> None:
        path = copy / "database.sqlite"
        path.write_bytes(path.read_bytes()[:-4096])
        self.refused(copy, elsewhere, "database.sqlite has changed")
        path.unlink()
        self.refused(copy, elsewhere, "database.sqlite is missing")

    def test_a_backup_that_was_interrupted(self, copy: Path, elsewhere: Installation) -> None:
        (copy / MANIFEST).unlink()
        self.refused(copy, elsewhere, "no complete backup")

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": 1}', '{"format": "1"}', "\0"])
    def test_a_manifest_that_says_nothing(self, copy: Path, elsewhere: Installation, text: str) -> None:
        (copy / MANIFEST).write_text(text)
        self.refused(copy, elsewhere, "damaged")

    @pytest.mark.parametrize("changes", [{"rows": {}}, {"tool": "pg_dump"}, {"tool": "sqlite"}, {"tool": "16"}])
    def test_a_manifest_with_a_field_of_no_use(
        self, copy: Path, elsewhere: Installation, changes: dict[str, object]
    ) -> None:
        told(copy, **changes)
        with pytest.raises(DamagedBackupError):
            restored(copy, elsewhere)

    def test_sums_that_changed(self, copy: Path, elsewhere: Installation) -> None:
        lines = (copy / SUMS).read_text().splitlines(keepends=True)
        (copy / SUMS).write_text("".join(lines[:-1]))
        self.refused(copy, elsewhere, "SHA256SUMS has changed")
        (copy / SUMS).unlink()
        self.refused(copy, elsewhere, "SHA256SUMS is missing")

    def test_names_that_lead_out_of_it(self, copy: Path, elsewhere: Installation) -> None:
        line = f"{'0' * 64}  results/../../elsewhere.parquet\n"
        (copy / SUMS).write_text((copy / SUMS).read_text() + line)
        told(copy, sums_sha256=sum_of(copy / SUMS))
        self.refused(copy, elsewhere, "contains an invalid line")

    @pytest.mark.parametrize("changes", [{"format": 2}, {"format": 2, "else": 1}])
    def test_a_newer_format(self, copy: Path, elsewhere: Installation, changes: dict[str, object]) -> None:
        told(copy, **changes)
        self.refused(copy, elsewhere, "newer version")

    def test_a_newer_schema(self, copy: Path, elsewhere: Installation) -> None:
        told(copy, revision="9999")
        self.refused(copy, elsewhere, "revision 9999")

    def test_another_kind_of_database(self, copy: Path, elsewhere: Installation) -> None:
        told(copy, database="postgresql")
        with pytest.raises(DamagedBackupError, match="does not list the database"):
            restored(copy, elsewhere)


def test_a_backup_goes_back_to_its_kind_alone(here: Installation, tmp_path: Path, postgres: Any) -> None:
    copy = tmp_path / "copy"
    backed_up(here, copy)
    is_sqlite = here.tools is None
    other = Database(postgres.create_database("other_kind") if is_sqlite else f"sqlite:///{tmp_path / 'other.db'}")
    with pytest.raises(BackupError, match="names a"):
        restore_backup(copy, other, tmp_path / "none", here.tools, silence_ms=1, replace=True)
    other.close()
    if is_sqlite:
        postgres.drop_database("other_kind")


@pytest.mark.one_database
def test_who_has_the_database_open_sees_the_old_one_or_the_new_one(
    here: Installation, elsewhere: Installation, copy: Path
) -> None:
    lifecycle.insert(here.database)
    silence_workers(here)
    with here.database.read() as session:
        assert session.execute(text("SELECT count(*) FROM jobs")).scalar_one() == 6
    restored(copy, here, replace=True)
    with here.database.read() as session:
        assert session.execute(text("SELECT count(*) FROM jobs")).scalar_one() == 5
        assert session.execute(text("PRAGMA integrity_check")).scalar_one() == "ok"
