"""Progress: lines for logs, a bar for terminals."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich.console import Console

from service.cli.client.answers import JobSummary
from service.cli.client.progress import shown_progress
from service.spec.reports import Progress


def course() -> Iterator[JobSummary]:
    yield JobSummary(id="1", status="QUEUED", finished=False, waiting_for="slot")
    yield JobSummary(id="1", status="QUEUED", finished=False, waiting_for="worker")
    yield JobSummary(id="1", status="QUEUED", finished=False, waiting_for="\x1b[2J")
    for done in range(9):
        progress = Progress(tasks_done=done, tasks_total=8)
        yield JobSummary(id="1", status="RUNNING", finished=False, progress=progress)
    yield JobSummary(id="1", status="SUCCEEDED", finished=True)


def test_a_line_for_every_state_and_quarter() -> None:
    said: list[str] = []
    with shown_progress(Console(file=io.StringIO()), said.append) as see:
        for job in course():
            see(job)
            see(job)
    assert [line.strip() for line in said] == [
        "QUEUED until a worker is free",
        "QUEUED no worker listens to its queue",
        "QUEUED \\x1b[2J",
        "RUNNING 0/8 tasks",
        "RUNNING 2/8 tasks",
        "RUNNING 4/8 tasks",
        "RUNNING 6/8 tasks",
        "RUNNING 8/8 tasks",
        "SUCCEEDED",
    ]


def test_a_bar_on_a_terminal() -> None:
    screen = io.StringIO()
    said: list[str] = []
    with shown_progress(Console(file=screen, force_terminal=True, width=80), said.append) as see:
        for job in course():
            see(job)
    assert "SUCCEEDED" in screen.getvalue()
    assert said == []
