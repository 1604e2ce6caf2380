"""The routes for operation: liveness, readiness, and the metrics for Prometheus.

Metrics count requests as they are answered, and read jobs and workers from the database at every scrape. Their names,
labels and meanings are declared in `service.monitoring.metrics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import structlog
from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import Field
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from service import __version__
from service.api.authentication import Scraper, is_authenticated
from service.api.dependencies import ServicesDep
from service.api.problems import problems
from service.broker.configuration import broker_fault
from service.config.settings import Settings
from service.contract.enums import TERMINAL, JobStatus, Queue
from service.contract.errors import MissingScopeError, NotReadyError, UnauthenticatedError
from service.contract.model import Frozen
from service.jobs.readiness import Readiness, check_readiness, without_details, worker_silence_ms
from service.monitoring import metrics as declared
from service.monitoring.metrics import DeclaredMetric
from service.store import workers
from service.store.session import Database
from service.store.workers import JobGauges, read_gauges

router = APIRouter(tags=["operations"])

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})

_log = structlog.get_logger(__name__)


class Health(Frozen):
    """The response of a process that is alive."""

    status: str = Field(examples=["alive"])
    version: str = Field(examples=["0.1.0"])


@router.get("/healthz", summary="Check liveness")
async def get_health() -> Health:
    """Confirms that the process answers. Checks neither the database nor the broker."""
    return Health(status="alive", version=__version__)


@router.get("/readyz", summary="Check readiness", responses=problems(NotReadyError))
async def get_readiness(request: Request, services: ServicesDep) -> Readiness:
    """Checks the database, the broker and that at least one worker is alive. 503 names what is unavailable; the reason
    is given only to callers with an API key.

    `warnings` names each queue without a worker.
    """
    # This needs no key: without sharing, a flood of requests would take a thread and a connection each.
    check = partial(run_in_threadpool, check_readiness, services.database, services.settings)
    has_key = is_authenticated(request.scope)
    try:
        readiness = await services.readiness.share(None, check)
    except NotReadyError as error:
        raise error if has_key else without_details(error) from None
    return readiness if has_key else readiness.model_copy(update={"warnings": ()})


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={
        200: {
            "description": "Prometheus' text format.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        **problems(UnauthenticatedError, MissingScopeError),
    },
)
def get_prometheus_metrics(request: Request, _caller: Scraper) -> Response:
    """Returns requests by route and status with latency, jobs by status, age of the oldest queued job, live workers."""
    return Response(generate_latest(request.app.state.metrics.registry), media_type=CONTENT_TYPE_LATEST)


class HttpMetrics:
    """Requests by method, route template and status, with their latency. Each instance has its own registry.

    A scrape reads the counters of one process. If several share an address, the label `process` keeps them apart.
    """

    def __init__(self, process: str = "") -> None:
        self.registry = CollectorRegistry()
        metric = declared.REQUESTS
        self._of_process = (process,) if process else ()
        labels = (*metric.labels, "process") if process else metric.labels
        self._requests = Histogram(metric.name, metric.meaning, labels, registry=self.registry, buckets=metric.buckets)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Counts one answered request."""
        # Clients can send any method name; without this, each would add a permanent series.
        known = method if method in _METHODS else "other"
        self._requests.labels(known, route, str(status), *self._of_process).observe(seconds)


class ServiceGauges(Collector):
    """Gauges that are read from the database and the broker at every scrape."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yields whether the database and the broker answer, and the gauges of the database if it answers.

        Combinations of labels without a job or worker are included as zeros.
        """
        yield _gauge(declared.BUILD, [((__version__,), 1)])
        try:
            read = list(self._read())
        except SQLAlchemyError as error:
            _log.warning("scraped_without_database", error=type(error).__name__)
            read = []
        yield _gauge(declared.DATABASE_UP, [((), 1 if read else 0)])
        yield _gauge(declared.BROKER_UP, [((), 1 if broker_fault(self._settings) is None else 0)])
        yield from read

    def _read(self) -> Iterator[GaugeMetricFamily]:
        with self._database.read() as session:
            now = self._database.now(session)
            jobs = read_gauges(session, now, declared.RECENT_SECONDS * 1000)
            by_status = workers.count_by_status(session, now, worker_silence_ms(self._settings))
        yield from _of_jobs(jobs, now)
        yield _gauge(declared.WORKERS, [((status.value,), count) for status, count in by_status.items()])


def _of_jobs(jobs: JobGauges, now: int) -> Iterator[GaugeMetricFamily]:
    each = [(status.value, queue.value) for status in JobStatus for queue in Queue]
    yield _gauge(declared.JOBS, [(key, jobs.counts.get(key, 0)) for key in each])
    ended = [((status.value,), jobs.ended_recently.get(status.value, 0)) for status in JobStatus if status in TERMINAL]
    yield _gauge(declared.ENDED_RECENTLY, ended)
    since = [(queue.value, jobs.oldest_queued_at.get(queue.value, now)) for queue in Queue]
    yield _gauge(declared.OLDEST_QUEUED, [((queue,), max(0.0, (now - at) / 1000)) for queue, at in since])
    yield _gauge(declared.EXPIRED_LEASES, [((), jobs.expired_leases)])
    yield _gauge(declared.OUTBOX, [((), jobs.outbox)])


def _gauge(metric: DeclaredMetric, values: Iterable[tuple[tuple[str, ...], float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family
