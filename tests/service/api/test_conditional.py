"""Entity tags, and the wait of a Prefer header."""

from __future__ import annotations

import pytest

from service.api.representations import is_current, job_response, wait_seconds
from service.jobs.views import Job, WaitingFor
from service.store.tables import JobRow
from tests.support.lifecycle import SPEC


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        ("wait=10", 10),
        ("Wait = 10", 10),
        ('wait="10"', 10),
        ("respond-async, wait=10; foo=bar", 10),
        ("wait=0", 0),
        ("wait=999", 45),
        ("", None),
        ("wait", None),
        ("wait=-1", None),
        ("wait=1.5", None),
        ("wait=9999999999", 45),
        (f"wait={'9' * 5000}", 45),
        ("await=3", None),
    ],
)
def test_wait(prefer: str, seconds: int | None) -> None:
    assert wait_seconds([prefer], longest=45.5) == seconds


def test_the_first_wait_of_all_lines_is_used() -> None:
    assert wait_seconds(["respond-async", "wait=7, wait=8"], longest=45) == 7
    assert wait_seconds([], longest=45) is None


class NoListener:
    """There are no workers."""

    def waiting_for(self, _tenant: str, _queue: str) -> WaitingFor:
        return WaitingFor.WORKER


def job(**changes: object) -> Job:
    row = JobRow(
        id="j",
        name="n",
        spec=SPEC,
        status="QUEUED",
        mode="batch",
        queue="short",
        version=3,
        submitted_at=1,
        updated_at=1,
        fence=0,
        **changes,
    )
    return Job.of(row, 10, NoListener())


def test_a_tag_matches_in_any_line_of_if_none_match() -> None:
    tag = job_response(job()).headers["etag"]
    known = [[tag], [f"W/{tag}"], [f'"a", {tag}'], ['"a"', tag], ["*"], [f'"3-0000000000000000",{tag}']]
    assert all(is_current(job(), lines) for lines in known)
    other: list[list[str]] = [[], [""], ['"a"'], [tag.strip('"')], ['"3-0000000000000000"']]
    assert not any(is_current(job(), lines) for lines in other)


def test_the_tag_differs_for_another_representation_of_the_same_version() -> None:
    running = job(request_id="x")
    assert running.version == job().version
    assert not is_current(job(), [job_response(running).headers["etag"]])
