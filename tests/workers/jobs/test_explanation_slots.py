"""Explanations of one tenant take at most half of a worker's slots."""

from __future__ import annotations

import pytest

from service.store.attempts import Claim
from service.store.jobs import EXPLAIN, RUN
from workers.jobs.attempt import AbandonedPlannings
from workers.jobs.claims import ExplanationSlots


def claim(job_id: str, tenant: str = "a", kind: str = EXPLAIN) -> Claim:
    return Claim(job_id, tenant, kind, "a job", {}, 1, "w1", 0, 0, 0)


@pytest.mark.parametrize(
    ("slots", "most", "takes"), [(1, 10, 1), (2, 10, 1), (3, 10, 1), (4, 10, 2), (9, 10, 4), (64, 10, 10), (4, 1, 1)]
)
def test_a_tenant_gets_half_of_the_slots(slots: int, most: int, takes: int) -> None:
    taken = ExplanationSlots(slots, most, AbandonedPlannings(4))
    for number in range(takes):
        assert taken.tenants_at_limit() == frozenset()
        taken.count(claim(f"e{number}"))
    assert taken.tenants_at_limit() == {"a"}


def test_without_a_limit_it_gets_all() -> None:
    taken = ExplanationSlots(2, 0, AbandonedPlannings(4))
    for number in range(9):
        taken.count(claim(f"e{number}"))
    assert taken.tenants_at_limit() == frozenset()


def test_a_slot_is_free_when_its_thread_is() -> None:
    taken = ExplanationSlots(2, 10, AbandonedPlannings(4))
    held = taken.count(claim("e1"))
    assert held is not None
    with taken.working(held):
        assert taken.tenants_at_limit() == {"a"}
    assert taken.tenants_at_limit() == frozenset()


def test_only_explanations_count() -> None:
    taken = ExplanationSlots(1, 10, AbandonedPlannings(4))
    assert taken.count(None) is None
    held = claim("r1", kind=RUN)
    assert taken.count(held) is held
    with taken.working(held):
        assert taken.tenants_at_limit() == frozenset()
    taken.count(claim("e1", "b"))
    assert taken.tenants_at_limit() == {"b"}
