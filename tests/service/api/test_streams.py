"""Input streams over HTTP: declare, append rows, read, delete."""

from __future__ import annotations

import hashlib
import io
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import select, update

from service.api.request_bodies import _ROWS_PATH
from service.api.streams import router
from service.config.settings import Settings
from service.contract.enums import JobStatus
from service.data import posted_rows
from service.data.posted_rows import (
    Recovered,
    hidden_directory,
    hidden_path,
    segment_name,
    show_hidden,
    stream_directory,
    write_hidden,
)
from service.ingest.parsing import rows_of
from service.store import input_streams as ingest
from service.store.input_streams import InputStream, NewBatch
from service.store.tables import InputBatchRow, JobRow
from service.streams.append_rows import PostedRows
from tests.support.api import Api, refused

SCHEMA = "uid BIGINT, page STRING, at TIMESTAMP"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
ROWS = b'{"uid": 1, "page": "/", "at": "2026-01-31T12:00:00Z"}\n{"uid": 2}\n'
LATER = 1e12


@pytest.fixture
def clicks(api: Api) -> str:
    """Declares a stream and returns its name."""
    assert declare(api).status_code == 201
    return "clicks"


def declare(api: Api, name: str = "clicks", schema: str = SCHEMA) -> httpx.Response:
    answer: httpx.Response = api.client.put(f"/v1/streams/{name}", json={"schema": schema})
    return answer


def post(
    api: Api,
    batch_id: str = "b1",
    body: bytes | Iterator[bytes] = ROWS,
    media_type: str = NDJSON,
    encoding: str | None = None,
) -> httpx.Response:
    headers = {"Content-Type": media_type}
    if encoding is not None:
        headers["Content-Encoding"] = encoding
    answer: httpx.Response = api.client.post(
        "/v1/streams/clicks/rows", params={"batch_id": batch_id}, content=body, headers=headers
    )
    return answer


def stream(api: Api, name: str = "clicks") -> InputStream:
    with api.database.read() as session:
        found = ingest.find_stream(session, "default", name)
    assert found is not None
    return found


def directory(api: Api) -> Path:
    known = stream(api)
    return stream_directory(api.settings.streams_dir, known.tenant, known.name, known.id)


def uids(api: Api) -> list[int]:
    """Returns the rows that a job would read from the stream."""
    files = [path for path in directory(api).iterdir() if not path.name.startswith((".", "_"))]
    return sorted(uid for file in files for uid in pq.read_table(file).column("uid").to_pylist())


def hidden(api: Api) -> list[Path]:
    return list(hidden_directory(api.settings.streams_dir).glob("*"))


class TestDeclaring:
    def test_a_stream_has_the_declared_schema(self, api: Api) -> None:
        answer = declare(api, schema="uid long, `page` string, at timestamp")
        assert answer.status_code == 201
        assert answer.json()["schema"] == SCHEMA
        assert answer.json()["rows"] == 0
        assert answer.json()["last_appended_at"] is None
        assert api.client.get("/v1/streams/clicks").json() == answer.json()
        assert directory(api).is_dir()

    def test_the_same_declaration_again_changes_nothing(self, api: Api, clicks: str) -> None:
        post(api)
        before = api.client.get("/v1/streams/clicks").json()
        again = declare(api)
        assert again.status_code == 200
        assert again.json() == before

    def test_another_schema_is_refused_with_the_differences(
        self, api: Api, clicks: str, subtests: pytest.Subtests
    ) -> None:
        cases: list[tuple[str, str]] = [
            ("uid INT, page STRING, at TIMESTAMP", "Column 1 is uid BIGINT in the stream and uid INT"),
            ("uid BIGINT, page STRING", "Column 3 is at TIMESTAMP in the stream and none"),
            (SCHEMA + ", more INT", "Column 4 is none in the stream and more INT"),
            ("page STRING, uid BIGINT, at TIMESTAMP", "Column 1 is uid BIGINT in the stream and page STRING"),
        ]
        for schema, told in cases:
            with subtests.test(schema=schema, told=told):
                problem = refused(declare(api, schema=schema), 409, "stream_differs")
                assert told in problem["errors"][0]["detail"]
                assert told in problem["detail"]

    def test_an_invalid_schema_is_refused(self, api: Api, subtests: pytest.Subtests) -> None:
        for schema in ("uid", "uid ARRAY<INT>", "a INT, A INT"):
            with subtests.test(schema=schema):
                refused(declare(api, schema=schema), 422, "invalid_schema")
                assert api.client.get("/v1/streams").json()["streams"] == []

    def test_an_invalid_name_is_refused(self, api: Api, subtests: pytest.Subtests) -> None:
        cases: list[str] = ["_a", "-a", "a.b", "a:b", "a[1]", "a b", "a" * 101, "%2e%2e", "ä"]
        for name in cases:
            with subtests.test(name=name):
                assert declare(api, name).status_code == 422

    @pytest.mark.both_databases
    def test_concurrent_declarations_create_one_stream(self, api: Api) -> None:
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda _: declare(api), range(4)))
        assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 201]
        assert len(list(directory(api).parent.iterdir())) == 1


class TestListing:
    @pytest.mark.both_databases
    def test_pages_by_name(self, api: Api) -> None:
        for name in ("c", "a", "b"):
            declare(api, name)
        first = api.client.get("/v1/streams", params={"page_size": 2}).json()
        assert [one["name"] for one in first["streams"]] == ["a", "b"]
        second = api.client.get("/v1/streams", params={"page_size": 2, "cursor": first["next_cursor"]}).json()
        assert [one["name"] for one in second["streams"]] == ["c"]
        assert second["next_cursor"] == ""

    def test_a_cursor_of_another_list(self, api: Api) -> None:
        refused(api.client.get("/v1/streams", params={"cursor": "abc"}), 400, "invalid_cursor")

    def test_no_such_stream(self, api: Api, subtests: pytest.Subtests) -> None:
        for method in ("GET", "DELETE"):
            with subtests.test(method=method):
                refused(api.client.request(method, "/v1/streams/clicks"), 404, "stream_not_found")


class TestPosting:
    def test_rows_are_stored_before_the_response(self, api: Api, clicks: str) -> None:
        answer = post(api)
        assert answer.status_code == 202
        assert answer.json() == {"batch_id": "b1", "rows": 2, "replayed": False}
        (file,) = directory(api).iterdir()
        assert file.name == segment_name(1, PostedRows("", "", "", NDJSON, ROWS).sha256)
        assert hidden(api) == []
        table = pq.read_table(file)
        assert table.schema.names == ["uid", "page", "at"]
        assert table.column("uid").to_pylist() == [1, 2]
        assert table.column("page").to_pylist() == ["/", None]
        known = api.client.get("/v1/streams/clicks").json()
        assert (known["batches"], known["rows"], known["bytes"]) == (1, 2, file.stat().st_size)
        assert known["last_appended_at"] is not None

    def test_batches_are_numbered(self, api: Api, clicks: str) -> None:
        for number in range(3):
            assert post(api, f"b{number}").json()["rows"] == 2
        assert [path.name[:13] for path in sorted(directory(api).iterdir())] == [
            "000000000001-",
            "000000000002-",
            "000000000003-",
        ]

    @pytest.mark.both_databases
    def test_the_same_batch_again_adds_nothing(self, api: Api, clicks: str) -> None:
        post(api)
        again = post(api)
        assert again.status_code == 202
        assert again.json() == {"batch_id": "b1", "rows": 2, "replayed": True}
        assert uids(api) == [1, 2]
        assert stream(api).rows == 2

    def test_other_rows_under_its_id_are_refused(self, api: Api, clicks: str, subtests: pytest.Subtests) -> None:
        cases: list[tuple[bytes, str]] = [(b'{"uid": 3}\n', NDJSON), (ROWS + b"\n", NDJSON), (ROWS, "text/csv")]
        for body, media_type in cases:
            with subtests.test(body=body, media_type=media_type):
                post(api)
                refused(post(api, body=body, media_type=media_type), 422, "batch_id_reused")
                assert uids(api) == [1, 2]

    def test_the_same_rows_under_another_id_are_stored_again(self, api: Api, clicks: str) -> None:
        post(api)
        post(api, "b2")
        assert uids(api) == [1, 1, 2, 2]

    @pytest.mark.parametrize("media_type", [NDJSON, "application/x-ndjson; charset=UTF-8", "text/csv", ARROW])
    def test_every_format(self, api: Api, clicks: str, media_type: str) -> None:
        body = b'{"uid": 5}\n'
        if media_type == "text/csv":
            body = b"uid\n5\n"
        elif media_type == ARROW:
            written = io.BytesIO()
            table = pa.table({"uid": [5]})
            with pa.ipc.new_stream(written, table.schema) as writer:
                writer.write_table(table)
            body = written.getvalue()
        assert post(api, body=body, media_type=media_type).status_code == 202
        assert uids(api) == [5]

    def test_an_invalid_row_is_reported_and_nothing_is_stored(self, api: Api, clicks: str) -> None:
        problem = refused(post(api, body=ROWS + b'{"uid": 1.5}\n'), 422, "invalid_rows")
        (issue,) = problem["errors"]
        assert (issue["code"], issue["line"], issue["pointer"]) == ("invalid_value", 3, "/uid")
        assert "Line 3" in problem["detail"]
        assert "'uid'" in problem["detail"]
        assert list(directory(api).iterdir()) == hidden(api) == []
        assert stream(api).batches == 0
        assert post(api).json()["replayed"] is False

    def test_a_batch_id_is_required(self, api: Api, clicks: str, subtests: pytest.Subtests) -> None:
        cases: list[str | None] = [None, "", "a" * 256, "a\nb", "ä", "a\x7f"]
        for batch_id in cases:
            with subtests.test(batch_id=batch_id):
                parameters = {} if batch_id is None else {"batch_id": batch_id}
                headers = {"Content-Type": NDJSON}
                answer = api.client.post("/v1/streams/clicks/rows", params=parameters, content=ROWS, headers=headers)
                problem = refused(answer, 422, problem_code(answer))
                assert problem["errors"][0]["pointer"] == "/query/batch_id"

    def test_the_longest_id(self, api: Api, clicks: str) -> None:
        assert post(api, "a/b c?&" + "~" * 248).status_code == 202

    def test_rows_for_an_undeclared_stream_are_refused(self, api: Api) -> None:
        refused(post(api), 404, "stream_not_found")

    def test_rows_of_tenants_are_separate(self, api: Api, clicks: str) -> None:
        with api.database.write() as session:
            ingest.insert_stream(session, tenant="other", name="clicks", stream_id="x", ddl="a INT", now=1)
            other = ingest.find_stream(session, "other", "clicks")
            assert other is not None
            ingest.insert_batch(session, other, NewBatch("b1", "0" * 64, "f", 1, 1), 1)
        assert post(api).json()["replayed"] is False
        assert [one["schema"] for one in api.client.get("/v1/streams").json()["streams"]] == [SCHEMA]


def problem_code(answer: httpx.Response) -> str:
    return str(answer.json()["code"])


class TestBodyLimits:
    @pytest.fixture
    def settings(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
        monkeypatch.setenv("EVENKEEL_API_MAX_ROWS_BYTES", "50000")
        return Settings()

    def test_rows_have_their_own_limit(self, api: Api, clicks: str) -> None:
        assert api.settings.api.max_body_bytes == 20_000
        assert post(api, body=ROWS + b"\n" * 40_000).status_code == 202

    def test_the_declared_length_is_checked(self, api: Api, clicks: str) -> None:
        problem = refused(post(api, body=b"\n" * 50_001), 413, "body_too_large")
        assert "EVENKEEL_API_MAX_ROWS_BYTES" in problem["detail"]

    def test_the_length_is_checked_while_the_body_streams(self, api: Api, clicks: str) -> None:
        taken = []

        def chunks() -> Iterator[bytes]:
            for number in range(100):
                taken.append(number)
                yield b"\n" * 1000

        refused(post(api, body=chunks()), 413, "body_too_large")

    def test_json_bodies_have_another_limit(self, api: Api) -> None:
        refused(declare(api, schema="a" * 30_000), 413, "body_too_large")

    def test_another_type_is_refused(self, api: Api, clicks: str, subtests: pytest.Subtests) -> None:
        body_cases: list[bytes] = [ROWS, b""]
        for body in body_cases:
            for media_type in ("", "application/json", "text/plain", "application/jsonl", "text/csv; charset=latin-1"):
                with subtests.test(body=body, media_type=media_type):
                    refused(post(api, body=body, media_type=media_type), 415, "unsupported_media_type")

    def test_compressed_rows_are_refused(self, api: Api, clicks: str, subtests: pytest.Subtests) -> None:
        for encoding in ("gzip", "zstd", "br", "identity, gzip"):
            with subtests.test(encoding=encoding):
                refused(post(api, encoding=encoding), 415, "unsupported_media_type")
                assert uids(api) == []

    def test_the_body_check_matches_the_path_of_the_route(self) -> None:
        paths = [getattr(route, "path", "").replace("{name}", "clicks") for route in router.routes]
        assert [path for path in paths if _ROWS_PATH.fullmatch(path)] == ["/v1/streams/clicks/rows"]


@pytest.mark.both_databases
class TestConcurrency:
    def test_concurrent_posts_of_one_batch_store_it_once(
        self, api: Api, clicks: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        together = threading.Barrier(2)

        def meet(*arguments: Any) -> Any:
            # Both have looked, neither has found anything.
            together.wait(30)
            return rows_of(*arguments)

        monkeypatch.setattr("service.streams.append_rows.rows_of", meet)
        with ThreadPoolExecutor(2) as threads:
            answers = [pending.result() for pending in [threads.submit(post, api) for _ in range(2)]]
        assert [answer.status_code for answer in answers] == [202, 202]
        assert sorted(answer.json()["replayed"] for answer in answers) == [False, True]
        assert uids(api) == [1, 2]
        assert (stream(api).batches, stream(api).rows) == (1, 2)
        assert hidden(api) == []

    def test_concurrent_posts_lose_no_rows(self, api: Api, clicks: str) -> None:
        def one(number: int) -> int:
            return post(api, f"b{number % 20}", json.dumps({"uid": number % 20}).encode()).status_code

        with ThreadPoolExecutor(8) as threads:
            assert set(threads.map(one, range(40))) == {202}
        assert uids(api) == list(range(20))
        assert (stream(api).batches, stream(api).rows) == (20, 20)

    def test_rows_for_a_stream_that_is_deleted_meanwhile_are_refused(
        self, api: Api, clicks: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def delete_first(*arguments: Any) -> Any:
            assert api.client.delete("/v1/streams/clicks").status_code == 204
            assert declare(api, schema="uid BIGINT, page STRING, at TIMESTAMP, more INT").status_code == 201
            return rows_of(*arguments)

        monkeypatch.setattr("service.streams.append_rows.rows_of", delete_first)
        refused(post(api), 404, "stream_not_found")
        assert stream(api).batches == 0
        assert list(directory(api).iterdir()) == hidden(api) == []


@pytest.mark.both_databases
class TestCrashes:
    """What remains after a process ends in the middle of a post."""

    def written(self, api: Api) -> NewBatch:
        """The first step: a hidden file."""
        posted = PostedRows("default", "clicks", "b1", NDJSON, ROWS)
        segment = write_hidden(api.settings.streams_dir, rows_of(ROWS, NDJSON, stream(api).schema))
        return NewBatch("b1", posted.sha256, segment.id, segment.rows, segment.bytes)

    def accepted(self, api: Api) -> NewBatch:
        """The first two: a hidden file of an accepted batch."""
        new = self.written(api)
        with api.database.write() as session:
            assert ingest.insert_batch(session, stream(api), new, 1) is not None
        assert uids(api) == []
        return new

    def test_a_crash_after_the_file_stores_nothing(self, api: Api, clicks: str) -> None:
        self.written(api)
        assert show_hidden(api.database, api.settings.streams_dir, now=LATER - 1e12) == Recovered(0, 0)
        assert post(api).json()["replayed"] is False
        assert uids(api) == [1, 2]
        assert len(hidden(api)) == 1
        assert show_hidden(api.database, api.settings.streams_dir, now=LATER) == Recovered(0, 1)
        assert hidden(api) == []
        assert uids(api) == [1, 2]

    def test_a_repeat_publishes_the_rows_after_a_crash(self, api: Api, clicks: str) -> None:
        self.accepted(api)
        assert post(api).json() == {"batch_id": "b1", "rows": 2, "replayed": True}
        assert uids(api) == [1, 2]
        assert hidden(api) == []

    def test_the_sweep_publishes_the_rows_after_a_crash(self, api: Api, clicks: str) -> None:
        self.accepted(api)
        assert show_hidden(api.database, api.settings.streams_dir, now=LATER) == Recovered(1, 0)
        assert uids(api) == [1, 2]
        assert show_hidden(api.database, api.settings.streams_dir, now=LATER) == Recovered(0, 0)
        assert post(api).json()["replayed"] is True
        assert uids(api) == [1, 2]

    def test_the_sweep_ignores_running_posts(self, api: Api, clicks: str) -> None:
        new = self.accepted(api)
        written = hidden_path(api.settings.streams_dir, new.file).stat().st_mtime
        young = written + posted_rows._YOUNG_SECONDS
        assert show_hidden(api.database, api.settings.streams_dir, now=young) == Recovered(0, 0)
        assert show_hidden(api.database, api.settings.streams_dir, now=young + 1) == Recovered(1, 0)

    def test_a_file_without_a_batch_is_kept_for_an_hour(self, api: Api, clicks: str) -> None:
        new = self.written(api)
        written = hidden_path(api.settings.streams_dir, new.file).stat().st_mtime
        hour = written + posted_rows.ORPHANS_KEPT_SECONDS
        assert show_hidden(api.database, api.settings.streams_dir, now=hour) == Recovered(0, 0)
        assert show_hidden(api.database, api.settings.streams_dir, now=hour + 1) == Recovered(0, 1)

    def test_a_repeat_restores_removed_files(self, api: Api, clicks: str) -> None:
        new = self.accepted(api)
        hidden_path(api.settings.streams_dir, new.file).unlink()
        directory(api).rmdir()
        assert post(api).json()["replayed"] is True
        assert uids(api) == [1, 2]

    def test_a_full_disk(self, api: Api, clicks: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("service.data.posted_rows.os.fsync", full)
        problem = refused(post(api), 503, "storage_unavailable")
        assert "No space left on device" in problem["detail"]
        monkeypatch.undo()
        assert hidden(api) == []
        assert post(api).json()["replayed"] is False
        assert uids(api) == [1, 2]

    def test_the_sweep_without_posted_rows(self, api: Api) -> None:
        assert show_hidden(api.database, api.settings.streams_dir) == Recovered(0, 0)


@pytest.mark.both_databases
class TestDeleting:
    def test_all_rows_are_deleted(self, api: Api, clicks: str) -> None:
        post(api)
        gone = directory(api)
        assert api.client.delete("/v1/streams/clicks").status_code == 204
        assert not gone.exists()
        refused(api.client.get("/v1/streams/clicks"), 404, "stream_not_found")
        with api.database.read() as session:
            assert session.scalars(select(InputBatchRow)).all() == []

    def test_a_new_declaration_creates_another_stream(self, api: Api, clicks: str) -> None:
        post(api)
        old = directory(api)
        api.client.delete("/v1/streams/clicks")
        assert declare(api, schema="uid BIGINT").status_code == 201
        assert directory(api) != old
        assert post(api, body=b'{"uid": 9}').json()["replayed"] is False
        assert uids(api) == [9]

    def test_a_stream_in_use_cannot_be_deleted(self, api: Api, clicks: str) -> None:
        job_id = api.submit().json()["id"]
        tables = {"clicks": {"format": "stream", "stream": "clicks"}, "o": {"format": "parquet", "path": "o"}}
        set_job(api, job_id, spec={"tables": tables})
        problem = refused(api.client.delete("/v1/streams/clicks"), 409, "stream_in_use")
        assert job_id in problem["detail"]
        set_job(api, job_id, status=JobStatus.SUCCEEDED.value)
        assert api.client.delete("/v1/streams/clicks").status_code == 204

    @pytest.mark.parametrize(
        "table",
        [
            {"format": "stream", "stream": "other"},
            {"format": "parquet", "path": "clicks"},
            {"format": "parquet", "stream": "clicks"},
        ],
    )
    def test_jobs_that_read_other_tables_do_not_block_the_deletion(
        self, api: Api, clicks: str, table: dict[str, str]
    ) -> None:
        set_job(api, api.submit().json()["id"], spec={"tables": {"t": table}})
        assert api.client.delete("/v1/streams/clicks").status_code == 204


def set_job(api: Api, job_id: str, **values: object) -> None:
    with api.database.write() as session:
        session.execute(update(JobRow).where(JobRow.id == job_id).values(**values))


def test_the_digest_depends_on_the_format() -> None:
    posted = PostedRows("t", "s", "b", "text/csv", b"1")
    assert posted.sha256 == hashlib.sha256(b"text/csv\n1").hexdigest()
