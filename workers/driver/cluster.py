"""Checks of a Spark cluster: that its master can be reached, and that a new driver has executors and shared results.

The master is checked without Spark, which takes seconds; Spark itself would try for a minute. Jobs get the driver only
after it has an executor, and after its executors have written to the results directory that the worker reads.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from service.config.spark import SparkSettings
from service.contract.model import parse_bytes
from workers.driver.driver import Driver, missing_rows

_MIB = 1 << 20
_DEFAULT_MEMORY = "1g"
_POLL_SECONDS = 0.1


class SparkUnavailableError(RuntimeError):
    """The worker's Spark cannot run jobs now. The message has the cause and the remedy."""

    def __init__(self, code: str, message: str, *, is_busy: bool = False) -> None:
        """`is_busy` is True if other applications use the resources that this worker requests."""
        self.code = code
        self.message = message
        self.is_busy = is_busy
        super().__init__(f"{code}: {message}")


def require_master(settings: SparkSettings) -> None:
    """Connects to a standalone master, to each for at most `connect_timeout_seconds`. One that answers suffices.

    Raises SparkUnavailableError `cluster_unreachable`. Other kinds of cluster are not checked, since Spark connects to
    them at once.
    """
    refused = []
    for host, port in settings.masters:
        try:
            socket.create_connection((host, port), settings.connect_timeout_seconds).close()
        except OSError as error:
            reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or type(error).__name__
            refused.append(f"{host}:{port} ({reason})")
        else:
            return
    if refused:
        raise unreachable(settings, f"No Spark master answers at {', '.join(refused)}")


def unreachable(settings: SparkSettings, what: str) -> SparkUnavailableError:
    """Returns the error of a cluster that cannot be reached, or that does not accept the application."""
    variable = f"EVENKEEL_SPARK_MASTER ({settings.master})"
    return SparkUnavailableError(
        "cluster_unreachable", f"{what}. Start it, or correct {variable}; this worker tries again automatically."
    )


def no_executors(settings: SparkSettings) -> SparkUnavailableError:
    """Returns the error of a cluster that started no executor in time, with the likely cause."""
    workers = _workers_of_master(settings)
    reason, is_busy = _unknown_reason(settings) if workers is None else reason_of(settings, workers)
    return SparkUnavailableError(
        "no_executors",
        f"The cluster started no executor for this worker within {settings.executor_wait_seconds:g} s: "
        f"{reason} This worker tries again automatically.",
        is_busy=is_busy,
    )


def _unknown_reason(settings: SparkSettings) -> tuple[str, bool]:
    if settings.is_standalone:
        return (
            "other applications use its cores (set EVENKEEL_SPARK_CORES_MAX on each worker, so that they share), or "
            "no Spark worker has the memory and cores of EVENKEEL_SPARK_EXECUTOR_MEMORY and "
            "EVENKEEL_SPARK_EXECUTOR_CORES, or executors cannot reach EVENKEEL_SPARK_DRIVER_HOST. Set "
            "EVENKEEL_SPARK_MASTER_UI_PORT to the master's web port to get the exact cause."
        ), False
    return (
        "its queue or quota is full, or an executor of this size does not fit on any node (see "
        "EVENKEEL_SPARK_EXECUTOR_MEMORY and EVENKEEL_SPARK_EXECUTOR_CORES), or executors cannot reach the driver "
        "(see EVENKEEL_SPARK_DRIVER_HOST)."
    ), False


def reason_of(settings: SparkSettings, workers: Iterable[dict[str, Any]]) -> tuple[str, bool]:
    """Returns why a standalone cluster with these workers (`workers` of the master's `/json`) starts no executor, and
    whether that is because other applications use them."""
    alive = [worker for worker in workers if worker.get("state") == "ALIVE"]
    if not alive:
        return "its master has no Spark worker. Start at least one.", False
    memory = parse_bytes(settings.executor_memory or _DEFAULT_MEMORY) // _MIB
    cores = settings.executor_cores or 1
    if not any(worker["memory"] >= memory and worker["cores"] >= cores for worker in alive):
        most = f"{max(worker['memory'] for worker in alive)} MiB and {max(worker['cores'] for worker in alive)} cores"
        return (
            f"an executor needs {memory} MiB and {cores} cores, and no Spark worker has more than {most}. Reduce "
            "EVENKEEL_SPARK_EXECUTOR_MEMORY or EVENKEEL_SPARK_EXECUTOR_CORES."
        ), False
    if not any(worker["memoryfree"] >= memory and worker["coresfree"] >= cores for worker in alive):
        return (
            "other applications use its cores or memory. If these are Evenkeel workers, set EVENKEEL_SPARK_CORES_MAX "
            "on each, so that they share; a worker without it takes every core."
        ), True
    return (
        "it has free cores and memory, so executors cannot reach the driver, or fail at their start. Set "
        "EVENKEEL_SPARK_DRIVER_HOST to an address of this machine that they reach; see the logs of the Spark workers."
    ), False


def _workers_of_master(settings: SparkSettings) -> list[dict[str, Any]] | None:
    """Returns the workers that an active master reports; None if no master answers."""
    for host, _ in settings.masters:
        name = f"[{host}]" if ":" in host else host
        url = f"http://{name}:{settings.master_ui_port}/json/"
        with suppress(httpx.HTTPError, ValueError, KeyError, TypeError):
            found = httpx.get(url, timeout=settings.connect_timeout_seconds, trust_env=False).raise_for_status().json()
            if found["status"] == "ALIVE" and found["url"] in _urls(settings):
                return list(found["workers"])
    return None


def _urls(settings: SparkSettings) -> tuple[str, ...]:
    """Returns the URLs of the masters. The web port may belong to a master that is not one of these."""
    return tuple(f"spark://{f'[{host}]' if ':' in host else host}:{port}" for host, port in settings.masters)


def wait_for_executors(
    driver: Driver,
    settings: SparkSettings,
    on_poll: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """Waits until an executor has registered. Calls `on_poll` at each poll; it may raise to stop the wait.

    Raises SparkUnavailableError `no_executors` after `executor_wait_seconds`, and `cluster_unreachable` if Spark stops
    meanwhile, as it does if its master does not accept the application.
    """
    until = clock() + settings.executor_wait_seconds
    while True:
        on_poll()
        driver.refresh()
        if driver.stopped:
            raise unreachable(settings, "The Spark master does not accept this worker's application")
        if driver.executors is not None and driver.executors.number:
            return
        if clock() > until:
            raise no_executors(settings)
        pause(_POLL_SECONDS)


def require_shared_results(driver: Driver, results: Path) -> None:
    """Makes executors write below the results directory. Raises SparkUnavailableError `results_not_shared`."""
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
            "results_not_shared",
            f"Executors cannot write below {results}, although this worker can: {first[:300]} {advice}",
        ) from error
    if missing:
        raise SparkUnavailableError(
            "results_not_shared",
            f"Executors and this worker do not share {results}: {missing} rows that executors wrote are missing. "
            f"{advice}",
        )
