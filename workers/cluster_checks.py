"""What a driver on a cluster must have before it is handed to jobs: executors, and results that it can see."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from service.spark_settings import SparkSettings
from workers.cluster import SparkUnavailableError, no_executors, unreachable
from workers.engine.spark.driver import Driver
from workers.engine.spark.executors import missing_rows

_POLL_SECONDS = 0.1


def wait_for_executors(
    driver: Driver,
    settings: SparkSettings,
    going_on: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """Returns once an executor has registered; calls `going_on`, which may raise to end it, with every look.

    Raises SparkUnavailableError `no_executors` after `executor_wait_seconds`, and `cluster_unreachable` where Spark
    ends itself meanwhile, as it does when its master does not take the application.
    """
    until = clock() + settings.executor_wait_seconds
    while True:
        going_on()
        driver.look()
        if driver.stopped:
            raise unreachable(settings, "The Spark master does not take this worker's application")
        if driver.executors is not None and driver.executors.number:
            return
        if clock() > until:
            raise no_executors(settings)
        pause(_POLL_SECONDS)


def require_shared_results(driver: Driver, results: Path) -> None:
    """Has executors write below the directory of results. Raises SparkUnavailableError `results_not_shared`."""
    advice = (
        "Mount one file system at that path on the machines of all executors and Evenkeel processes, writable by the "
        "user that runs them, or set EVENKEEL_DATA_RESULTS to such a path."
    )
    try:
        missing = missing_rows(driver.session_for_job(), results, driver.slots)
    except Exception as error:
        if driver.is_stopped() or not driver.is_running():
            raise
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise SparkUnavailableError(
            "results_not_shared", f"Executors cannot write below {results} as this worker does: {first[:300]} {advice}"
        ) from error
    if missing:
        raise SparkUnavailableError(
            "results_not_shared",
            f"Executors write to another {results} than the one that this worker sees: {missing} of their rows are "
            f"missing there. {advice}",
        )
