"""The Prometheus metrics of API and workers: names, types, labels, descriptions and buckets.

`service.api.operations` and `workers.metrics` measure them; the documentation lists them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MetricType(StrEnum):
    """The types of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class DeclaredMetric:
    """A metric. `name` is the name of the scraped family: counters end in `_total`, histograms in their unit."""

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
    "Jobs whose end this worker has published, by final status.",
)
QUEUE_WAIT = DeclaredMetric(
    "evenkeel_worker_queue_wait_seconds",
    MetricType.HISTOGRAM,
    ("queue",),
    "Time from a job's submission to its first claim.",
    _WAIT_SECONDS,
)
PLANNING = DeclaredMetric(
    "evenkeel_worker_planning_seconds",
    MetricType.HISTOGRAM,
    (),
    "Time to plan an attempt: statistics, rules, the checked plan. Does not include the start of Spark.",
    _RUN_SECONDS,
)
EXECUTION = DeclaredMetric(
    "evenkeel_worker_execution_seconds",
    MetricType.HISTOGRAM,
    (),
    "Time to run an attempt on Spark, with any outcome.",
    _RUN_SECONDS,
)
HANDED_BACK = DeclaredMetric(
    "evenkeel_worker_attempts_handed_back_total",
    MetricType.COUNTER,
    ("reason",),
    "Attempts that were handed back, by the code of the reason: `handed_back` (the worker stops), `driver_lost`, "
    "or `driver_ended` (because of another job).",
)
LEASES_LOST = DeclaredMetric(
    "evenkeel_worker_leases_lost_total",
    MetricType.COUNTER,
    (),
    "Attempts that ended because their lease expired, or could not be renewed while the database was unavailable.",
)
SPARK_STARTS = DeclaredMetric(
    "evenkeel_worker_spark_starts_total", MetricType.COUNTER, (), "Spark drivers that have started."
)
SPARK_LOSSES = DeclaredMetric(
    "evenkeel_worker_spark_losses_total",
    MetricType.COUNTER,
    (),
    "Spark drivers that have died, hung or lost their cluster.",
)
RUNNING = DeclaredMetric("evenkeel_worker_running_attempts", MetricType.GAUGE, (), "Attempts that the worker runs now.")
MEMORY = DeclaredMetric(
    "evenkeel_worker_memory_bytes",
    MetricType.GAUGE,
    ("part",),
    "Resident memory of the Python `process`, of its `jvm`, and of the drivers of `isolated` jobs.",
)
MINI_BATCHES = DeclaredMetric(
    "evenkeel_worker_mini_batch_seconds",
    MetricType.HISTOGRAM,
    (),
    "Duration of mini-batches of streaming jobs, from the search for new files to the end.",
    _RUN_SECONDS,
)
WAITING_BYTES = DeclaredMetric(
    "evenkeel_worker_stream_waiting_bytes",
    MetricType.GAUGE,
    (),
    "Bytes of the streams of running jobs that no mini-batch has read, when last checked.",
)
OLDEST_WAITING = DeclaredMetric(
    "evenkeel_worker_stream_oldest_waiting_seconds",
    MetricType.GAUGE,
    (),
    "Age of the oldest of these bytes when last checked; 0 if there are none.",
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
"""The metrics of a worker, in the order of the documentation."""


RECENT_SECONDS = 15 * 60
"""The period of `ENDED_RECENTLY`."""

_REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

REQUESTS = DeclaredMetric(
    "evenkeel_http_request_duration_seconds",
    MetricType.HISTOGRAM,
    ("method", "route", "status"),
    "Time from a request to the end of its answer, by the template of its route; includes the time of `Prefer: wait`.",
    _REQUEST_SECONDS,
)
BUILD = DeclaredMetric(
    "evenkeel_build_info", MetricType.GAUGE, ("version",), "1, with the version of the API as a label."
)
DATABASE_UP = DeclaredMetric(
    "evenkeel_database_up",
    MetricType.GAUGE,
    (),
    "Whether the database answers; metrics that are read from it are missing while it does not.",
)
BROKER_UP = DeclaredMetric("evenkeel_broker_up", MetricType.GAUGE, (), "Whether the broker accepts messages.")
JOBS = DeclaredMetric(
    "evenkeel_jobs",
    MetricType.GAUGE,
    ("status", "queue"),
    "Stored jobs by status; a job whose worker was lost counts as QUEUED. Retention lowers it.",
)
ENDED_RECENTLY = DeclaredMetric(
    "evenkeel_jobs_ended_recently",
    MetricType.GAUGE,
    ("status",),
    "Jobs that ended in the last 15 minutes. `evenkeel_worker_jobs_ended_total` of the workers counts all.",
)
OLDEST_QUEUED = DeclaredMetric(
    "evenkeel_oldest_queued_seconds", MetricType.GAUGE, ("queue",), "Age of the oldest queued job; 0 if there is none."
)
EXPIRED_LEASES = DeclaredMetric(
    "evenkeel_expired_leases",
    MetricType.GAUGE,
    (),
    "Jobs whose lease has expired and that no sweeper has found yet.",
)
OUTBOX = DeclaredMetric(
    "evenkeel_outbox_messages",
    MetricType.GAUGE,
    (),
    "Messages in the outbox, which the broker has not accepted yet.",
)
WORKERS = DeclaredMetric(
    "evenkeel_workers", MetricType.GAUGE, ("status",), "Workers by status; SILENT workers are removed after an hour."
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
"""The metrics of the API, in the order of the documentation. All processes serve the same values, except REQUESTS."""
