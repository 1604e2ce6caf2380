"""Events: a stream that ends with the job, resumable, and pages of JSON."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from service.store.events import append_event
from tests.support import lifecycle
from tests.support.api import Api, refused

# A stream that does not end would be waited for.
pytestmark = pytest.mark.timeout(60)

RESULT = pa.table({"uid": pa.array([1, 2], pa.int64())})


def parsed(text: str) -> list[dict[str, Any]]:
    """Returns the events of a stream, after checking their format."""
    events = []
    for block in text.split("\n\n"):
        if not block or block.startswith(":"):
            continue
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        data: dict[str, Any] = json.loads(fields["data"])
        assert fields["id"] == str(data["id"])
        assert fields["event"] == data["type"]
        events.append(data)
    return events


def statuses(events: list[dict[str, Any]]) -> list[str]:
    return [event["data"]["status"] for event in events if event["type"] == "status"]


def finished(api: Api) -> str:
    job_id = lifecycle.insert(api.database)
    lifecycle.run_whole(api.database, job_id, api.settings.results_dir, RESULT)
    return job_id


def test_a_finished_job_has_all_its_events(api: Api) -> None:
    answer = api.client.get(f"/v1/jobs/{finished(api)}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = parsed(answer.text)
    assert statuses(events) == ["QUEUED", "PLANNING", "RUNNING", "SUCCEEDED"]
    assert {"plan", "progress", "attempt"} <= {event["type"] for event in events}
    assert [event["id"] for event in events] == sorted({event["id"] for event in events})


def test_a_stream_resumes_after_the_last_event_id(api: Api) -> None:
    path = f"/v1/jobs/{finished(api)}/events"
    events = parsed(api.client.get(path).text)
    rest = parsed(api.client.get(path, headers={"Last-Event-ID": str(events[2]["id"])}).text)
    assert rest == events[3:]


@pytest.mark.both_databases
def test_the_stream_of_a_running_job_ends_with_the_job(api: Api) -> None:
    job_id = lifecycle.insert(api.database)
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(api.client.get, f"/v1/jobs/{job_id}/events")
        lifecycle.run_whole(api.database, job_id, api.settings.results_dir, RESULT)
        events = parsed(following.result(timeout=20).text)
    assert statuses(events) == ["QUEUED", "PLANNING", "RUNNING", "SUCCEEDED"]


def test_the_stream_ends_when_the_job_is_deleted(api: Api) -> None:
    job_id = lifecycle.insert(api.database)
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(api.client.get, f"/v1/jobs/{job_id}/events")
        api.client.post(f"/v1/jobs/{job_id}/cancel")
        api.client.delete(f"/v1/jobs/{job_id}")
        assert following.result(timeout=20).status_code in {200, 404}


@pytest.mark.both_databases
def test_more_events_than_one_read_returns(api: Api) -> None:
    job_id = lifecycle.insert(api.database)
    with api.database.write() as session:
        for index in range(450):
            append_event(session, job_id=job_id, tenant="default", now=1, type="progress", data={"n": index})
    lifecycle.fail(api.database, lifecycle.claim(api.database, job_id))
    events = parsed(api.client.get(f"/v1/jobs/{job_id}/events").text)
    assert [event["data"]["n"] for event in events if event["type"] == "progress"] == list(range(450))
    assert statuses(events)[-1] == "FAILED"


def test_pages_of_json(api: Api) -> None:
    job_id = lifecycle.insert(api.database)
    path, accept = f"/v1/jobs/{job_id}/events", {"Accept": "application/json"}
    page = api.client.get(path, headers=accept).json()
    assert statuses(page["events"]) == ["QUEUED"]
    assert page["complete"] is False
    lifecycle.fail(api.database, lifecycle.claim(api.database, job_id))
    rest = api.client.get(path, headers={**accept, "Last-Event-ID": str(page["last_event_id"])}).json()
    assert statuses(rest["events"]) == ["PLANNING", "FAILED"]
    assert rest["complete"] is True


def test_an_invalid_last_event_id_is_refused(api: Api, subtests: pytest.Subtests) -> None:
    cases: list[str] = ["x", "-1", "9" * 19]
    for given in cases:
        with subtests.test(given=given):
            answer = api.client.get(f"/v1/jobs/{finished(api)}/events", headers={"Last-Event-ID": given})
            refused(answer, 422, "invalid_request")


def test_other_media_types_are_not_acceptable(api: Api) -> None:
    answer = api.client.get(f"/v1/jobs/{finished(api)}/events", headers={"Accept": "text/html"})
    assert answer.json()["code"] == "not_acceptable"
