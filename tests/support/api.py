"""The application in this process, for tests that call it."""

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
    """A started application, its database and its settings."""

    client: TestClient
    app: FastAPI
    database: Database
    settings: Settings

    @property
    def messages(self) -> list[str]:
        """The messages in the embedded broker, once those of all stored jobs have been sent and settled."""
        wait_for("the announcer", lambda: not self.owed, 30)
        return [path.read_text() for path in (self.settings.broker_dir / "messages").iterdir()]

    @property
    def owed(self) -> list[str]:
        """The jobs whose messages have not been sent."""
        with self.database.read() as session:
            return list(session.scalars(select(OutboxRow.job_id)))

    def wait_for_announcements(self) -> None:
        """Waits until the announcer has done what it can."""
        self.app.state.services.announcer.close()

    def submit(self, **changes: object) -> httpx.Response:
        """Posts the usual job with some fields changed; one with a mode reads its table as a stream."""
        tables = {"tables": STREAM_TABLES} if "mode" in changes else {}
        answer: httpx.Response = self.client.post("/v1/jobs", json={**SPEC, **tables, **changes})
        return answer


@cache
def specification() -> dict[str, Any]:
    """The OpenAPI document of the application, which no setting changes."""
    return create_app(Settings()).openapi()


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Path, method and description of each operation of the specification."""
    for path, methods in specification()["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Checks that an answer is a problem of this status and code, and returns it."""
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
