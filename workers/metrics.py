"""What the processes of a worker take of the machine's memory.

What a worker counts and measures of itself, and the endpoint that Prometheus scrapes it from.

Names, labels and meanings are declared in `service.monitoring.metrics`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Protocol
from weakref import WeakSet
from wsgiref.simple_server import WSGIServer

import psutil
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from service.contract.enums import JobStatus
from service.monitoring import metrics as declared
from service.monitoring.metrics import DeclaredMetric
from service.store.jobs import RUN
from service.store.leases import Claim


@dataclass(frozen=True)
class Resident:
    """Resident memory in bytes; 0 for a process that is not there."""

    process: int
    jvm: int

    @property
    def total(self) -> int:
        """Of both together."""
        return self.process + self.jvm


def resident(jvm_pid: int | None) -> Resident:
    """What this process takes, and its JVM, where it has one. Never waits, and never raises for one that has gone."""
    return Resident(process=_resident_bytes(None), jvm=0 if jvm_pid is None else _resident_bytes(jvm_pid))


def _resident_bytes(pid: int | None) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


_log = structlog.get_logger(__name__)


class StreamBehind(Protocol):
    """A stream that may be behind its sources, as it was last looked up."""

    @property
    def waiting_bytes(self) -> int:
        """What waits."""

    @property
    def oldest_waiting_seconds(self) -> float:
        """For how long the oldest of it has; 0 where there is none."""


class WorkerMetrics:
    """All of them, in a registry of their own. Safe to share between threads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._ended = self._counter(declared.JOBS_ENDED)
        self._wait = self._histogram(declared.QUEUE_WAIT)
        self._planning = self._histogram(declared.PLANNING)
        self._execution = self._histogram(declared.EXECUTION)
        self._handed_back = self._counter(declared.HANDED_BACK)
        self._leases_lost = self._counter(declared.LEASES_LOST)
        self._spark_starts = self._counter(declared.SPARK_STARTS)
        self._spark_losses = self._counter(declared.SPARK_LOSSES)
        self._running = self._gauge(declared.RUNNING)
        self._memory = self._gauge(declared.MEMORY)
        self._mini_batches = self._histogram(declared.MINI_BATCHES)
        # Those that are gone count for nothing, however they went.
        self._streams: WeakSet[StreamBehind] = WeakSet()
        self._streams_lock = Lock()
        self._gauge(declared.WAITING_BYTES).set_function(
            lambda: sum(stream.waiting_bytes for stream in self._watched_streams())
        )
        self._gauge(declared.OLDEST_WAITING).set_function(
            lambda: max((stream.oldest_waiting_seconds for stream in self._watched_streams()), default=0.0)
        )

    def claimed(self, claim: Claim) -> None:
        """A job was claimed."""
        if claim.kind == RUN and claim.waited_ms is not None:
            self._wait.labels(claim.queue).observe(max(0, claim.waited_ms) / 1000)

    def planned(self, milliseconds: int) -> None:
        """An attempt was planned within this time."""
        self._planning.observe(milliseconds / 1000)

    def executed(self, milliseconds: int) -> None:
        """An attempt's query ran for this time."""
        self._execution.observe(milliseconds / 1000)

    def mini_batch(self, milliseconds: int) -> None:
        """A mini-batch took this time."""
        self._mini_batches.observe(milliseconds / 1000)

    def watch_stream(self, stream: StreamBehind) -> None:
        """Reads this at every scrape, for as long as somebody else keeps it."""
        with self._streams_lock:
            self._streams.add(stream)

    def ended(self, claim: Claim, status: JobStatus) -> None:
        """The end of a job was published."""
        if claim.kind == RUN:
            self._ended.labels(status.value, claim.queue).inc()

    def handed_back(self, reason: str) -> None:
        """An attempt was given up for another one; `reason` is a problem's code."""
        self._handed_back.labels(reason).inc()

    def lease_lost(self) -> None:
        """An attempt ended because its lease did, or may have."""
        self._leases_lost.inc()

    def spark_started(self) -> None:
        """A driver came up."""
        self._spark_starts.inc()

    def spark_lost(self) -> None:
        """A driver was given up."""
        self._spark_losses.inc()

    def watch(self, running: Callable[[], int], memory: Callable[[], Resident]) -> None:
        """Reads these at every scrape; neither may wait for anything."""
        self._running.set_function(running)
        self._memory.labels("process").set_function(lambda: memory().process)
        self._memory.labels("jvm").set_function(lambda: memory().jvm)

    def serve(self, host: str, port: int) -> WSGIServer | None:
        """Answers scrapes at `host:port` from a thread of its own; None where nobody can listen there, which is told.

        A worker that cannot be measured still runs jobs.
        """
        try:
            server, _ = start_http_server(port, addr=host, registry=self.registry)
        except OSError as error:
            _log.error(
                "worker_metrics_not_served",
                address=f"{host}:{port}",
                error=str(error),
                advice="Every worker of a host needs a port of its own: set EVENKEEL_WORKER_METRICS_PORT.",
            )
            return None
        return server

    def _watched_streams(self) -> list[StreamBehind]:
        with self._streams_lock:
            return list(self._streams)

    def _counter(self, metric: DeclaredMetric) -> Counter:
        return Counter(metric.name, metric.meaning, metric.labels, registry=self.registry)

    def _gauge(self, metric: DeclaredMetric) -> Gauge:
        return Gauge(metric.name, metric.meaning, metric.labels, registry=self.registry)

    def _histogram(self, metric: DeclaredMetric) -> Histogram:
        return Histogram(metric.name, metric.meaning, metric.labels, registry=self.registry, buckets=metric.buckets)


class CurrentDriver(Protocol):
    """Whatever knows the driver of the moment."""

    @property
    def current(self) -> object | None:
        """The driver, or None while there is none; never waits."""


class DriverCount:
    """One step notes whether the driver is another than before. A start takes longer than the time between steps."""

    def __init__(self, runtime: CurrentDriver, metrics: WorkerMetrics) -> None:
        self._runtime = runtime
        self._metrics = metrics
        self._last: object | None = None

    def step(self) -> None:
        """Counts a driver that came, and one that went."""
        driver = self._runtime.current
        if driver is self._last:
            return
        if self._last is not None:
            self._metrics.spark_lost()
        if driver is not None:
            self._metrics.spark_started()
        self._last = driver
