"""What Prometheus scrapes: requests as they are answered, and jobs as the database has them at the scrape."""

from __future__ import annotations

from collections.abc import Iterator

import structlog
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError

from service.spec.status import JobStatus
from service.store import jobs
from service.store.session import Database
from service.store.workers import count_alive

_log = structlog.get_logger(__name__)
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class HttpMetrics:
    """Requests by method, route template and status, with their latency. A registry of its own, none shared."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Histogram(
            "evenkeel_http_request_duration_seconds",
            "Time from the request to the end of its answer; waiting requests wait.",
            ("method", "route", "status"),
            registry=self.registry,
            buckets=_BUCKETS,
        )

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Counts one answered request."""
        # Anybody may invent methods; each would be a series for ever.
        known = method if method in {"GET", "POST", "DELETE"} else "other"
        self._requests.labels(known, route, str(status)).observe(seconds)


class JobMetrics(Collector):
    """Gauges read from the database at every scrape."""

    def __init__(self, database: Database, worker_silence_ms: int) -> None:
        self._database = database
        self._worker_silence_ms = worker_silence_ms

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Whether the database answers, and only then what it has.

        Jobs by status (zeros included), age of the oldest waiting job in seconds, and live workers.
        """
        try:
            read = list(self._read())
        except SQLAlchemyError as error:
            _log.warning("scraped_without_database", error=type(error).__name__)
            read = []
        up = GaugeMetricFamily("evenkeel_database_up", "Whether the database answers.", value=1 if read else 0)
        yield from (up, *read)

    def _read(self) -> Iterator[GaugeMetricFamily]:
        with self._database.read() as session:
            now = self._database.now(session)
            counts = jobs.count_by_status(session, now)
            oldest = jobs.oldest_queued_at(session, now)
            alive = count_alive(session, now - self._worker_silence_ms)
        by_status = GaugeMetricFamily("evenkeel_jobs", "Jobs by status.", labels=["status"])
        for status in JobStatus:
            by_status.add_metric([status.value], counts.get(status, 0))
        yield by_status
        age = 0.0 if oldest is None else max(0.0, (now - oldest) / 1000)
        yield GaugeMetricFamily("evenkeel_oldest_queued_seconds", "Age of the oldest queued job.", value=age)
        yield GaugeMetricFamily("evenkeel_workers_alive", "Workers that gave a sign of life lately.", value=alive)
