"""The metrics that a worker serves for Prometheus, declared in one place: `workers.metrics` makes them, documents list
them.

The metrics that the API serves at `/metrics`, declared in one place: `service.api.metrics` makes them, documents
list them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MetricType(StrEnum):
    """As Prometheus calls them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class DeclaredMetric:
    """One metric. `name` is the family's as it is scraped: counters end in `_total`, histograms in their unit."""

    name: str
    type: MetricType
    labels: tuple[str, ...]
    meaning: str
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, in seconds."""


_WAIT_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_RUN_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)

JOBS_ENDED = DeclaredMetric(
    "evenkeel_worker_jobs_ended_total",
    MetricType.COUNTER,
    ("status", "queue"),
    "Jobs whose end this worker published, by their final status.",
)
QUEUE_WAIT = DeclaredMetric(
    "evenkeel_worker_queue_wait_seconds",
    MetricType.HISTOGRAM,
    ("queue",),
    "From a job's submission to its first claim.",
    _WAIT_SECONDS,
)
PLANNING = DeclaredMetric(
    "evenkeel_worker_planning_seconds",
    MetricType.HISTOGRAM,
    (),
    "Planning of an attempt: statistics, rules, the checked plan. Starting Spark is no part of it.",
    _RUN_SECONDS,
)
EXECUTION = DeclaredMetric(
    "evenkeel_worker_execution_seconds",
    MetricType.HISTOGRAM,
    (),
    "Execution of an attempt on Spark, however it ended.",
    _RUN_SECONDS,
)
HANDED_BACK = DeclaredMetric(
    "evenkeel_worker_attempts_handed_back_total",
    MetricType.COUNTER,
    ("reason",),
    "Attempts given up before their end, by the code of the reason: `handed_back` (the worker stops), `driver_lost`, "
    "or `driver_ended` (for the work of another job).",
)
LEASES_LOST = DeclaredMetric(
    "evenkeel_worker_leases_lost_total",
    MetricType.COUNTER,
    (),
    "Attempts ended because their lease ran out, or was not known to hold while the database was away.",
)
SPARK_STARTS = DeclaredMetric(
    "evenkeel_worker_spark_starts_total", MetricType.COUNTER, (), "Spark drivers that came up."
)
SPARK_LOSSES = DeclaredMetric(
    "evenkeel_worker_spark_losses_total", MetricType.COUNTER, (), "Spark drivers that died, hung or lost their cluster."
)
RUNNING = DeclaredMetric("evenkeel_worker_running_attempts", MetricType.GAUGE, (), "Attempts at hand now.")
MEMORY = DeclaredMetric(
    "evenkeel_worker_memory_bytes",
    MetricType.GAUGE,
    ("part",),
    "Resident memory, of the `process` in Python and of its `jvm`.",
)
MINI_BATCHES = DeclaredMetric(
    "evenkeel_worker_mini_batch_seconds",
    MetricType.HISTOGRAM,
    (),
    "Mini-batches of streaming jobs, from the look for new files to the end of all.",
    _RUN_SECONDS,
)
WAITING_BYTES = DeclaredMetric(
    "evenkeel_worker_stream_waiting_bytes",
    MetricType.GAUGE,
    (),
    "Bytes that the streams of jobs at hand have and no mini-batch has taken, as last looked up.",
)
OLDEST_WAITING = DeclaredMetric(
    "evenkeel_worker_stream_oldest_waiting_seconds",
    MetricType.GAUGE,
    (),
    "How long the oldest of these bytes had been there when it was looked up; 0 where there are none.",
)

WORKER_METRICS = (
    JOBS_ENDED,
    QUEUE_WAIT,
    PLANNING,
    EXECUTION,
    HANDED_BACK,
    LEASES_LOST,
    SPARK_STARTS,
    SPARK_LOSSES,
    RUNNING,
    MEMORY,
    MINI_BATCHES,
    WAITING_BYTES,
    OLDEST_WAITING,
)
"""In the order of the documents."""


RECENT_SECONDS = 15 * 60
"""What counts as recent in `ENDED_RECENTLY`."""

_REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

REQUESTS = DeclaredMetric(
    "evenkeel_http_request_duration_seconds",
    MetricType.HISTOGRAM,
    ("method", "route", "status"),
    "Time from the request to the end of its answer, by the route's template; waiting requests wait.",
    _REQUEST_SECONDS,
)
BUILD = DeclaredMetric("evenkeel_build_info", MetricType.GAUGE, ("version",), "1, with the version of this API.")
DATABASE_UP = DeclaredMetric(
    "evenkeel_database_up",
    MetricType.GAUGE,
    (),
    "Whether the database answers; while it does not, nothing that is read from it is served.",
)
BROKER_UP = DeclaredMetric("evenkeel_broker_up", MetricType.GAUGE, (), "Whether the broker takes messages.")
JOBS = DeclaredMetric(
    "evenkeel_jobs",
    MetricType.GAUGE,
    ("status", "queue"),
    "Jobs that are kept, as they stand; one whose worker was lost counts as QUEUED. Retention makes it fall.",
)
ENDED_RECENTLY = DeclaredMetric(
    "evenkeel_jobs_ended_recently",
    MetricType.GAUGE,
    ("status",),
    "Jobs that ended within the last 15 minutes. The workers count every end: `evenkeel_worker_jobs_ended_total`.",
)
OLDEST_QUEUED = DeclaredMetric(
    "evenkeel_oldest_queued_seconds", MetricType.GAUGE, ("queue",), "Age of the oldest queued job; 0 while none waits."
)
EXPIRED_LEASES = DeclaredMetric(
    "evenkeel_expired_leases",
    MetricType.GAUGE,
    (),
    "Jobs whose worker gave no sign of life in time and that nobody has taken over yet.",
)
OUTBOX = DeclaredMetric(
    "evenkeel_outbox_messages",
    MetricType.GAUGE,
    (),
    "Messages stored with their jobs that the broker has not taken yet.",
)
WORKERS = DeclaredMetric(
    "evenkeel_workers", MetricType.GAUGE, ("status",), "Workers by status; SILENT ones are forgotten after an hour."
)

API_METRICS = (
    REQUESTS,
    BUILD,
    DATABASE_UP,
    BROKER_UP,
    JOBS,
    ENDED_RECENTLY,
    OLDEST_QUEUED,
    EXPIRED_LEASES,
    OUTBOX,
    WORKERS,
)
"""In the order of the documents. Each API process serves all of them; but for the requests, all serve the same."""
