"""Requests while the database restarts: with a real server that is stopped, and with lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg.errors
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute, iter_route_contexts
from fastapi.testclient import TestClient
from sqlalchemy import event, func, select
from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.api.app import create_app
from service.api.database_retries import DatabaseOutage, RetryingRoute, repeatable
from service.config.settings import Settings
from service.store.migrate import upgrade
from service.store.session import CommitUnknownError, Database, Fault, database_clock
from service.store.tables import ApiKeyRow, JobRow, OutboxRow
from tests.support.api import Api, refused
from tests.support.lifecycle import SPEC
from tests.support.processes import wait_for
from tests.support.servers import PostgresServer, running_postgres


class TestOutage:
    """How long requests wait, with a clock that the tests set."""

    @pytest.fixture
    def now(self) -> list[float]:
        return [100.0]

    @pytest.fixture
    def outage(self, now: list[float]) -> DatabaseOutage:
        return DatabaseOutage(3, lambda: now[0])

    def test_pauses_grow_until_the_time_limit(self, outage: DatabaseOutage, now: list[float]) -> None:
        pauses: list[float] = []
        while (pause := outage.pause(Fault.LOST, len(pauses) + 1)) is not None:
            pauses.append(pause)
            now[0] += pause
        assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
        assert sum(pauses) == pytest.approx(3)

    def test_later_requests_do_not_wait(self, outage: DatabaseOutage, now: list[float]) -> None:
        assert outage.pause(Fault.LOST, 1) is not None
        now[0] += 3
        assert outage.pause(Fault.LOST, 1) is None

    def test_requests_wait_again_in_the_next_outage(self, outage: DatabaseOutage, now: list[float]) -> None:
        outage.pause(Fault.LOST, 1)
        now[0] += 3
        outage.mark_recovered()
        assert outage.pause(Fault.LOST, 1) is not None

    def test_a_conflict_is_retried_three_times(self, outage: DatabaseOutage) -> None:
        assert [outage.pause(Fault.CONFLICT, tried) is None for tried in (1, 2, 3, 4)] == [False, False, False, True]

    def test_a_busy_database_is_not_retried(self, outage: DatabaseOutage) -> None:
        assert outage.pause(Fault.BUSY, 1) is None


@pytest.mark.parametrize("retry_seconds", [60])
class TestRequests:
    """The time limit is a minute, which no test needs."""

    def count(self, api: Api, table: type[ApiKeyRow] | type[JobRow] | type[OutboxRow]) -> int:
        with api.database.read() as session:
            return session.execute(select(func.count()).select_from(table)).scalar_one()

    @pytest.mark.both_databases
    def test_a_deadlock_is_retried(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        errors = [psycopg.errors.DeadlockDetected("deadlock detected"), psycopg.errors.SerializationFailure()]

        def clock(session: Session) -> int:
            if errors:
                raise OperationalError("UPDATE", None, errors.pop())
            return database_clock(session)

        monkeypatch.setattr(api.database, "_clock", clock)
        assert api.submit().status_code == 202
        assert self.count(api, JobRow) == 1

    def lose_connection_at_commit(self, api: Api, *, after_it: bool, table: str = "jobs") -> None:
        """Closes the connection of the first transaction that has written into the table, during its commit."""
        lost: list[Connection] = []

        @event.listens_for(api.database.engine, "commit")
        def break_off(connection: Connection) -> None:
            driver = connection.connection.driver_connection
            assert driver is not None
            if lost or connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one() == 0:
                return
            lost.append(connection)
            if after_it:
                driver.commit()
            driver.close()

    @pytest.mark.one_database("postgresql")
    @pytest.mark.parametrize("after_it", [False, True])
    def test_a_submission_with_a_key_is_stored_once(self, api: Api, after_it: bool) -> None:
        self.lose_connection_at_commit(api, after_it=after_it)
        answer = api.client.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": "k"})
        assert answer.status_code == 202
        assert self.count(api, JobRow) == 1
        again = api.client.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": "k"})
        assert again.json()["id"] == answer.json()["id"]

    @pytest.mark.one_database("postgresql")
    @pytest.mark.parametrize("after_it", [False, True])
    def test_a_batch_of_rows_is_stored_once(self, api: Api, after_it: bool) -> None:
        assert api.client.put("/v1/streams/clicks", json={"schema": "uid BIGINT"}).status_code == 201
        self.lose_connection_at_commit(api, after_it=after_it, table="input_batches")
        answer = api.client.post(
            "/v1/streams/clicks/rows?batch_id=b",
            content=b'{"uid": 1}',
            headers={"Content-Type": "application/x-ndjson"},
        )
        assert answer.status_code == 202
        assert answer.json()["replayed"] is after_it
        assert api.client.get("/v1/streams/clicks").json()["rows"] == 1
        assert len(list(api.settings.streams_dir.glob("input/default/clicks/*/0*.parquet"))) == 1

    @pytest.mark.one_database("postgresql")
    @pytest.mark.parametrize("after_it", [False, True])
    def test_a_declaration_is_stored_once(self, api: Api, after_it: bool) -> None:
        self.lose_connection_at_commit(api, after_it=after_it, table="input_streams")
        answer = api.client.put("/v1/streams/clicks", json={"schema": "uid BIGINT"})
        assert answer.status_code == (200 if after_it else 201)

    @pytest.mark.one_database("postgresql")
    def test_a_submission_without_a_key_is_not_repeated(self, api: Api) -> None:
        self.lose_connection_at_commit(api, after_it=True)
        answer = api.submit()
        assert answer.status_code == 503
        assert "not known" in answer.json()["detail"]
        assert self.count(api, JobRow) == 1

    @pytest.mark.one_database("postgresql")
    def test_the_creation_of_an_api_key_is_never_repeated(self, api: Api) -> None:
        """There would be two keys, and the caller would know only one."""
        self.lose_connection_at_commit(api, after_it=True, table="api_keys")
        answer = api.client.post("/v1/keys", json={"name": "nightly"}, headers={"Idempotency-Key": "k"})
        assert answer.status_code == 503
        assert "not known" in answer.json()["detail"]
        assert self.count(api, ApiKeyRow) == 1

    @pytest.mark.both_databases
    def test_a_job_is_accepted_although_its_message_stays_in_the_outbox(self, api: Api) -> None:
        @event.listens_for(api.database.engine, "before_cursor_execute")
        def fail(*told: object) -> None:
            if "DELETE FROM outbox" in str(told[2]):
                raise OperationalError("DELETE", None, psycopg.errors.AdminShutdown())

        assert api.submit().status_code == 202
        api.wait_for_announcements()
        assert self.count(api, OutboxRow) == 1


UNSAFE = {"POST", "PUT", "PATCH", "DELETE"}
REPEATABLE = {
    "POST /v1/explain": "",
    "POST /v1/jobs": "idempotency-key",
    "POST /v1/profiles": "",
    "POST /v1/streams/{name}/rows": "batch_id",
    "PUT /v1/streams/{name}": "",
}
"""Requests that change something and may be repeated -> the header or query parameter that this requires."""


class TestRoutes:
    """Whether a request is repeated after a lost commit, for every route that changes something."""

    @pytest.fixture
    def routes(self) -> dict[str, APIRoute]:
        found = {
            f"{method} {context.path}": context.original_route
            for context in iter_route_contexts(create_app(Settings()).routes)
            for method in (context.methods or set()) & UNSAFE
        }
        routes = {name: route for name, route in found.items() if isinstance(route, APIRoute)}
        assert routes.keys() == found.keys()
        assert len(routes) > len(REPEATABLE)
        return routes

    def tries(self, route: APIRoute, method: str, carried: set[str], monkeypatch: pytest.MonkeyPatch) -> int:
        """Returns the number of tries of a request whose first commit gets no answer."""
        tried: list[Request] = []

        async def handle(request: Request) -> Response:
            tried.append(request)
            if len(tried) == 1:
                raise CommitUnknownError("COMMIT", None, OSError())
            return Response()

        def handler(_route: APIRoute) -> Callable[[Request], Awaitable[Response]]:
            return handle

        app = FastAPI()
        app.state.outage = DatabaseOutage(60)
        scope = {
            "type": "http",
            "app": app,
            "method": method,
            "headers": [(b"idempotency-key", b"k")] if "idempotency-key" in carried else [],
            "query_string": b"batch_id=b" if "batch_id" in carried else b"",
        }
        with monkeypatch.context() as patch:
            patch.setattr(APIRoute, "get_route_handler", handler)
            answer = route.get_route_handler()(Request(scope))
        try:
            asyncio.run(answer)
        except CommitUnknownError:
            assert len(tried) == 1
        return len(tried)

    def test_a_route_is_declared_repeatable_or_never_repeated(
        self, routes: dict[str, APIRoute], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert {name for name, route in routes.items() if repeatable(route.endpoint)} == REPEATABLE.keys()
        everything = {"idempotency-key", "batch_id"}
        for name, route in routes.items():
            method = name.partition(" ")[0]
            expected = 2 if name in REPEATABLE else 1
            assert self.tries(route, method, everything, monkeypatch) == expected, name
            needed = REPEATABLE.get(name, "")
            expected = 2 if name in REPEATABLE and not needed else 1
            assert self.tries(route, method, everything - {needed} if needed else set(), monkeypatch) == expected, name

    def test_the_required_header_or_query_is_a_parameter_of_the_route(self, routes: dict[str, APIRoute]) -> None:
        for name, needed in REPEATABLE.items():
            known = {part.alias.lower() for part in routes[name].dependant.header_params}
            known |= {part.alias for part in routes[name].dependant.query_params}
            assert not needed or needed in known, name

    def test_a_request_that_changes_nothing_is_repeated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Reading requests also commit: the use of a key is stored."""
        route = RetryingRoute("/", lambda: None)
        assert self.tries(route, "GET", set(), monkeypatch) == 2


@pytest.mark.withstands(
    "the disk is full (SQLite)",
    how="SQLite cannot extend its file",
    times=1,
    guaranteed="503 `database_unavailable`, nothing is stored partially; requests succeed once there is space",
)
def test_a_full_disk_is_a_503_and_loses_nothing(api: Api) -> None:
    pages = [1]  # what it has counts as the least

    @event.listens_for(api.database.engine, "checkout")
    def limit(connection: Any, *_: object) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages[0]}")

    large = {"sql": f"SELECT COUNT(*) AS n FROM orders WHERE uid IN ({', '.join(map(str, range(1_000)))})"}
    before = api.submit().json()
    refused(api.submit(**large), 503, "database_unavailable")
    assert api.client.get(f"/v1/jobs/{before['id']}").json() == before
    pages[0] = 1_000_000
    after = api.submit(**large)
    assert after.status_code == 202
    listed = api.client.get("/v1/jobs").json()["jobs"]
    assert [job["id"] for job in listed] == [after.json()["id"], before["id"]]


@pytest.fixture(scope="module")
def own_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with running_postgres(tmp_path_factory.mktemp("restarted")) as server:
        yield server


@pytest.mark.parametrize("retry_seconds", [60])
def test_requests_wait_for_a_restart(settings: Settings, own_postgres: PostgresServer) -> None:
    with closing(Database(own_postgres.create_database("short"))) as database, ThreadPoolExecutor(2) as threads:
        upgrade(database)
        app = create_app(settings, database)
        with TestClient(app, base_url="http://127.0.0.1:8080") as client:
            job_id = client.post("/v1/jobs", json=SPEC).json()["id"]
            own_postgres.stop()
            reading = threads.submit(client.get, f"/v1/jobs/{job_id}")
            cancelling = threads.submit(client.post, f"/v1/jobs/{job_id}/cancel")
            wait_for("the outage to be noticed", lambda: app.state.outage._since is not None, 60)
            own_postgres.start()
            assert reading.result(60).json()["id"] == job_id
            assert cancelling.result(60).json()["status"] == "CANCELLED"
            assert client.get("/v1/jobs").json()["jobs"][0]["status"] == "CANCELLED"


def test_a_long_outage_is_503_at_once(settings: Settings, own_postgres: PostgresServer) -> None:
    with closing(Database(own_postgres.create_database("long"))) as database:
        upgrade(database)
        with TestClient(create_app(settings, database), base_url="http://127.0.0.1:8080") as client:
            own_postgres.stop()
            for answer in (client.get("/v1/jobs"), client.post("/v1/jobs", json=SPEC)):
                refused(answer, 503, "database_unavailable")
                assert answer.headers["retry-after"] == "1"
            assert client.get("/healthz").status_code == 200
            unready = client.get("/readyz")
            assert next(issue["code"] for issue in unready.json()["errors"]) == "database"
            own_postgres.start()
            assert client.get("/v1/jobs").status_code == 200
