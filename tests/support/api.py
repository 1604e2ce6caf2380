"""The API application in the test process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import select

from service.api.app import create_app
from service.config.settings import Settings
from service.store.session import Database
from service.store.tables import OutboxRow
from tests.support.lifecycle import SPEC, STREAM_TABLES
from tests.support.processes import wait_for


@dataclass(frozen=True)
class Api:
    """A started application with its database and settings."""

    client: TestClient
    app: FastAPI
    database: Database
    settings: Settings

    @property
    def messages(self) -> list[str]:
        """The messages in the embedded broker, after those of all stored jobs have been sent."""
        wait_for("the messages to be sent", lambda: not self.owed, 30)
        return [path.read_text() for path in (self.settings.broker_dir / "messages").iterdir()]

    @property
    def owed(self) -> list[str]:
        """The jobs whose messages have not been sent."""
        with self.database.read() as session:
            return list(session.scalars(select(OutboxRow.job_id)))

    def wait_for_announcements(self) -> None:
        """Waits until the announcer has sent what it can."""
        self.app.state.services.announcer.close()

    def submit(self, **changes: object) -> httpx.Response:
        """Posts `SPEC` with changed fields. If they contain a mode, the table is read as a stream."""
        tables = {"tables": STREAM_TABLES} if "mode" in changes else {}
        answer: httpx.Response = self.client.post("/v1/jobs", json={**SPEC, **tables, **changes})
        return answer


@cache
def specification() -> dict[str, Any]:
    """Returns the application's OpenAPI document, which does not depend on settings."""
    return create_app(Settings()).openapi()


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields path, method and description of each operation of the specification.

    The description has what it refers to in place of the references, except those to schemas.
    """
    for path, methods in specification()["paths"].items():
        for method, operation in methods.items():
            yield path, method, _without_references(operation)


def _without_references(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_references(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind, _, name = value.get("$ref", "").removeprefix("#/components/").partition("/")
    if name and kind != "schemas":
        return _without_references(specification()["components"][kind][name])
    return {key: _without_references(item) for key, item in value.items()}


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Checks that a response is a problem with this status and code, and returns the problem."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["code"] == code
    assert problem["type"] == f"/problems/{code}"
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert problem["instance"] == answer.request.url.path
    return problem
