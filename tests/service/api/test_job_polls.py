"""Polls of single jobs: answered without the framework's routing, exactly as the route answers them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from service.api.job_polls import JobPolls
from service.contract.enums import KeyScope
from service.keys.administration import KeyRequest, issue_key, revoke_key
from service.keys.verification import make_secret
from service.store import jobs
from tests.support import lifecycle
from tests.support.api import Api

pytestmark = [pytest.mark.both_databases, pytest.mark.parametrize("authentication", ["on"])]

UNKNOWN = "0b9f6c1e-6a44-4b7e-9d0e-0f6d5a3c2b1a"


@dataclass
class Polls:
    """Sends the same request with and without `JobPolls`."""

    api: Api
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    answered: list[bool] = field(default_factory=list)
    """For each request that `JobPolls` got, whether it answered itself."""

    @contextmanager
    def watched(self, *, enabled: bool) -> Iterator[None]:
        answer = JobPolls._answer

        async def watch(polls: JobPolls, scope: Any) -> Any:
            response = await answer(polls, scope) if enabled else None
            self.answered.append(response is not None)
            return response

        with self.monkeypatch.context() as patch:
            patch.setattr(JobPolls, "_answer", watch)
            yield

    def ask(self, method: str, path: str, headers: list[tuple[str, str]]) -> dict[str, Any]:
        """Returns all that a client and an operator see of a request, without times and ids."""
        self.capsys.readouterr()
        sent = [(name.encode(), value.encode("latin-1")) for name, value in headers]
        answer = self.api.client.request(method, path, headers=sent)
        body = answer.text
        if answer.headers.get("content-type") == "application/problem+json" and body:
            body = json.dumps({name: value for name, value in answer.json().items() if name != "request_id"})
        logged = [json.loads(line) for line in self.capsys.readouterr().err.splitlines()]
        hidden = {"ms", "timestamp", "request_id"}
        return {
            "status": answer.status_code,
            "headers": [pair for pair in answer.headers.multi_items() if pair[0] != "x-request-id"],
            "length of the id": len(answer.headers["x-request-id"]),
            "body": body,
            "log": [{name: value for name, value in line.items() if name not in hidden} for line in logged],
        }

    def compare(self, method: str, path: str, headers: list[tuple[str, str]], *, answers: bool) -> dict[str, Any]:
        """Returns what both ways show. `answers` is whether `JobPolls` must have answered itself."""
        with self.watched(enabled=False):
            routed = self.ask(method, path, headers)
        self.answered.clear()
        with self.watched(enabled=True):
            # The first one may read the job, the second one finds it in the cache.
            polled = [self.ask(method, path, headers) for _ in range(2)]
        assert polled == [routed, routed]
        assert self.answered == [True, True] if answers else not any(self.answered)
        return routed


@pytest.fixture
def polls(api: Api, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Polls:
    return Polls(api, capsys, monkeypatch)


def key(api: Api, *scopes: KeyScope, tenant: str = lifecycle.TENANT) -> tuple[str, str]:
    asked = KeyRequest(name="test", tenant=tenant, scopes=scopes or (KeyScope.READ,))
    return ("Authorization", f"Bearer {issue_key(api.database, asked, None).key}")


def test_jobs_in_every_state(api: Api, polls: Polls, subtests: pytest.Subtests) -> None:
    states = {name: lifecycle.insert(api.database) for name in ("queued", "running", "lost", "failed", "succeeded")}
    for name in ("running", "failed"):
        held = lifecycle.claim(api.database, states[name])
        lifecycle.plan(api.database, held)
        lifecycle.run(api.database, held)
        if name == "failed":
            lifecycle.fail(api.database, held)
    lifecycle.claim(api.database, states["lost"], lease_ms=-1)
    lifecycle.run_whole(api.database, states["succeeded"], api.settings.results_dir, pa.table({"n": [1]}))
    caller = key(api)
    for name, job_id in states.items():
        with subtests.test(state=name):
            read = polls.compare("GET", f"/v1/jobs/{job_id}", [caller], answers=True)
            assert read["status"] == 200
            tag = dict(read["headers"])["etag"]
            unchanged = polls.compare("GET", f"/v1/jobs/{job_id}", [caller, ("If-None-Match", tag)], answers=True)
            assert unchanged["status"] == 304
            assert ("retry-after" in dict(unchanged["headers"])) == (name in {"queued", "running", "lost"})


def test_entity_tags(api: Api, polls: Polls, subtests: pytest.Subtests) -> None:
    path, caller = f"/v1/jobs/{lifecycle.insert(api.database)}", key(api)
    tag = api.client.get(path, headers=[caller]).headers["etag"]
    cases: list[tuple[list[str], int]] = [
        ([tag], 304),
        ([f"W/{tag}"], 304),
        ([f'"a", {tag}'], 304),
        (['"a"', tag], 304),
        ([tag, '"a"'], 304),
        (["*"], 304),
        ([" * "], 304),
        ([""], 200),
        (['"a"'], 200),
        ([tag.strip('"')], 200),
        ([f"{tag[:-1]}x"], 200),
        (["ä".encode().decode("latin-1")], 200),
        (['"' + "a" * 70_000 + '"'], 200),
    ]
    for lines, status in cases:
        for method in ("GET", "HEAD"):
            with subtests.test(lines=[line[:99] for line in lines], method=method):
                headers = [caller, *(("If-None-Match", line) for line in lines)]
                assert polls.compare(method, path, headers, answers=True)["status"] == status


def test_requests_that_only_the_route_answers(api: Api, polls: Polls, subtests: pytest.Subtests) -> None:
    job_id, caller = lifecycle.insert(api.database), key(api)
    path = f"/v1/jobs/{job_id}"
    tag = ("If-None-Match", api.client.get(path, headers=[caller]).headers["etag"])
    revoked = key(api)
    assert api.client.get(path, headers=[revoked]).status_code == 200
    revoke_key(api.database, revoked[1].split("_")[1])
    polls.monkeypatch.setattr("service.keys.verification.CACHE_SECONDS", 0.0)
    ended = lifecycle.insert(api.database)
    with api.database.write() as session:
        jobs.delete_job(session, ended)
    cases: list[tuple[str, str, list[tuple[str, str]], int]] = [
        ("no key", path, [], 401),
        ("two keys", path, [caller, caller], 401),
        ("no scheme", path, [("Authorization", caller[1].removeprefix("Bearer "))], 401),
        ("unknown key", path, [("Authorization", f"Bearer {make_secret().text}")], 401),
        ("wrong secret", path, [("Authorization", caller[1][:-4] + "AAAA")], 401),
        ("revoked key", path, [revoked], 401),
        ("scope submit", path, [key(api, KeyScope.SUBMIT)], 403),
        ("scopes admin and metrics", path, [key(api, KeyScope.ADMIN, KeyScope.METRICS)], 403),
        ("another tenant", path, [key(api, tenant="another")], 404),
        ("unknown id", f"/v1/jobs/{UNKNOWN}", [caller], 404),
        ("deleted job", f"/v1/jobs/{ended}", [caller], 404),
        ("explanation", f"/v1/jobs/{lifecycle.insert(api.database, kind=jobs.EXPLAIN)}", [caller], 404),
        ("malformed id", "/v1/jobs/x", [caller], 404),
        ("36 hyphens", f"/v1/jobs/{'-' * 36}", [caller], 404),
        ("upper case", f"/v1/jobs/{job_id.upper()}", [caller], 404),
        ("line break", f"{path}%0A", [caller], 404),
        ("slash at the end", f"{path}/", [caller], 404),
        ("two slashes", f"/v1//jobs/{job_id}", [caller], 404),
        ("unknown parameter", f"{path}?wait=1", [caller], 422),
        ("wait", path, [caller, ("Prefer", "wait=0")], 304),
        ("another preference", path, [caller, ("Prefer", "respond-async")], 304),
        ("unknown host", path, [caller, ("Host", "elsewhere.example")], 421),
        ("two hosts", path, [caller, ("Host", "127.0.0.1"), ("Host", "127.0.0.1")], 421),
    ]
    for name, asked, headers, status in cases:
        with subtests.test(case=name):
            shown = polls.compare("GET", asked, [tag, *headers], answers=False)
            assert shown["status"] == status
    for method in ("POST", "PUT", "PATCH"):
        with subtests.test(method=method):
            assert polls.compare(method, path, [tag, caller], answers=False)["status"] == 405


def test_other_headers_and_an_encoded_path_change_nothing(api: Api, polls: Polls, subtests: pytest.Subtests) -> None:
    job_id, caller = lifecycle.insert(api.database), key(api)
    cases: list[tuple[str, tuple[str, str]]] = [
        (f"/v1/jobs/{job_id}", ("X-Request-Id", "mine")),
        (f"/v1/jobs/{job_id}", ("X-Request-Id", "no id: it has spaces")),
        (f"/v1/jobs/{job_id}", ("Origin", "https://elsewhere.example")),
        (f"/v1/jobs/{job_id}", ("Accept", "text/csv")),
        (f"/v1/jobs/{job_id}", ("Content-Length", "0")),
        (f"/v1/jobs/{job_id}?", ("Accept", "*/*")),
        (f"/v1/jobs/%{ord(job_id[0]):x}{job_id[1:]}", ("Accept", "*/*")),
    ]
    for path, header in cases:
        with subtests.test(path=path, header=header):
            assert polls.compare("GET", path, [caller, header], answers=True)["status"] == 200


def test_metrics_count_polls_as_requests_of_the_route(api: Api, polls: Polls) -> None:
    path, caller = f"/v1/jobs/{lifecycle.insert(api.database)}", key(api)
    for enabled in (True, False):
        with polls.watched(enabled=enabled):
            api.client.get(path, headers=[caller])
    assert polls.answered == [True, False]
    text = api.client.get("/metrics", headers=[key(api, KeyScope.METRICS)]).text
    assert 'count{method="GET",route="/v1/jobs/{job_id}",status="200"} 2.0' in text


def test_a_change_by_another_process_is_seen_by_the_next_poll(api: Api, polls: Polls) -> None:
    job_id, caller = lifecycle.insert(api.database), key(api)
    with polls.watched(enabled=True):
        first = api.client.get(f"/v1/jobs/{job_id}", headers=[caller])
        known = [caller, ("If-None-Match", first.headers["etag"])]
        assert api.client.get(f"/v1/jobs/{job_id}", headers=known).status_code == 304
        lifecycle.claim(api.database, job_id)
        changed = api.client.get(f"/v1/jobs/{job_id}", headers=known)
    assert (changed.status_code, changed.json()["status"]) == (200, "PLANNING")
    assert polls.answered == [True] * 3


@pytest.mark.parametrize("retry_seconds", [60])
def test_a_poll_waits_for_a_database_that_restarts(api: Api, polls: Polls) -> None:
    path, caller = f"/v1/jobs/{lifecycle.insert(api.database)}", key(api)
    failures = [OperationalError("SELECT", None, Exception("the server closed the connection")) for _ in range(3)]

    def fail(*_: object) -> None:
        if failures:
            raise failures.pop()

    # The key is in the cache.
    api.client.get("/v1/me", headers=[caller])
    event.listen(api.database.engine, "before_cursor_execute", fail)
    with polls.watched(enabled=True):
        assert api.client.get(path, headers=[caller]).status_code == 200
    event.remove(api.database.engine, "before_cursor_execute", fail)
    assert polls.answered == [False]
    assert failures == []
