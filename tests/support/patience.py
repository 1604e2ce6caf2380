"""Clients that retry as the documentation says while parts of the service fail, and count every response.

After a 503, a request is repeated when Retry-After has passed; after a broken connection, it is sent to the next API. A
submission has an Idempotency-Key, so a repeated one creates no second job. A stream continues after the last event.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import httpx

from service.contract.enums import JobStatus
from tests.support.client import JobClient

_TIMEOUT_SECONDS = 300.0
_WAIT_SECONDS = 3
_BROKEN_SECONDS = 0.1

T = TypeVar("T")

Answer = tuple[str, int, str]
"""The request (`submit`, `wait`, `stream`), the status of the response, and the code of its problem.

Without a complete response: 0 and the name of the client's error.
"""


class PatientClient:
    """A client of several APIs. It is safe to share between threads."""

    def __init__(self, clients: Sequence[JobClient]) -> None:
        self._clients = clients
        self._lock = threading.Lock()
        self._turn = 0
        self.answers: Counter[Answer] = Counter()

    def submit(self, spec: Mapping[str, Any], key: str) -> str:
        """Posts a job until it is accepted and returns its id."""

        def post(client: JobClient) -> str | None:
            answer = client.http.post("/v1/jobs", json=spec, headers={"Idempotency-Key": key})
            return str(answer.json()["id"]) if self._is_answered("submit", answer) else None

        return self._until("submit", post)

    def wait(self, job_id: str) -> dict[str, Any]:
        """Waits for the end of a job with `Prefer: wait` and entity tags."""
        headers = {"Prefer": f"wait={_WAIT_SECONDS}"}

        def get(client: JobClient) -> dict[str, Any] | None:
            answer = client.http.get(f"/v1/jobs/{job_id}", headers=headers)
            if not self._is_answered("wait", answer) or answer.status_code == httpx.codes.NOT_MODIFIED:
                return None
            headers["If-None-Match"] = answer.headers["ETag"]
            job: dict[str, Any] = answer.json()
            return job if job["finished"] else None

        return self._until("wait", get)

    def follow(self, job_id: str) -> list[dict[str, Any]]:
        """Returns all events of a job until its end, from as many streams as necessary."""
        events: list[dict[str, Any]] = []

        def stream(client: JobClient) -> bool:
            headers = {"Last-Event-ID": str(events[-1]["id"])} if events else {}
            with client.http.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as answer:
                if answer.is_error:
                    answer.read()
                if self._is_answered("stream", answer):
                    for event in _events(answer):
                        events.append(event)  # noqa: PERF402 - what came before the connection broke is kept
                    # A stream that ends before its job was interrupted.
                    return bool(events) and _is_last(events[-1])
            return False

        self._until("stream", stream)
        return events

    def _until(self, what: str, ask: Callable[[JobClient], T | None]) -> T:
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        client = self._next()
        while time.monotonic() < deadline:
            try:
                found = ask(client)
            except httpx.TransportError as error:
                self._note(what, 0, type(error).__name__)
                client = self._next()
                time.sleep(_BROKEN_SECONDS)
            else:
                if found:
                    return found
        raise AssertionError(f"{what} without success for {_TIMEOUT_SECONDS} s: {dict(self.answers)}")

    def _is_answered(self, what: str, answer: httpx.Response) -> bool:
        code = "" if not answer.is_error else str(answer.json()["code"])
        self._note(what, answer.status_code, code)
        if answer.is_error:
            assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE, answer.text
            time.sleep(float(answer.headers["Retry-After"]))
        return not answer.is_error

    def _note(self, what: str, status: int, code: str) -> None:
        with self._lock:
            self.answers[what, status, code] += 1

    def _next(self) -> JobClient:
        with self._lock:
            self._turn += 1
            return self._clients[self._turn % len(self._clients)]


def _events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def _is_last(event: Mapping[str, Any]) -> bool:
    return event["type"] == "status" and JobStatus(event["data"]["status"]).is_terminal
