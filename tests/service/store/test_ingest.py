"""Input streams in the database: unique names, and numbered batches that are accepted once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.contract.enums import JobStatus
from service.store import input_streams
from service.store.input_streams import Hidden, InputStream, NewBatch
from service.store.session import Database
from service.store.tables import InputBatchRow, JobRow


def declare(session: Session, name: str = "clicks", tenant: str = "default", stream_id: str = "a1") -> InputStream:
    assert input_streams.insert_stream(session, tenant=tenant, name=name, stream_id=stream_id, ddl="uid BIGINT", now=5)
    found = input_streams.find_stream(session, tenant, name)
    assert found is not None
    return found


def batch(number: int, batch_id: str | None = None) -> NewBatch:
    return NewBatch(batch_id or f"b{number}", f"{number:064}", f"file-{number}", 10 * number, 100 * number)


def test_names_are_unique_within_a_tenant(database: Database) -> None:
    with database.write() as session:
        stream = declare(session)
        assert not input_streams.insert_stream(
            session, tenant="default", name="clicks", stream_id="b2", ddl="uid INT", now=6
        )
        assert declare(session, tenant="other").tenant == "other"
        assert input_streams.find_stream(session, "default", "clicks") == stream
        assert stream.schema.names == ("uid",)
        assert input_streams.find_stream(session, "default", "other") is None


def test_batches_are_numbered_and_summed_up(database: Database) -> None:
    with database.write() as session:
        stream = declare(session)
        sequence = [input_streams.insert_batch(session, stream, batch(number), 7 + number) for number in (1, 2)]
    assert [one.seq for one in sequence if one is not None] == [1, 2]
    with database.read() as session:
        found = input_streams.find_stream(session, "default", "clicks")
        assert found is not None
        assert (found.batches, found.rows, found.bytes, found.created_at, found.newest_at) == (2, 30, 300, 5, 9)
        assert input_streams.find_batch(session, tenant="default", stream="clicks", batch_id="b2") == sequence[1]
        assert input_streams.find_batch(session, tenant="other", stream="clicks", batch_id="b2") is None


def test_a_batch_is_accepted_once(database: Database) -> None:
    with database.write() as session:
        stream = declare(session)
        input_streams.insert_batch(session, stream, batch(1), 7)
    with pytest.raises(IntegrityError), database.write() as session:
        input_streams.insert_batch(session, stream, batch(2, "b1"), 8)
    with database.read() as session:
        found = input_streams.find_stream(session, "default", "clicks")
        assert found is not None
        assert (found.batches, found.rows) == (1, 10)


def test_a_batch_is_not_accepted_by_a_new_stream_of_the_same_name(database: Database) -> None:
    with database.write() as session:
        stream = declare(session)
        input_streams.delete_stream(session, tenant="default", name="clicks")
        assert input_streams.insert_batch(session, stream, batch(1), 7) is None
        declare(session, stream_id="b2")
        assert input_streams.insert_batch(session, stream, batch(1), 7) is None
        assert session.execute(select(func.count()).select_from(InputBatchRow)).scalar_one() == 0


def test_deleting_leaves_others_alone(database: Database) -> None:
    with database.write() as session:
        for number, (tenant, name) in enumerate([("default", "clicks"), ("default", "views"), ("other", "clicks")]):
            input_streams.insert_batch(session, declare(session, name, tenant), batch(number), 7)
        input_streams.delete_stream(session, tenant="default", name="clicks")
        left = session.execute(select(InputBatchRow.tenant, InputBatchRow.stream)).all()
        assert sorted((tenant, stream) for tenant, stream in left) == [("default", "views"), ("other", "clicks")]
        assert [one.name for one in input_streams.list_streams(session, tenant="default", after="", limit=9)] == [
            "views"
        ]


def test_hidden_files_of_accepted_batches(database: Database) -> None:
    with database.write() as session:
        stream = declare(session)
        input_streams.insert_batch(session, stream, batch(1), 7)
        input_streams.insert_batch(session, stream, batch(2), 7)
        found = input_streams.find_hidden(session, ["file-2", "file-3"])
    assert found == [Hidden("file-2", "default", "clicks", "a1", 2, f"{2:064}")]


class TestReaders:
    @pytest.fixture
    def read_by(self, database: Database, add_job: Callable[..., str]) -> Callable[..., str]:
        def add(job_id: str, *, kind: str = "run", **values: object) -> str:
            add_job(job_id, kind=kind)
            spec = {"tables": {"c": {"format": "stream", "stream": "clicks"}}}
            with database.write() as session:
                session.execute(update(JobRow).where(JobRow.id == job_id).values(**{"spec": spec, **values}))
            return job_id

        return add

    def readers(self, database: Database) -> list[str]:
        with database.read() as session:
            return list(input_streams.readers_of(session, "default", "clicks"))

    @pytest.mark.parametrize("status", JobStatus)
    def test_jobs_that_have_not_finished(
        self, database: Database, read_by: Callable[..., str], status: JobStatus
    ) -> None:
        read_by("job-1", status=status.value)
        assert self.readers(database) == ([] if status.is_terminal else ["job-1"])

    def test_of_this_tenant_and_no_explanations(self, database: Database, read_by: Callable[..., str]) -> None:
        read_by("job-1", tenant="other")
        read_by("job-2", kind="explain")
        assert self.readers(database) == []

    @pytest.mark.parametrize(
        "spec",
        [
            {},
            {"tables": None},
            {"tables": {"c": None}},
            {"tables": {"c": {"format": "stream", "stream": "Clicks"}}},
            {"tables": {"clicks": {"format": "parquet", "path": "clicks"}}},
        ],
    )
    @pytest.mark.one_database
    def test_of_this_stream(self, database: Database, read_by: Callable[..., str], spec: object) -> None:
        read_by("job-1", spec=spec)
        assert self.readers(database) == []
