"""The table of state changes."""

from __future__ import annotations

import pytest

from service.contract.enums import LEASED, MOVES, TERMINAL, AttemptStatus, JobStatus, known_status, sources_of


def test_every_state_is_in_the_table_and_final_states_have_no_moves() -> None:
    assert set(MOVES) == set(JobStatus)
    assert all(not MOVES[status] for status in TERMINAL)
    assert all(status.is_terminal == (status in TERMINAL) for status in JobStatus)
    assert not LEASED & TERMINAL


def test_every_state_can_be_reached_and_leads_to_a_final_state() -> None:
    reached = {JobStatus.QUEUED}
    while True:
        further = reached | {target for source in reached for target in MOVES[source]}
        if further == reached:
            break
        reached = further
    assert reached == set(JobStatus)
    assert all(MOVES[status] & (TERMINAL | LEASED) for status in JobStatus if not status.is_terminal)


@pytest.mark.parametrize(
    ("source", "target", "may"),
    [
        (JobStatus.QUEUED, JobStatus.PLANNING, True),
        (JobStatus.QUEUED, JobStatus.RUNNING, False),
        (JobStatus.QUEUED, JobStatus.CANCELLED, True),
        (JobStatus.QUEUED, JobStatus.SUCCEEDED, False),
        (JobStatus.PLANNING, JobStatus.RUNNING, True),
        (JobStatus.PLANNING, JobStatus.QUEUED, True),
        (JobStatus.RUNNING, JobStatus.QUEUED, True),
        (JobStatus.RUNNING, JobStatus.PLANNING, False),
        (JobStatus.RUNNING, JobStatus.CANCELLING, True),
        (JobStatus.CANCELLING, JobStatus.SUCCEEDED, True),
        (JobStatus.CANCELLING, JobStatus.QUEUED, False),
        (JobStatus.QUEUED, JobStatus.STOPPED, True),
        (JobStatus.QUEUED, JobStatus.STOPPING, False),
        (JobStatus.RUNNING, JobStatus.STOPPING, True),
        (JobStatus.RUNNING, JobStatus.STOPPED, True),
        (JobStatus.STOPPING, JobStatus.STOPPED, True),
        (JobStatus.STOPPING, JobStatus.QUEUED, False),
        (JobStatus.STOPPING, JobStatus.SUCCEEDED, False),
        (JobStatus.CANCELLING, JobStatus.STOPPED, False),
        (JobStatus.STOPPED, JobStatus.QUEUED, True),
        (JobStatus.STOPPED, JobStatus.RUNNING, False),
        (JobStatus.SUCCEEDED, JobStatus.FAILED, False),
        (JobStatus.CANCELLED, JobStatus.QUEUED, False),
    ],
)
def test_moves(source: JobStatus, target: JobStatus, may: bool) -> None:
    assert (source in sources_of(target)) is may


def test_final_states_of_attempts_are_those_of_jobs() -> None:
    assert {status.value for status in AttemptStatus} <= {status.value for status in JobStatus}
    assert {status.value for status in TERMINAL} <= {status.value for status in AttemptStatus}


def test_a_state_is_found_by_its_name() -> None:
    assert [known_status(status.value) for status in JobStatus] == list(JobStatus)
    assert known_status("PAUSED") is None
