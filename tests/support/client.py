"""The usual requests of a client, for tests."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import httpx

from tests.support.processes import UNDER_LOAD

_LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=1.0)
"""Idle connections are let go well before the API closes them, after 5 s: a request on one that it is just closing gets
no answer, and httpx by default keeps them as long."""


class JobClient:
    """Talks to one API, with an API key where one is given. Safe to share between threads."""

    def __init__(self, address: str, key: str = "") -> None:
        self.address = address
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(base_url=address, headers=headers, timeout=60, trust_env=False, limits=_LIMITS)

    def submit(self, spec: Mapping[str, Any], **headers: str) -> str:
        """Posts a job that is to be accepted; gives its id."""
        answer = self.http.post("/v1/jobs", json=spec, headers=headers)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """A job as it stands."""
        answer = self.http.get(f"/v1/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        job: dict[str, Any] = answer.json()
        return job

    def wait(self, job_id: str, status: str | None = None, seconds: float = 90) -> dict[str, Any]:
        """Waits until the job has finished, or has `status`; AssertionError after `seconds`, see `UNDER_LOAD`."""
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
        """Submits a job that is to succeed; gives its id and the first page of its rows."""
        job_id = self.submit(spec)
        job = self.wait(job_id)
        assert job["status"] == "SUCCEEDED", job["error"]
        return job_id, self.rows(job_id)

    def rows(self, job_id: str, **parameters: Any) -> list[dict[str, Any]]:
        """The first page of a result, each row by column."""
        answer = self.http.get(f"/v1/jobs/{job_id}/result", params=parameters)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        names = [column["name"] for column in page["columns"]]
        return [dict(zip(names, row, strict=True)) for row in page["rows"]]
