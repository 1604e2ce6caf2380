"""A client with the usual requests."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import httpx

from tests.support.processes import UNDER_LOAD

_LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=1.0)
"""Idle connections are closed well before the API closes them, which is after 5 s, httpx's default too. A request on a
connection that the API is closing gets no response."""


class JobClient:
    """A client of one API, with an API key if given. It is safe to share between threads."""

    def __init__(self, address: str, key: str = "") -> None:
        self.address = address
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(base_url=address, headers=headers, timeout=60, trust_env=False, limits=_LIMITS)

    def submit(self, spec: Mapping[str, Any], **headers: str) -> str:
        """Posts a job that must be accepted and returns its id."""
        answer = self.http.post("/v1/jobs", json=spec, headers=headers)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """Returns a job's state."""
        answer = self.http.get(f"/v1/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        job: dict[str, Any] = answer.json()
        return job

    def wait(self, job_id: str, status: str | None = None, seconds: float = 90) -> dict[str, Any]:
        """Waits until the job has finished or has `status`. Raises AssertionError after `seconds` times
        `UNDER_LOAD`.
        """
        seconds *= UNDER_LOAD
        deadline = time.monotonic() + seconds
        headers = {"Prefer": "wait=2"}
        job = self.job(job_id)
        while not job["finished"] and job["status"] != status:
            assert time.monotonic() < deadline, f"timed out after {seconds} s: {job}"
            answer = self.http.get(f"/v1/jobs/{job_id}", headers=headers)
            if answer.status_code == 200:
                job = answer.json()
                headers["If-None-Match"] = answer.headers["ETag"]
        return job

    def run(self, spec: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
        """Submits a job that must succeed. Returns its id and the first page of its rows."""
        job_id = self.submit(spec)
        job = self.wait(job_id)
        assert job["status"] == "SUCCEEDED", job["error"]
        return job_id, self.rows(job_id)

    def rows(self, job_id: str, **parameters: Any) -> list[dict[str, Any]]:
        """Returns the first page of a result, each row as a dictionary by column."""
        answer = self.http.get(f"/v1/jobs/{job_id}/result", params=parameters)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        names = [column["name"] for column in page["columns"]]
        return [dict(zip(names, row, strict=True)) for row in page["rows"]]
