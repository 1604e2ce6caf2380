"""When a driver is ended for work that does not end; `tests/e2e/test_worker_faults.py` has a real one."""

from __future__ import annotations

import pytest

from workers.stuck_work import is_to_end


@pytest.mark.parametrize(
    ("stuck_seconds", "are_others_at_work", "ends"),
    [
        (0, False, False),
        (30, False, False),
        (31, False, True),
        (31, True, False),
        (300, True, False),
        (301, True, True),
    ],
)
def test_others_are_given_time(stuck_seconds: float, are_others_at_work: bool, ends: bool) -> None:
    told = is_to_end(stuck_seconds=stuck_seconds, patience_seconds=30, are_others_at_work=are_others_at_work)
    assert told is ends
