"""Modes, queues and states of jobs, with the table of state changes (`MOVES`); states of workers; scopes of API keys.

    QUEUED -> PLANNING -> RUNNING -> SUCCEEDED | FAILED | CANCELLED | TIMED_OUT | CRASHED
    QUEUED -> CANCELLED;  PLANNING | RUNNING -> CANCELLING -> CANCELLED (or the final state that was reached first)
    PLANNING | RUNNING -> QUEUED                       (the attempt lost its lease; the job is run again)
    PLANNING | RUNNING -> STOPPING -> STOPPED -> QUEUED (resumed) | CANCELLED         (streaming jobs)
    QUEUED | PLANNING | RUNNING -> STOPPED             (no worker runs the stream, it has caught up, or it failed)

A conditional UPDATE on the current state applies a move; a move that is not in the table is a bug. While two versions
of the service run, a job may be in a state that only the newer one defines: the older one does not change such a job.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, WithJsonSchema


class Mode(StrEnum):
    """How often a job reads its tables."""

    BATCH = "batch"
    """Once, as they are."""
    INCREMENTAL = "incremental"
    """In each run the rows that are new since the last one. The job is then STOPPED until it is resumed."""
    CONTINUOUS = "continuous"
    """Until it is stopped."""

    @property
    def is_streaming(self) -> bool:
        """Whether the job keeps state from one mini-batch to the next."""
        return self is not Mode.BATCH


class OutputMode(StrEnum):
    """What a mini-batch emits: every group that it changed (`update`), or final rows only (`append`)."""

    UPDATE = "update"
    APPEND = "append"


class Queue(StrEnum):
    """The queue in which a job waits: `short` and `long` batch or incremental jobs, and `stream` for continuous jobs.

    A worker listens to one or more queues.
    """

    SHORT = "short"
    LONG = "long"
    STREAM = "stream"


EXPECTED_QUEUES = (Queue.SHORT, Queue.LONG)
"""Queues that need a worker in every installation; an installation without continuous jobs needs none for `stream`."""


class QueueChoice(StrEnum):
    """The queue that a job requests; `auto` chooses it by the size of the job's tables."""

    AUTO = "auto"
    SHORT = "short"
    LONG = "long"

    def resolve(self, table_bytes: int, long_from_bytes: int) -> Queue:
        """Returns the queue of a job whose tables have `table_bytes` in total.

        `auto` is `long` if that is at least `long_from_bytes`, otherwise `short`.
        """
        if self is QueueChoice.AUTO:
            return Queue.LONG if table_bytes >= long_from_bytes else Queue.SHORT
        return Queue(self.value)


class JobStatus(StrEnum):
    """The state of a job."""

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
        """Whether the state is final."""
        return self in TERMINAL


_NAMES = [status.value for status in JobStatus]

StatusText = Annotated[
    str,
    WithJsonSchema(
        {
            "type": "string",
            "examples": ["RUNNING"],
            "x-extensible-enum": _NAMES,
            "description": f"One of {', '.join(_NAMES)}. Later versions may add states: use `finished` to decide when "
            "to stop waiting. A STOPPED job has not finished: it may be resumed. During an upgrade, the "
            "older version refuses to change a job whose state it does not know "
            "(`job_state_unknown`).",
        }
    ),
]
"""The name of a state as clients see it; a state that only a newer version defines is shown as it is stored."""


class AttemptStatus(StrEnum):
    """The state of one attempt to run a job.

    `CRASHED`: the lease or the JVM was lost; the query itself did not fail. `STOPPED`: a stream stopped, either on
    request, or because there was nothing left to read, or after a failure from which it can be resumed.
    """

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
_STOPS: frozenset[JobStatus] = frozenset({JobStatus.STOPPING, JobStatus.STOPPED})

MOVES: dict[JobStatus, frozenset[JobStatus]] = {
    JobStatus.QUEUED: frozenset({JobStatus.PLANNING, JobStatus.CANCELLED, JobStatus.STOPPED}),
    JobStatus.PLANNING: frozenset({JobStatus.RUNNING, JobStatus.CANCELLING, JobStatus.QUEUED}) | _STOPS | TERMINAL,
    JobStatus.RUNNING: frozenset({JobStatus.CANCELLING, JobStatus.QUEUED}) | _STOPS | TERMINAL,
    JobStatus.CANCELLING: TERMINAL,
    JobStatus.STOPPING: frozenset({JobStatus.STOPPED, JobStatus.CANCELLING}) | TERMINAL - {JobStatus.SUCCEEDED},
    JobStatus.STOPPED: frozenset({JobStatus.QUEUED, JobStatus.CANCELLED}),
    **{terminal: frozenset[JobStatus]() for terminal in TERMINAL},
}


def known_status(name: str) -> JobStatus | None:
    """Returns the state with this stored name; None for a state that only a newer version defines."""
    return _BY_NAME.get(name)


def sources_of(target: JobStatus) -> frozenset[JobStatus]:
    """Returns the states from which a job may move to `target`: the condition of the UPDATE that moves it."""
    return frozenset(source for source, targets in MOVES.items() if target in targets)


class SparkState(StrEnum):
    """Whether a worker's Spark driver can run a job now."""

    STARTING = "starting"
    READY = "ready"
    UNAVAILABLE = "unavailable"


class WorkerStatus(StrEnum):
    """The state of a worker, as clients and operators see it. SILENT: its heartbeat has stopped."""

    STARTING = "STARTING"
    READY = "READY"
    DRAINING = "DRAINING"
    UNAVAILABLE = "UNAVAILABLE"
    SILENT = "SILENT"


class KeyScope(StrEnum):
    """What an API key permits. A key has one or more scopes; no scope includes another."""

    READ = "read"
    """Read jobs, results, events, reports, streams and workers."""
    SUBMIT = "submit"
    """Submit, explain, cancel, stop, resume, change and delete jobs; declare, fill and delete streams."""
    METRICS = "metrics"
    """Read `/metrics`, as Prometheus does."""
    ADMIN = "admin"
    """Manage the keys of every tenant, and workers: for the service operator. Does not show other tenants' jobs."""


ALL_SCOPES = frozenset(KeyScope)


DEFAULT_TENANT = "default"
"""The tenant of unauthenticated callers, and of API keys that are created without a tenant."""

TENANT_PATTERN = r"^[a-z0-9][a-z0-9-]{0,62}$"
"""Directories are named after tenants, so the pattern allows no characters with a meaning in paths."""

TenantName = Annotated[
    str,
    Field(
        pattern=TENANT_PATTERN,
        description="Name of the tenant: lowercase letters, digits and hyphens, at most 63 characters.",
        examples=["analytics"],
    ),
]
