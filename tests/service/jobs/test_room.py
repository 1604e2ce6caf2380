"""Limits of tenants as use cases keep them, also where many ask at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from sqlalchemy import func, select, update

from service.broker.dispatch import JobAnnouncer
from service.config.settings import Settings
from service.contract.errors import QuotaError, TooManyExplanationsError, TooManyPostedBytesError, TooManyStreamsError
from service.contract.job import JobSpec
from service.ingest.parsing import rows_of
from service.jobs.submit_job import Submission, submit_job
from service.sql.types.data_types import Schema
from service.store.accounts import Counted, lock_count
from service.store.jobs import EXPLAIN
from service.store.session import Database
from service.store.tables import InputStreamRow, JobRow
from service.streams.append_rows import PostedRows, append_rows
from service.streams.manage_streams import declare_stream, delete_stream
from tests.support.lifecycle import SPEC, TENANT

AT_ONCE = 12


def limited(monkeypatch: pytest.MonkeyPatch, **limits: int) -> Settings:
    for name, limit in limits.items():
        monkeypatch.setenv(f"EVENKEEL_LIMITS_{name.upper()}", str(limit))
    return Settings()


def refused_of(do: Callable[[int], object], times: int = AT_ONCE) -> list[QuotaError]:
    """What was refused of so many that come at once."""

    def tried(number: int) -> QuotaError | None:
        try:
            do(number)
        except QuotaError as error:
            return error
        return None

    with ThreadPoolExecutor(times) as pool:
        return [error for error in pool.map(tried, range(times)) if error is not None]


def explanation(tenant: str = TENANT) -> Submission:
    return Submission(tenant, JobSpec.model_validate(SPEC), "", None, EXPLAIN)


def test_explanations_at_once_do_not_pass_the_limit(
    database: Database, announcer: JobAnnouncer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = limited(monkeypatch, explanations=3)
    errors = refused_of(lambda _: submit_job(database, announcer, settings, explanation()))
    assert [type(error) for error in errors] == [TooManyExplanationsError] * (AT_ONCE - 3)
    assert "EVENKEEL_LIMITS_EXPLANATIONS" in str(errors[0])
    submit_job(database, announcer, settings, explanation("another"))


def test_one_that_nobody_waits_for_any_more_does_not_count(
    database: Database, announcer: JobAnnouncer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = limited(monkeypatch, explanations=1)
    first = submit_job(database, announcer, settings, explanation()).job
    with pytest.raises(TooManyExplanationsError):
        submit_job(database, announcer, settings, explanation())
    patience_ms = round(settings.api.explain_timeout_seconds * 1000)
    with database.write() as session:
        assert session.get_one(JobRow, first.id).timeout_ms == patience_ms
        session.execute(update(JobRow).values(submitted_at=JobRow.submitted_at - patience_ms))
    submit_job(database, announcer, settings, explanation())


@pytest.mark.withstands(
    "a tenant declares too many streams",
    kind="attack",
    how="12 concurrent declarations with a limit of 3",
    times=1,
    guaranteed="3 streams are declared; the other requests get 429",
)
def test_streams_at_once_do_not_pass_the_limit(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = limited(monkeypatch, streams=3)

    def declare(name: str, tenant: str = TENANT) -> None:
        declare_stream(database, settings.streams_dir, settings.limits, tenant, name, "uid INT")

    errors = refused_of(lambda number: declare(f"s{number}"))
    assert [type(error) for error in errors] == [TooManyStreamsError] * (AT_ONCE - 3)
    assert "EVENKEEL_LIMITS_STREAMS" in str(errors[0])
    with database.read() as session:
        names = session.scalars(select(InputStreamRow.name)).all()
    assert len(names) == 3
    assert len(stream_directories(settings)) == 3, "those that were refused leave none"
    # What is there may be declared again, and others have streams of their own.
    declare(names[0])
    declare("s0", "another")
    delete_stream(database, settings.streams_dir, TENANT, names[0])
    declare("in its place")


def stream_directories(settings: Settings) -> list[Path]:
    # Tenant, name and id: a name may stay, empty.
    return list(settings.streams_dir.glob("input/*/*/*"))


@pytest.mark.withstands(
    "a tenant fills the disk with posted rows",
    kind="attack",
    how="batches are posted until `EVENKEEL_LIMITS_POSTED_BYTES` is reached, then more",
    times=1,
    guaranteed="429 for further rows, none of which are stored; rows accepted before stay",
)
def test_posted_rows_are_taken_until_their_room_is_full(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = limited(monkeypatch, posted_bytes=1)
    for tenant, name in ((TENANT, "one"), (TENANT, "two"), ("another", "one")):
        declare_stream(database, settings.streams_dir, settings.limits, tenant, name, "uid INT")

    def post(stream: str, batch_id: str, tenant: str = TENANT) -> bool:
        posted = PostedRows(tenant, stream, batch_id, "application/x-ndjson", b'{"uid": 1}')
        return append_rows(database, settings.streams_dir, settings.limits, posted).replayed

    def files() -> int:
        return sum(path.is_file() for path in settings.streams_dir.rglob("*"))

    assert not post("one", "b1")
    kept = files()
    for stream in ("one", "two"):
        with pytest.raises(TooManyPostedBytesError, match="EVENKEEL_LIMITS_POSTED_BYTES"):
            post(stream, "b2")
    assert files() == kept
    assert post("one", "b1"), "a repeat is answered"
    assert not post("one", "b1", "another")
    delete_stream(database, settings.streams_dir, TENANT, "one")
    assert not post("two", "b2")
    with database.read() as session:
        assert session.scalar(select(func.count()).select_from(InputStreamRow)) == 2


@pytest.fixture
def posts(database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], object]:
    """Posts one row to a stream of this number; there is room for one batch. No batch is stored before `AT_ONCE` posts
    have seen that there is room."""
    limits = limited(monkeypatch, posted_bytes=1).limits
    for number in range(AT_ONCE):
        declare_stream(database, settings.streams_dir, limits, TENANT, f"s{number}", "uid INT")
    looked = threading.Barrier(AT_ONCE)

    def parsed(body: bytes, media_type: str, schema: Schema) -> pa.Table:
        looked.wait(60)
        return rows_of(body, media_type, schema)

    monkeypatch.setattr("service.streams.append_rows.rows_of", parsed)

    def post(stream: int, batch_id: str = "b") -> object:
        posted = PostedRows(TENANT, f"s{stream}", batch_id, "application/x-ndjson", b'{"uid": 1}')
        return append_rows(database, settings.streams_dir, limits, posted)

    return post


def test_rows_posted_at_once_do_not_pass_the_limit(
    database: Database, settings: Settings, posts: Callable[[int], object]
) -> None:
    errors = refused_of(posts)
    assert len(errors) == AT_ONCE - 1
    assert {type(error) for error in errors} == {TooManyPostedBytesError}
    with database.read() as session:
        assert session.scalar(select(func.sum(InputStreamRow.batches))) == 1
    assert len([path for path in settings.streams_dir.rglob("*") if path.is_file()]) == 1


def test_one_batch_posted_several_times_at_once_is_stored_once(
    database: Database, posts: Callable[[int], object]
) -> None:
    """The batch itself fills the room: every further post of it is a repeat, and is not refused."""
    assert refused_of(lambda _: posts(0)) == []
    with database.read() as session:
        assert session.scalar(select(func.sum(InputStreamRow.batches))) == 1


@pytest.mark.one_database("postgresql")
def test_tenants_that_post_do_not_wait_for_each_other(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENKEEL_DATABASE_LOCK_TIMEOUT_SECONDS", "1")
    settings = limited(monkeypatch, posted_bytes=1)
    declare_stream(database, settings.streams_dir, settings.limits, TENANT, "clicks", "uid INT")
    posted = PostedRows(TENANT, "clicks", "b", "application/x-ndjson", b'{"uid": 1}')
    with closing(Database(settings.database_url, settings=settings.database)) as other, database.write() as session:
        lock_count(session, "another", Counted.POSTED_BYTES)
        # Raises where it waits for the transaction that is open here.
        assert not append_rows(other, settings.streams_dir, settings.limits, posted).replayed
