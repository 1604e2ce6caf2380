"""The metrics that the API serves at `/metrics`, declared in one place: `service.api.metrics` makes them, documents
list them."""

from __future__ import annotations

from service.spec.worker_metrics import DeclaredMetric, MetricType

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
