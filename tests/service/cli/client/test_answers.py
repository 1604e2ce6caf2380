"""Answers of newer services are understood, those of others refused."""

from __future__ import annotations

import pytest

from service.cli.client.answers import Job, JobPage, read
from service.cli.errors import CliError, ExitCode
from service.spec.reports import SkewReport

JOB = {"id": "1", "status": "DREAMING", "finished": False, "queue": "wide", "mode": "lucid", "new": {"x": 1}}


def test_what_is_new_is_passed_over_at_every_depth() -> None:
    assert read(JobPage, {"jobs": [JOB], "new": 1}).jobs[0].status == "DREAMING"
    progress = {"stages_done": 1, "stages_total": 1, "tasks_done": 1, "tasks_total": 2, "new": 1}
    job = read(Job, {**JOB, "progress": progress})
    assert job.progress is not None
    assert job.progress.tasks_total == 2
    report = {"skewed": False, "keys": [], "stages": [], "lost_ms": 0, "advice": "x", "new": 1}
    assert read(SkewReport, report).advice == "x"


@pytest.mark.parametrize("document", [None, [], {}, {"id": 1}, {**JOB, "progress": {"\x1b[2J": 1, "tasks_done": "x"}}])
def test_something_else_is_no_answer(document: object) -> None:
    with pytest.raises(CliError, match="none that this version of evenkeel understands") as raised:
        read(Job, document)
    assert raised.value.code == ExitCode.CRASHED
    assert raised.value.message.isprintable()
