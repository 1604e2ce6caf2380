"""Whether a cluster is there, asked without Spark: within seconds, where Spark itself would try for a minute.

What a driver on a cluster must have before it is handed to jobs: executors, and results that it can see.
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


class SparkUnavailableError(RuntimeError):
    """This worker's Spark cannot run jobs now; the message says why and what to do."""

    def __init__(self, code: str, message: str, *, is_busy: bool = False) -> None:
        """`is_busy` where others hold what this worker asks for."""
        self.code = code
        self.message = message
        self.is_busy = is_busy
        super().__init__(f"{code}: {message}")


def require_master(settings: SparkSettings) -> None:
    """Connects to a standalone master; of several, one that answers is enough. Takes `connect_timeout_seconds` each.

    Raises SparkUnavailableError `cluster_unreachable`. Other clusters are left to Spark, which asks them at once.
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
    """The error of a cluster that cannot be reached, or does not take the application."""
    variable = f"EVENKEEL_SPARK_MASTER ({settings.master})"
    return SparkUnavailableError(
        "cluster_unreachable", f"{what}. Start it, or correct {variable}; this worker tries again by itself."
    )


def no_executors(settings: SparkSettings) -> SparkUnavailableError:
    """The error of a cluster that gave no executor in time, with the likely reason."""
    workers = _workers_of_master(settings)
    reason, is_busy = _unknown_reason(settings) if workers is None else reason_of(settings, workers)
    return SparkUnavailableError(
        "no_executors",
        f"The cluster gave this worker no executor within {settings.executor_wait_seconds:g} s: "
        f"{reason} This worker tries again by itself.",
        is_busy=is_busy,
    )


def _unknown_reason(settings: SparkSettings) -> tuple[str, bool]:
    if settings.is_standalone:
        return (
            "its cores are taken by other applications (set EVENKEEL_SPARK_CORES_MAX on each worker, so that they "
            "share), or no Spark worker offers the memory and cores that EVENKEEL_SPARK_EXECUTOR_MEMORY and "
            "EVENKEEL_SPARK_EXECUTOR_CORES ask for, or executors cannot reach EVENKEEL_SPARK_DRIVER_HOST. Set "
            "EVENKEEL_SPARK_MASTER_UI_PORT to the master's web port to be told which."
        ), False
    return (
        "its queue or quota is taken, or an executor of this size does not fit on any node (see "
        "EVENKEEL_SPARK_EXECUTOR_MEMORY and EVENKEEL_SPARK_EXECUTOR_CORES), or executors cannot reach the driver "
        "(see EVENKEEL_SPARK_DRIVER_HOST)."
    ), False


def reason_of(settings: SparkSettings, workers: Iterable[dict[str, Any]]) -> tuple[str, bool]:
    """Why a standalone cluster with these workers (`workers` of the master's `/json`) gives no executor, and whether
    that is because others have them."""
    alive = [worker for worker in workers if worker.get("state") == "ALIVE"]
    if not alive:
        return "its master has no Spark worker: start some.", False
    memory = parse_bytes(settings.executor_memory or _DEFAULT_MEMORY) // _MIB
    cores = settings.executor_cores or 1
    if not any(worker["memory"] >= memory and worker["cores"] >= cores for worker in alive):
        most = f"{max(worker['memory'] for worker in alive)} MiB and {max(worker['cores'] for worker in alive)} cores"
        return (
            f"an executor asks for {memory} MiB and {cores} cores, and no Spark worker offers more than {most}. Set "
            "EVENKEEL_SPARK_EXECUTOR_MEMORY or EVENKEEL_SPARK_EXECUTOR_CORES to less."
        ), False
    if not any(worker["memoryfree"] >= memory and worker["coresfree"] >= cores for worker in alive):
        return (
            "other applications hold its cores or memory. Where other Evenkeel workers do, set "
            "EVENKEEL_SPARK_CORES_MAX on each, so that they share; one without it takes every core."
        ), True
    return (
        "there is room for one, so executors cannot reach the driver, or fail as they start: set "
        "EVENKEEL_SPARK_DRIVER_HOST to an address of this machine that they reach; the logs of Spark workers tell more."
    ), False


def _workers_of_master(settings: SparkSettings) -> list[dict[str, Any]] | None:
    """What an alive master says of its workers; None where none can be asked."""
    for host, _ in settings.masters:
        name = f"[{host}]" if ":" in host else host
        url = f"http://{name}:{settings.master_ui_port}/json/"
        with suppress(httpx.HTTPError, ValueError, KeyError, TypeError):
            found = httpx.get(url, timeout=settings.connect_timeout_seconds, trust_env=False).raise_for_status().json()
            if found["status"] == "ALIVE" and found["url"] in _urls(settings):
                return list(found["workers"])
    return None


def _urls(settings: SparkSettings) -> tuple[str, ...]:
    """Another master may have the web port that is asked."""
    return tuple(f"spark://{f'[{host}]' if ':' in host else host}:{port}" for host, port in settings.masters)


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
