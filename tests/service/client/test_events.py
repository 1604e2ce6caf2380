"""`evenkeel events`: pages, and streams with reconnects."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import pyarrow as pa
import pytest

from service.store.events import append_event
from tests.support import lifecycle
from tests.support.scripted import answers, breaks_off, scripted
from tests.support.served import Evenkeel, Served

RESULT = pa.table({"uid": pa.array([1, 2], pa.int64())})


def statuses(events: list[dict[str, Any]]) -> list[str]:
    return [event["data"]["status"] for event in events if event["type"] == "status"]


def test_events_of_a_job(served: Served, evenkeel: Evenkeel) -> None:
    job_id = lifecycle.insert(served.database)
    lifecycle.run_whole(served.database, job_id, served.settings.results_dir, RESULT)
    printed = json.loads(evenkeel("events", job_id, "--json").stdout)
    assert statuses(printed["events"]) == ["QUEUED", "PLANNING", "RUNNING", "SUCCEEDED"]
    assert printed["complete"] is True
    lines = evenkeel("events", job_id, "--after", str(printed["events"][-2]["id"])).stdout.splitlines()
    assert len(lines) == 1
    assert "SUCCEEDED" in lines[0]


def test_all_pages_are_read(served: Served, evenkeel: Evenkeel) -> None:
    job_id = lifecycle.insert(served.database)
    with served.database.write() as session:
        for index in range(450):
            append_event(session, job_id=job_id, tenant="default", now=1, type="progress", data={"n": index})
    printed = json.loads(evenkeel("events", job_id, "--json").stdout)
    assert [event["data"]["n"] for event in printed["events"] if event["type"] == "progress"] == list(range(450))
    assert printed["complete"] is False


def test_follow_until_the_end(served: Served, evenkeel: Evenkeel) -> None:
    job_id = lifecycle.insert(served.database)
    worker = threading.Timer(
        0.3, lambda: lifecycle.run_whole(served.database, job_id, served.settings.results_dir, RESULT)
    )
    worker.start()
    result = evenkeel("events", job_id, "--follow", "--json")
    worker.join()
    assert result.exit_code == 0
    assert statuses([json.loads(line) for line in result.stdout.splitlines()])[-1] == "SUCCEEDED"


def event(number: int) -> dict[str, Any]:
    return {"id": number, "at": "2026-01-31T12:00:00Z", "type": "progress", "data": {"tasks_done": number}}


def stream(*numbers: int, cut: bool = False) -> Callable[[BaseHTTPRequestHandler], None]:
    def step(handler: BaseHTTPRequestHandler) -> None:
        body = "".join(f"id: {n}\nevent: progress\ndata: {json.dumps(event(n))}\n\n" for n in numbers).encode()
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Content-Length", str(len(body) + (100 if cut else 0)))
        handler.end_headers()
        handler.wfile.write(body)
        handler.close_connection = cut

    return step


def page(*numbers: int, complete: bool) -> Callable[[BaseHTTPRequestHandler], None]:
    last = max(numbers, default=0)
    return answers(200, {"events": [event(n) for n in numbers], "last_event_id": last, "complete": complete})


@pytest.mark.withstands(
    "an interrupted event stream",
    how="within the stream, before any response, and with a regular end as in a restart of the service; with repeated "
    "events",
    times=3,
    guaranteed="`events --follow` continues after the last event, prints each event once, and ends with the job",
    kind="fault",
)
def test_each_event_is_printed_once_despite_reconnects(evenkeel: Evenkeel, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = (
        stream(1, 2, cut=True),
        breaks_off,
        stream(2, 3),  # in good order, as where the service stops
        page(complete=False),
        stream(4),
        page(5, complete=True),
    )
    with scripted(*steps) as service:
        monkeypatch.setenv("EVENKEEL_URL", service.url)
        result = evenkeel("events", "1", "--follow", "--json")
    assert result.exit_code == 0, result.output
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == [1, 2, 3, 4, 5]
    asked = [(seen.headers["accept"], seen.headers["last-event-id"]) for seen in service.seen]
    sse, plain = "text/event-stream", "application/json"
    assert asked == [(sse, "0"), (sse, "2"), (sse, "2"), (plain, "3"), (sse, "3"), (plain, "4")]


def test_unreachable_service_ends_the_command(evenkeel: Evenkeel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_RETRY_SECONDS", "0.5")
    with scripted(stream(1, cut=True), breaks_off) as service:
        monkeypatch.setenv("EVENKEEL_URL", service.url)
        result = evenkeel("events", "1", "--follow")
    assert result.exit_code == 10
    assert "tasks_done=1" in result.stdout
