"""How often a job looks at its tables.

The queues: jobs that must not wait behind long ones, long ones, and those that run until they are stopped.

The states of a job and of an attempt, and the moves between them, as a table.

    QUEUED -> PLANNING -> RUNNING -> SUCCEEDED | FAILED | CANCELLED | TIMED_OUT | CRASHED
       |         |           |
       |         +-----------+--> CANCELLING -> CANCELLED (or the end that came first)
       |         +-----------+--> QUEUED   (the attempt lost its lease; the job is tried again)
       +--> CANCELLED

A streaming job never succeeds; it comes to rest, and may go on from there:

    PLANNING | RUNNING -> STOPPING -> STOPPED -> QUEUED (resumed) | CANCELLED
       QUEUED | PLANNING | RUNNING -> STOPPED  (nobody works on it; or it has caught up, or failed)

A move is applied by a conditional UPDATE on the current state; a move that is not in the table is a bug.

While versions are mixed, a job may be in a state that only a newer version knows. It is shown under its stored name,
and this version does not change such a job.

What a worker says of itself, and what follows from it.

What the bearer of an API key may do.

Names of tenants. They are parts of directories, so they have no sign that means something there.

The tenant of callers that the service does not authenticate, and of API keys that are made without naming one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, WithJsonSchema


class Mode(StrEnum):
    """How often a job reads its tables.

    `batch` reads them once, as they are. `incremental` processes what is new since its last run, and then waits to be
    resumed. `continuous` runs until it is stopped.
    """

    BATCH = "batch"
    INCREMENTAL = "incremental"
    CONTINUOUS = "continuous"

    @property
    def is_streaming(self) -> bool:
        """Whether the job keeps state from one mini-batch to the next."""
        return self is not Mode.BATCH


class OutputMode(StrEnum):
    """What a mini-batch emits: every group that it `update`s, or rows to `append` that nothing will change."""

    UPDATE = "update"
    APPEND = "append"


class Queue(StrEnum):
    """Which workers a job is offered to."""

    SHORT = "short"
    LONG = "long"
    STREAM = "stream"


EXPECTED = (Queue.SHORT, Queue.LONG)
"""Queues that some worker of every installation should listen to; continuous jobs are not everybody's."""


class QueueChoice(StrEnum):
    """What a job says of its queue; `auto` leaves it to the size of its tables."""

    AUTO = "auto"
    SHORT = "short"
    LONG = "long"

    def resolve(self, table_bytes: int, long_from_bytes: int) -> Queue:
        """The queue of a job whose tables have `table_bytes` together; from `long_from_bytes` on, it is a long one."""
        if self is QueueChoice.AUTO:
            return Queue.LONG if table_bytes >= long_from_bytes else Queue.SHORT
        return Queue(self.value)


class JobStatus(StrEnum):
    """Where a job stands."""

    QUEUED = "QUEUED"
    PLANNING = "PLANNING"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"
    CRASHED = "CRASHED"

    @property
    def is_terminal(self) -> bool:
        """True once nothing will change the job any more."""
        return self in TERMINAL


_NAMES = [status.value for status in JobStatus]

StatusText = Annotated[
    str,
    WithJsonSchema(
        {
            "type": "string",
            "examples": ["RUNNING"],
            "x-extensible-enum": _NAMES,
            "description": f"One of {', '.join(_NAMES)}. More may come: use `finished` to know when to stop waiting. "
            "A STOPPED job has not finished: it may be resumed. While versions of the service are mixed, the older one "
            "shows a state of the newer one by its name, and answers requests that change such a job with "
            "`job_state_unknown`.",
        }
    ),
]
"""The name of a state as clients see it; one that only a newer version knows is shown as it is stored."""


class AttemptStatus(StrEnum):
    """How one try of a job stands. `CRASHED` means the lease or the JVM was lost, not that the query failed; `STOPPED`
    that a stream came to rest: by request, with nothing left to read, or by a failure after which it may go on."""

    PLANNING = "PLANNING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"
    CRASHED = "CRASHED"


TERMINAL: frozenset[JobStatus] = frozenset(
    {
        JobStatus.SUCCEEDED,
        JobStatus.FAILED,
        JobStatus.CANCELLED,
        JobStatus.TIMED_OUT,
        JobStatus.CRASHED,
    }
)

LEASED: frozenset[JobStatus] = frozenset(
    {JobStatus.PLANNING, JobStatus.RUNNING, JobStatus.CANCELLING, JobStatus.STOPPING}
)

_BY_NAME = {status.value: status for status in JobStatus}
_ENDS_OF_A_RUN = TERMINAL
_STOPS: frozenset[JobStatus] = frozenset({JobStatus.STOPPING, JobStatus.STOPPED})

MOVES: dict[JobStatus, frozenset[JobStatus]] = {
    JobStatus.QUEUED: frozenset({JobStatus.PLANNING, JobStatus.CANCELLED, JobStatus.STOPPED}),
    JobStatus.PLANNING: frozenset({JobStatus.RUNNING, JobStatus.CANCELLING, JobStatus.QUEUED})
    | _STOPS
    | _ENDS_OF_A_RUN,
    JobStatus.RUNNING: frozenset({JobStatus.CANCELLING, JobStatus.QUEUED}) | _STOPS | _ENDS_OF_A_RUN,
    JobStatus.CANCELLING: _ENDS_OF_A_RUN,
    JobStatus.STOPPING: frozenset({JobStatus.STOPPED, JobStatus.CANCELLING}) | _ENDS_OF_A_RUN - {JobStatus.SUCCEEDED},
    JobStatus.STOPPED: frozenset({JobStatus.QUEUED, JobStatus.CANCELLED}),
    **{terminal: frozenset[JobStatus]() for terminal in TERMINAL},
}


def known_status(name: str) -> JobStatus | None:
    """The state of this name as it is stored; None for one that only a newer version knows."""
    return _BY_NAME.get(name)


def sources_of(target: JobStatus) -> frozenset[JobStatus]:
    """The states from which `target` may be reached: the condition of the UPDATE that moves a job there."""
    return frozenset(source for source, targets in MOVES.items() if target in targets)


class SparkState(StrEnum):
    """Whether a worker's Spark could run a job now."""

    STARTING = "starting"
    READY = "ready"
    UNAVAILABLE = "unavailable"


class WorkerStatus(StrEnum):
    """How a worker stands, as clients and operators see it."""

    STARTING = "STARTING"
    READY = "READY"
    DRAINING = "DRAINING"
    UNAVAILABLE = "UNAVAILABLE"
    SILENT = "SILENT"


class KeyScope(StrEnum):
    """Each stands for itself; a key has one or several."""

    READ = "read"
    """Jobs, results, events, reports, streams and workers: everything that changes nothing."""
    SUBMIT = "submit"
    """Submit, explain, cancel, stop, resume, change and delete jobs; declare, fill and delete streams."""
    METRICS = "metrics"
    """What Prometheus scrapes."""
    ADMIN = "admin"
    """Keys of every tenant, and workers: for whoever runs the service. Jobs of others it does not see."""


ALL_SCOPES = frozenset(KeyScope)


TENANT_PATTERN = r"^[a-z0-9][a-z0-9-]{0,62}$"

TenantName = Annotated[
    str,
    Field(
        pattern=TENANT_PATTERN,
        description="Whose jobs: small letters, digits and hyphens, at most 63.",
        examples=["analytics"],
    ),
]


DEFAULT_TENANT = "default"
