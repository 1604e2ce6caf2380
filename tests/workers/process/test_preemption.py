"""When tasks are ended for a tenant that has no slot."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import cast

import pytest

from service.store.attempts import Claim
from workers.driver.driver import Driver
from workers.driver.pools import PoolState
from workers.jobs.attempt import Attempt, RunningAttempts
from workers.process.preemption import Preemption, tenant_to_reduce


@dataclass
class Pools:
    """Pools without Spark."""

    states: dict[str, PoolState]
    ended: list[tuple[str, frozenset[str]]] = field(default_factory=list)

    def create(self, tenant: str) -> None:
        """See `TenantPools`."""
        self.states.setdefault(tenant, PoolState(0, False))

    def state(self, tenant: str) -> PoolState:
        """See `TenantPools`."""
        return self.states[tenant]

    def are_all_slots_taken(self, slots: int) -> bool:
        """See `TenantPools`."""
        return sum(state.running for state in self.states.values()) >= slots

    def end_task(self, tenant: str, tags: Collection[str]) -> int | None:
        """See `TenantPools`."""
        self.ended.append((tenant, frozenset(tags)))
        return len(self.ended)


@dataclass(eq=False)
class PoolsOnly:
    """A driver of which only the pools and the slots are used."""

    pools: Pools
    slots: int = 2


class Scene:
    """A worker whose jobs are those of `tenants`, with a clock that the test sets."""

    def __init__(self, *tenants: str, wait_seconds: float = 1) -> None:
        self.pools = Pools({"a": PoolState(2, False), "b": PoolState(0, True)})
        self.driver = cast("Driver", PoolsOnly(self.pools))
        self.running = RunningAttempts()
        self.now = 0.0
        self.attempts = [self.begin(tenant, number) for number, tenant in enumerate(tenants)]
        self.preemption = Preemption(lambda: self.driver, self.running, wait_seconds, lambda: self.now)

    def begin(self, tenant: str, number: int) -> Attempt:
        """Adds a running attempt."""
        attempt = Attempt(Claim(f"{tenant}{number}", tenant, "run", "a job", {}, 1, "w1", 0, 0, 0), 1e9)
        attempt.driver = self.driver
        self.running._attempts.add(attempt)
        return attempt

    def step(self, seconds: float) -> int:
        """Makes a step after `seconds` and returns the number of tasks that were ended until then."""
        self.now += seconds
        self.preemption.step()
        return len(self.pools.ended)


def test_a_task_is_ended_for_a_tenant_that_has_waited() -> None:
    scene = Scene("a", "b")
    scene.attempts[1].streams = True
    assert [scene.step(seconds) for seconds in (0, 0.9, 0.1)] == [0, 0, 1]
    # The tasks of streams are left alone.
    assert scene.pools.ended == [("a", frozenset({"evenkeel-a0-1"}))]


def test_the_next_task_is_ended_after_another_wait_and_at_most_three_until_one_runs() -> None:
    scene = Scene("a", "b")
    assert [scene.step(seconds) for seconds in (0, 1, 0.9, 0.1, 1, 1, 1)] == [0, 1, 1, 2, 3, 3, 3]
    scene.pools.states["b"] = PoolState(1, False)
    scene.step(1)
    scene.pools.states["b"] = PoolState(0, True)
    assert [scene.step(seconds) for seconds in (0, 1)] == [3, 4]


def test_nothing_is_ended_while_a_slot_is_free() -> None:
    scene = Scene("a", "b")
    scene.pools.states["a"] = PoolState(2, False)
    cast("PoolsOnly", scene.driver).slots = 3
    assert [scene.step(seconds) for seconds in (0, 10)] == [0, 0]


@pytest.mark.parametrize("tenants", [("a",), ("a", "a"), ()])
def test_nothing_is_ended_unless_jobs_of_two_tenants_run(tenants: tuple[str, ...]) -> None:
    scene = Scene(*tenants)
    assert [scene.step(seconds) for seconds in (0, 10)] == [0, 0]


def test_nothing_is_ended_if_it_is_switched_off() -> None:
    scene = Scene("a", "b", wait_seconds=0)
    assert [scene.step(seconds) for seconds in (0, 10)] == [0, 0]


def test_jobs_on_another_driver_and_those_that_ended_do_not_count() -> None:
    scene = Scene("a", "b", "b")
    scene.attempts[1].driver = None
    scene.attempts[2].settle()
    assert [scene.step(seconds) for seconds in (0, 10)] == [0, 0]


@pytest.mark.parametrize(
    ("running", "waiting", "slots", "reduced"),
    [
        ({"a": 2}, 1, 2, "a"),
        ({"a": 1}, 1, 1, None),
        ({"a": 1, "b": 1}, 1, 2, None),
        ({"a": 3, "b": 1}, 1, 4, "a"),
        ({"a": 2, "b": 2}, 1, 4, "a"),
        ({"a": 2, "b": 2}, 0, 4, None),
        ({}, 1, 2, None),
    ],
)
def test_who_gives_up_a_task(running: dict[str, int], waiting: int, slots: int, reduced: str | None) -> None:
    pools = {tenant: PoolState(number, False) for tenant, number in running.items()}
    pools |= {f"w{number}": PoolState(0, True) for number in range(waiting)}
    pools["idle"] = PoolState(0, False)
    assert tenant_to_reduce(pools, slots) == reduced
