"""The Prometheus metrics of a worker, their endpoint, and the memory of its processes.

Names, labels and descriptions of the metrics are declared in `service.monitoring.metrics`.
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
from service.store.attempts import Claim
from service.store.jobs import RUN

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Resident:
    """Resident memory in bytes; 0 for a process that does not exist."""

    process: int
    jvm: int
    isolated: int = 0
    """That of the drivers of single jobs."""

    @property
    def total(self) -> int:
        """The sum of all."""
        return self.process + self.jvm + self.isolated


def resident(jvm_pid: int | None, isolated: int = 0) -> Resident:
    """Returns the memory of this process, of its JVM, if any, and `isolated`. Never waits; a process that has ended
    counts 0.
    """
    return Resident(_resident_bytes(None), 0 if jvm_pid is None else _resident_bytes(jvm_pid), isolated)


def _resident_bytes(pid: int | None) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


class StreamBacklog(Protocol):
    """The backlog of a stream, as it was last measured."""

    @property
    def waiting_bytes(self) -> int:
        """The size of the input that was not read yet."""

    @property
    def oldest_waiting_seconds(self) -> float:
        """The age of its oldest file or row; 0 if there is no backlog."""


class WorkerMetrics:
    """The metrics of a worker, in their own registry. Safe to share between threads."""

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
        # A stream that is not referenced any more does not count.
        self._streams: WeakSet[StreamBacklog] = WeakSet()
        self._streams_lock = Lock()
        self._gauge(declared.WAITING_BYTES).set_function(
            lambda: sum(stream.waiting_bytes for stream in self._watched_streams())
        )
        self._gauge(declared.OLDEST_WAITING).set_function(
            lambda: max((stream.oldest_waiting_seconds for stream in self._watched_streams()), default=0.0)
        )

    def claimed(self, claim: Claim) -> None:
        """Records that a job was claimed."""
        if claim.kind == RUN and claim.waited_ms is not None:
            self._wait.labels(claim.queue).observe(max(0, claim.waited_ms) / 1000)

    def planned(self, milliseconds: int) -> None:
        """Records how long the planning of an attempt took."""
        self._planning.observe(milliseconds / 1000)

    def executed(self, milliseconds: int) -> None:
        """Records how long the query of an attempt ran."""
        self._execution.observe(milliseconds / 1000)

    def mini_batch(self, milliseconds: int) -> None:
        """Records how long a mini-batch took."""
        self._mini_batches.observe(milliseconds / 1000)

    def watch_stream(self, stream: StreamBacklog) -> None:
        """Includes the backlog of this stream in every scrape. Holds only a weak reference to it."""
        with self._streams_lock:
            self._streams.add(stream)

    def ended(self, claim: Claim, status: JobStatus) -> None:
        """Records that the end of a job was published."""
        if claim.kind == RUN:
            self._ended.labels(status.value, claim.queue).inc()

    def handed_back(self, reason: str) -> None:
        """Records that a job was handed back for another attempt; `reason` is a problem's code."""
        self._handed_back.labels(reason).inc()

    def lease_lost(self) -> None:
        """Records that an attempt ended because its lease was lost, or may have been."""
        self._leases_lost.inc()

    def spark_started(self) -> None:
        """Records that a driver started."""
        self._spark_starts.inc()

    def spark_lost(self) -> None:
        """Records that a driver was lost."""
        self._spark_losses.inc()

    def watch(self, running: Callable[[], int], memory: Callable[[], Resident]) -> None:
        """Sets the functions that are called at every scrape. Neither may wait for anything."""
        self._running.set_function(running)
        self._memory.labels("process").set_function(lambda: memory().process)
        self._memory.labels("jvm").set_function(lambda: memory().jvm)
        self._memory.labels("isolated").set_function(lambda: memory().isolated)

    def serve(self, host: str, port: int) -> WSGIServer | None:
        """Serves the metrics at `host:port` in another thread. Returns None, and logs the error, if the address cannot
        be used: a worker without metrics still runs jobs.
        """
        try:
            server, _ = start_http_server(port, addr=host, registry=self.registry)
        except OSError as error:
            _log.error(
                "worker_metrics_not_served",
                address=f"{host}:{port}",
                error=str(error),
                advice="Each worker of a host needs its own port: set EVENKEEL_WORKER_METRICS_PORT.",
            )
            return None
        return server

    def _watched_streams(self) -> list[StreamBacklog]:
        with self._streams_lock:
            return list(self._streams)

    def _counter(self, metric: DeclaredMetric) -> Counter:
        return Counter(metric.name, metric.meaning, metric.labels, registry=self.registry)

    def _gauge(self, metric: DeclaredMetric) -> Gauge:
        return Gauge(metric.name, metric.meaning, metric.labels, registry=self.registry)

    def _histogram(self, metric: DeclaredMetric) -> Histogram:
        return Histogram(metric.name, metric.meaning, metric.labels, registry=self.registry, buckets=metric.buckets)


class CurrentDriver(Protocol):
    """Has the current driver."""

    @property
    def current(self) -> object | None:
        """The driver, or None while there is none. Never waits."""


class DriverCount:
    """Counts the starts and losses of drivers. A start takes longer than the time between two steps."""

    def __init__(self, runtime: CurrentDriver, metrics: WorkerMetrics) -> None:
        self._runtime = runtime
        self._metrics = metrics
        self._last: object | None = None

    def step(self) -> None:
        """Compares the driver with that of the previous step, and counts a loss and a start."""
        driver = self._runtime.current
        if driver is self._last:
            return
        if self._last is not None:
            self._metrics.spark_lost()
        if driver is not None:
            self._metrics.spark_started()
        self._last = driver
