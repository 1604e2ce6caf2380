"""The pools of tenants in Spark's scheduler, and tasks that are ended for another tenant."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.processes import wait_for

if TYPE_CHECKING:
    from workers.driver.driver import Driver


def pool_of(driver: Driver, tenant: str) -> Any:
    return driver.context._jsc.sc().taskScheduler().rootPool().getSchedulableByName(tenant)


@contextmanager
def busy(driver: Driver, tenant: str, *tags: str) -> Iterator[list[Future[None]]]:
    """Runs a job with two endless tasks for each tag. At the end, cancels the jobs and waits for their threads."""
    begun = threading.Barrier(len(tags) + 1)

    def run(tag: str) -> None:
        rows = driver.session_for_job().range(0, 2_000_000, 1, 2)
        with driver.labelled(tag, tenant, "endless"):
            begun.wait()
            rows.crossJoin(rows.toDF("b")).where("id + b < -1").count()

    def have_ended(threads: list[Future[None]]) -> bool:
        for tag in tags:
            driver.cancel(tag)
        return all(thread.done() for thread in threads)

    with ThreadPoolExecutor(len(tags)) as pool:
        threads = [pool.submit(run, tag) for tag in tags]
        begun.wait()
        try:
            wait_for("tasks", lambda: driver.pools.state(tenant).running, 60)
            yield threads
        finally:
            wait_for("the end of the jobs", lambda: have_ended(threads), 60)


def test_the_jobs_of_a_tenant_share_its_pool_evenly(driver: Driver) -> None:
    for _ in range(2):
        driver.pools.create("even")
    pool = pool_of(driver, "even")
    assert (pool.schedulingMode().toString(), pool.minShare(), pool.weight()) == ("FAIR", 0, 1)
    default = pool_of(driver, "default")
    driver.pools.create("default")
    assert pool_of(driver, "default").equals(default)
    assert default.schedulingMode().toString() == "FAIR"
    with driver.labelled("tag", "first", "a job"):
        assert driver.context.getLocalProperty("spark.scheduler.pool") == "first"
    assert pool_of(driver, "first").schedulingMode().toString() == "FAIR"


@pytest.mark.not_quick
def test_an_ended_task_leaves_its_slot_to_another_tenant_and_runs_again(driver: Driver) -> None:
    driver.pools.create("small")
    slots = driver.context.defaultParallelism
    tags = [f"heavy-{number}" for number in range(slots)]
    with busy(driver, "heavy", *tags) as threads, ThreadPoolExecutor(1) as pool:
        wait_for("all slots to be taken", lambda: driver.pools.state("heavy").running == slots, 60)

        def count() -> int:
            with driver.labelled("small-1", "small", "a small job"):
                return driver.session_for_job().range(0, 10, 1, 1).count()

        small = pool.submit(count)
        wait_for("a waiting task", lambda: driver.pools.state("small").is_waiting, 60)
        assert driver.pools.end_task("heavy", ["another"]) is None
        assert driver.pools.end_task("small", ["small-1"]) is None

        def has_ended() -> bool:
            # A count has two stages, each of which needs a slot.
            if driver.pools.state("small").is_waiting:
                driver.pools.end_task("heavy", tags)
            return small.done()

        wait_for("the small job", has_ended, 60, every=0.2)
        assert small.result() == 10
        wait_for("the ended task to run again", lambda: driver.pools.state("heavy").running == slots, 60)
        assert not any(thread.done() for thread in threads)
