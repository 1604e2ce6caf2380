"""Shutdown, default headers, CORS and the audit log."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from service.api.app import create_app
from service.api.operations import HttpMetrics
from service.api.request_context import RequestContext, RequestsInProgress
from service.config.settings import Settings
from service.keys.administration import KeyRequest, issue_key
from service.store.session import Database
from tests.support.api import Api
from tests.support.lifecycle import SPEC

SCOPE = {"type": "http", "method": "GET", "path": "/v1/jobs/1", "headers": []}


async def cancelled_request(begins: bool) -> tuple[list[Message], bool]:
    """Returns the messages to the client of a request whose task is cancelled before or after the start of the
    response, as when the server stops; and whether the task raised the cancellation."""
    sent: list[Message] = []
    waiting = asyncio.Event()

    async def wait_for_ever(scope: Scope, receive: Receive, send: Send) -> None:
        if begins:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        waiting.set()
        await asyncio.Event().wait()

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    task = asyncio.create_task(
        RequestContext(wait_for_ever, HttpMetrics(), RequestsInProgress())(dict(SCOPE), receive, send)
    )
    await waiting.wait()
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return sent, True
    return sent, False


def test_a_cancelled_request_is_answered_with_503() -> None:
    (start, body), cancelled = asyncio.run(cancelled_request(begins=False))
    headers = dict(start["headers"])
    assert (start["status"], headers[b"retry-after"], cancelled) == (503, b"1", False)
    assert headers[b"content-type"] == b"application/problem+json"
    assert json.loads(body["body"])["code"] == "stopping"


def test_a_response_that_has_started_is_cut_off() -> None:
    (start,), cancelled = asyncio.run(cancelled_request(begins=True))
    assert (start["status"], cancelled) == (200, True)


async def shutdown_order(seconds: float) -> list[str]:
    """Returns the order of the response to a cancelled request and of the application's end, which waits `seconds`."""
    course: list[str] = []
    in_progress, given_up_on = RequestsInProgress(), asyncio.Event()

    async def slow_to_end(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            # As an explanation is forgotten in the database.
            await given_up_on.wait()

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        course.append(message["type"])

    task = asyncio.create_task(RequestContext(slow_to_end, HttpMetrics(), in_progress)(dict(SCOPE), receive, send))
    await asyncio.sleep(0)
    task.cancel()
    asyncio.get_running_loop().call_later(0.01, given_up_on.set)
    await in_progress.wait_until_none(seconds)
    course.append("end")
    await task
    return course


@pytest.mark.withstands(
    "the API stops before a request has ended",
    kind="fault",
    how="the server abandons a request that takes longer than the application's shutdown",
    times=1,
    guaranteed="503 `stopping` is sent before the process ends",
)
def test_the_application_ends_after_the_last_response() -> None:
    answered = ["http.response.start", "http.response.body"]
    assert asyncio.run(shutdown_order(60)) == [*answered, "end"]
    assert asyncio.run(shutdown_order(0)) == ["end", *answered]


async def wait_without_requests() -> None:
    await RequestsInProgress().wait_until_none(60)


@pytest.mark.timeout(30)
def test_the_shutdown_does_not_wait_without_requests() -> None:
    asyncio.run(wait_without_requests())


def audited(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Returns the audit lines that were written since the last call."""
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    return [line for line in told if line["event"] == "audit"]


def test_every_response_has_the_security_headers(api: Api, subtests: pytest.Subtests) -> None:
    for path in ("/healthz", "/v1/jobs", "/v1/jobs/x", "/nothing", "/openapi.json"):
        with subtests.test(path=path):
            headers = api.client.get(path).headers
            assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cache-control"] == "private, no-cache"
            assert "access-control-allow-origin" not in headers
            assert "server" not in headers


def test_cors_is_off_by_default(api: Api) -> None:
    asked = {"Origin": "https://dash.example.org", "Access-Control-Request-Method": "POST"}
    answer = api.client.options("/v1/jobs", headers=asked)
    assert answer.status_code == 405
    assert "access-control-allow-origin" not in answer.headers


def test_cors_allows_the_configured_origins(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENKEEL_API_ALLOWED_ORIGINS", "https://dash.example.org")
    with TestClient(create_app(Settings(), database), base_url="http://127.0.0.1:8080") as client:
        asked = {
            "Origin": "https://dash.example.org",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,idempotency-key",
        }
        allowed = client.options("/v1/jobs", headers=asked)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://dash.example.org"
        assert "access-control-allow-credentials" not in allowed.headers
        assert client.options("/v1/jobs", headers={**asked, "Origin": "https://evil.example"}).status_code == 400
        own = {"Origin": "https://dash.example.org"}
        assert client.post("/v1/jobs", json=SPEC, headers=own).status_code == 202
        assert client.post("/v1/jobs", json=SPEC, headers={"Origin": "https://evil.example"}).status_code == 403


@pytest.mark.parametrize("authentication", ["on"])
def test_changes_and_denials_are_written_to_the_audit_log(
    api: Api, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    issued = issue_key(database, KeyRequest(name="loads", tenant="sales"), None)
    headers = {"Authorization": f"Bearer {issued.key}", "X-Request-Id": "r-1"}
    job_id = api.client.post("/v1/jobs", json=SPEC, headers=headers).json()["id"]
    api.client.get(f"/v1/jobs/{job_id}", headers=headers)
    api.client.post(f"/v1/jobs/{job_id}/cancel", headers=headers)
    api.client.get("/v1/keys", headers=headers)
    api.client.get("/v1/jobs")
    found = audited(capsys)
    assert [(line["method"], line["path"], line["status"]) for line in found] == [
        ("POST", "/v1/jobs", 202),
        ("POST", f"/v1/jobs/{job_id}/cancel", 202),
        ("GET", "/v1/keys", 403),
        ("GET", "/v1/jobs", 401),
    ]
    assert [(line["tenant"], line["key_id"]) for line in found] == [("sales", issued.id)] * 3 + [(None, None)]
    assert found[0]["request_id"] == "r-1"
    assert found[0]["client"] == "testclient"
