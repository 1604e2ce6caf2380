"""Gives a slot of Spark to a tenant whose tasks wait while the tasks of others occupy all slots.

Spark assigns free slots fairly, but a slot becomes free only when a task ends, and a task may run for minutes. So the
youngest task of the tenant that has the most is ended after a short wait, and Spark runs it again. A tenant keeps its
share of the slots, and at least one task. So its jobs make progress, however often others submit short jobs.

The tasks of streams are not ended.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping

import structlog

from workers.driver.driver import Driver
from workers.driver.pools import PoolState
from workers.jobs.attempt import Attempt, RunningAttempts
from workers.periodic import Durations

_log = structlog.get_logger(__name__)

_MOST_ENDED = 3
"""How many tasks are ended for a tenant until one of its tasks runs. If that does not help, it waits for something
else."""


def tenant_to_reduce(pools: Mapping[str, PoolState], slots: int) -> str | None:
    """Returns the tenant with the most running tasks if these are more than an even share of the slots; else None.

    >>> waiting = PoolState(0, True)
    >>> tenant_to_reduce({"a": PoolState(2, False), "b": waiting}, 2)
    'a'
    >>> tenant_to_reduce({"a": PoolState(1, False), "b": waiting}, 1) is None
    True
    """
    active = {tenant: state for tenant, state in pools.items() if state.running or state.is_waiting}
    most = max(active, key=lambda tenant: active[tenant].running, default=None)
    if most is None or active[most].running <= max(1, slots // len(active)):
        return None
    return most


class Preemption:
    """Ends tasks for tenants that have waited for `wait_seconds`; never if that is 0.

    `step` needs its own thread, since its calls into the JVM can hang.
    """

    def __init__(
        self,
        current: Callable[[], Driver | None],
        running_attempts: RunningAttempts,
        wait_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._current = current
        self._running_attempts = running_attempts
        self._wait_seconds = wait_seconds
        self._waiting = Durations(clock)
        """How long each tenant has waited, since the last task was ended for it."""
        self._ended: Counter[str] = Counter()
        """The number of tasks that were ended for each waiting tenant."""

    def step(self) -> None:
        """Ends at most one task for each waiting tenant. Raises what py4j raises if the driver has ended."""
        driver = self._current()
        attempts = self._attempts_on(driver)
        tenants = {attempt.claim.tenant for attempt in attempts}
        if driver is None or len(tenants) < 2 or not self._wait_seconds:
            self._waiting.update(())
            self._ended.clear()
            return
        pools = {}
        for tenant in sorted(tenants):
            driver.pools.create(tenant)
            pools[tenant] = driver.pools.state(tenant)
        waiting = [tenant for tenant, state in pools.items() if state.is_waiting]
        self._ended = Counter({tenant: number for tenant, number in self._ended.items() if tenant in waiting})
        for tenant, seconds in zip(waiting, self._waiting.update(waiting), strict=True):
            if seconds >= self._wait_seconds and self._ended[tenant] < _MOST_ENDED:
                self._end_task_for(tenant, pools, driver, attempts)

    def _attempts_on(self, driver: Driver | None) -> list[Attempt]:
        return [one for one in self._running_attempts.all() if one.driver is driver and not one.is_settled]

    def _end_task_for(
        self, tenant: str, pools: Mapping[str, PoolState], driver: Driver, attempts: list[Attempt]
    ) -> None:
        reduced = tenant_to_reduce(pools, driver.slots)
        if reduced is None or not driver.pools.are_all_slots_taken(driver.slots):
            return
        tags = {attempt.tag for attempt in attempts if not attempt.streams}
        task = driver.pools.end_task(reduced, tags)
        if task is not None:
            self._ended[tenant] += 1
            self._waiting.restart(tenant)
            _log.info("task_preempted", task=task, of=reduced, waiting=tenant)
