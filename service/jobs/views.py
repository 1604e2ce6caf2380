"""Jobs as the API returns them, lookup of a job for other use cases, and pagination cursors.

A cursor is opaque: it contains the position where a page ended and a hash of its list, so that a cursor of another list
is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Annotated, Any, Protocol, Self

from pydantic import BaseModel, Field, GetJsonSchemaHandler, ValidationError, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from sqlalchemy.orm import Session

from service.config.settings import Settings
from service.contract.enums import JobStatus, Mode, Queue, StatusText
from service.contract.errors import InvalidCursorError, JobNotFoundError, JobStateUnknownError
from service.contract.job import JobSpec
from service.contract.model import Frozen
from service.contract.problems import Problem
from service.contract.reports import Progress
from service.jobs.readiness import worker_silence_ms
from service.store import accounts, jobs
from service.store.jobs import effective_status, has_finished
from service.store.tables import JobRow
from service.store.workers import queues_listened_to

_MAX_CURSOR_LENGTH = 512
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**63 - 1
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_MAX_ID_SHOWN = 100
_CACHED_SPECS = 2048
_MAX_CACHED_CHARACTERS = 16_384
"""A process caches the validated specs of this many jobs, except longer ones: about 64 MB at most."""


def encode_cursor(position: list[int | str], scope: str) -> str:
    """Returns a cursor that continues after `position` in the list that `scope` (its filters as text) describes."""
    text = json.dumps([_digest(scope), *position], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(cursor: str, scope: str, shape: tuple[type, ...]) -> list[int | str]:
    """Returns the position in `cursor`; its parts have the types in `shape`.

    Raises InvalidCursorError if this service did not create the cursor, or created it for another list.
    """
    try:
        if len(cursor) > _MAX_CURSOR_LENGTH:
            raise ValueError("too long")
        padded = cursor + "=" * (-len(cursor) % 4)
        parts = json.loads(base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError) as error:
        raise InvalidCursorError("The cursor is invalid. Start without a cursor.") from error
    if not isinstance(parts, list) or [type(part) for part in parts] != [str, *shape]:
        raise InvalidCursorError("The cursor is invalid. Start without a cursor.")
    if not all(_MIN_INTEGER <= part <= _MAX_INTEGER for part in parts if isinstance(part, int)):
        raise InvalidCursorError("The cursor is invalid. Start without a cursor.")
    digest, *position = parts
    if digest != _digest(scope):
        raise InvalidCursorError(
            "The cursor belongs to a list with other filters, or to a result that has been replaced. "
            "Use the same filters for all pages, or start without a cursor."
        )
    return position


def _digest(scope: str) -> str:
    return hashlib.sha256(scope.encode()).hexdigest()[:16]


def is_job_id(text: str) -> bool:
    """Whether the text has the form of a job id."""
    return _ID.fullmatch(text) is not None


def require_job(
    session: Session, tenant: str, job_id: str, *, for_change: bool = False, with_spec: bool = False
) -> JobRow:
    """Returns the tenant's job; `for_change` locks it until the transaction ends.

    `spec` is loaded only if `with_spec`. Raises JobNotFoundError, also for an invalid id.
    """
    row = None
    if is_job_id(job_id):
        row = jobs.find_job(session, tenant=tenant, job_id=job_id, lock=for_change, with_spec=with_spec)
    if row is None:
        raise no_job(job_id)
    return row


def no_job(job_id: str) -> JobNotFoundError:
    """Returns the error for an id that no job of the tenant has."""
    return JobNotFoundError(f"No job has the id '{job_id[:_MAX_ID_SHOWN]}'; it may have been deleted.")


def state_for_change(row: JobRow, now: int) -> JobStatus | None:
    """Returns the job's state for a request that changes it; None if the job has finished.

    Raises JobStateUnknownError for a state of a newer version, because its allowed transitions are unknown here.
    """
    if has_finished(row):
        return None
    status = effective_status(row, now)
    if status is None:
        raise JobStateUnknownError(
            f"The job is {row.status}, a state of a newer version that this version of the service does not support. "
            "Send the request again when every process of the service runs that version. GET /v1/jobs/{id} returns the "
            "job until then."
        )
    return status


class WaitingFor(StrEnum):
    """What a queued job waits for. `SLOT`: a free worker among those that listen to its queue. `WORKER`: a worker that
    can run jobs and listens to its queue. `TENANT`: the end of another job of its tenant. `RETRY`: the delay before the
    next attempt, after a failed one.
    """

    SLOT = "slot"
    WORKER = "worker"
    TENANT = "tenant"
    RETRY = "retry"


class Waiting(Protocol):
    """Finds out what a queued job waits for."""

    def waiting_for(self, tenant: str, queue: str) -> WaitingFor:
        """Returns what a job of the tenant in the queue waits for."""
        ...


class QueueListeners:
    """Queries which queues live workers listen to, once, and only if a job is queued."""

    def __init__(
        self,
        session: Session | None,
        settings: Settings,
        now: int,
        queues: Callable[[int], frozenset[str]] | None = None,
    ) -> None:
        """`session` must stay open while the object is used; `now` is in milliseconds by the database's clock.

        `queues` does the same as `queues_listened_to` of the session, which is used by default. With `queues`, and
        without a limit of running jobs, no session is needed.
        """
        self._session = session
        self._queues_since = queues
        self._heartbeat_since = now - worker_silence_ms(settings)
        self._running_limit = settings.limits.running_jobs
        self._is_full: dict[tuple[str, str], bool] = {}

    def waiting_for(self, tenant: str, queue: str) -> WaitingFor:
        """Returns what a job of the tenant in the queue waits for."""
        if queue not in self._queues:
            return WaitingFor.WORKER
        return WaitingFor.TENANT if self._is_tenant_full(tenant, queue) else WaitingFor.SLOT

    def _is_tenant_full(self, tenant: str, queue: str) -> bool:
        if not self._running_limit:
            return False
        if (tenant, queue) not in self._is_full:
            self._is_full[tenant, queue] = accounts.is_full(self._required_session, tenant, queue, self._running_limit)
        return self._is_full[tenant, queue]

    @cached_property
    def _queues(self) -> frozenset[str]:
        if self._queues_since is not None:
            return self._queues_since(self._heartbeat_since)
        return queues_listened_to(self._required_session, self._heartbeat_since)

    @property
    def _required_session(self) -> Session:
        if self._session is None:
            raise TypeError("this needs a session")
        return self._session


QueueText = Annotated[
    str,
    WithJsonSchema(
        {
            "type": "string",
            "examples": ["short"],
            "x-extensible-enum": [queue.value for queue in Queue],
            "description": "The queue in which it waits: `short`, `long`, or `stream` for continuous jobs.",
        }
    ),
]

WaitingText = Annotated[
    str,
    WithJsonSchema(
        {
            "type": "string",
            "examples": ["slot"],
            "x-extensible-enum": [reason.value for reason in WaitingFor],
            "description": "What a QUEUED job waits for. `slot`: a free worker. "
            "`worker`: no usable worker listens to its queue; start or repair one (`EVENKEEL_WORKER_QUEUES`). "
            "`tenant`: the end of another job, since its tenant is at the limit of running jobs "
            "(`EVENKEEL_LIMITS_RUNNING_JOBS`). `retry`: it failed and is retried at `next_run_at` "
            "(`limits.failure_retries`). Null in every other state.",
        }
    ),
]


def timestamp(milliseconds: int) -> datetime:
    """Converts milliseconds since the epoch to a time in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC)


def _optional_timestamp(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else timestamp(milliseconds)


@dataclass(frozen=True)
class DocumentedAs:
    """Documents a JSON field with the schema of a model that it usually conforms to."""

    model: type[BaseModel]

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(self.model.__pydantic_core_schema__)


class ResultSummary(Frozen):
    """The size of a result."""

    rows: int
    bytes: int = Field(description="Total size of the files.")


class JobSummary(Frozen):
    """A job's current state, without its spec."""

    id: str = Field(examples=["0b9f6c1e-6a44-4b7e-9d0e-0f6d5a3c2b1a"])
    name: str
    mode: Mode
    status: StatusText
    finished: bool = Field(description="True if the job will not change any more.")
    version: int = Field(description="Increases with every change.")
    queue: QueueText
    waiting_for: WaitingText | None
    attempts: int = Field(description="Number of times that a worker has started it.")
    submitted_at: datetime
    updated_at: datetime
    started_at: datetime | None = Field(
        description="When it first started; for a streaming job, since it was last resumed."
    )
    finished_at: datetime | None
    stop_requested: bool = Field(
        description="True if a stop of the streaming job was requested and it has not been resumed since."
    )
    next_run_at: datetime | None = Field(
        description="When a STOPPED incremental job runs next, or a failed job is retried."
    )
    progress: Progress | None = Field(description="Progress of the running attempt; null if none is running yet.")
    error: Problem | None = Field(
        description="Why it ended in another state than SUCCEEDED, or why a failed streaming job is STOPPED."
    )
    result: ResultSummary | None = Field(description="Null unless the job has SUCCEEDED.")
    request_id: str | None = Field(description="`X-Request-Id` of its submission.")

    @property
    def is_at_rest(self) -> bool:
        """Whether the job changes only after a request, or when its next run is due."""
        return self.finished or self.status == JobStatus.STOPPED

    @cached_property
    def body(self) -> bytes:
        """The JSON of the job, serialised once."""
        return self.model_dump_json(by_alias=True).encode()

    @classmethod
    def of(cls, row: SummaryColumns, now: int, listening: Waiting) -> Self:
        """Returns the job of `row` in its effective state at `now` (milliseconds)."""
        # Workers of a newer version may store more fields.
        return cls.model_validate(_fields(row, now, listening), extra="ignore")


class Job(JobSummary):
    """A job's spec and current state."""

    spec: Annotated[dict[str, Any], DocumentedAs(JobSpec)] = Field(
        description="The posted job, with canonical setting names, defaults and inferred columns filled in."
    )

    @classmethod
    def of(cls, row: JobColumns, now: int, listening: Waiting, spec: dict[str, Any] | None = None) -> Self:  # type: ignore[override]
        """Returns the job of `row` in its effective state at `now` (milliseconds). `spec` is the dumped `JobSpec`; it
        is read from the row if None.
        """
        fields = {**_fields(row, now, listening), "spec": _spec(row.spec) if spec is None else spec}
        return cls.model_validate(fields, extra="ignore")

    @cached_property
    def tag(self) -> str:
        """The entity tag of `body`."""
        return f'"{self.version}-{hashlib.sha256(self.body).hexdigest()[:16]}"'


def _spec(stored: dict[str, Any]) -> dict[str, Any]:
    """Returns the spec in the same order on every database; unchanged if it has fields that this version does not
    support.
    """
    text = json.dumps(stored)
    return _format_cached(text) if len(text) <= _MAX_CACHED_CHARACTERS else _format_spec(stored)


@lru_cache(maxsize=_CACHED_SPECS)
def _format_cached(text: str) -> dict[str, Any]:
    # Clients poll the same job repeatedly, and validating the spec costs as much as reading it.
    return _format_spec(json.loads(text))


def _format_spec(stored: dict[str, Any]) -> dict[str, Any]:
    try:
        return JobSpec.model_validate(stored).model_dump(mode="json", by_alias=True)
    except ValidationError:
        return stored


class StateColumns(Protocol):
    """The columns of a job that decide, with time and workers, which state clients see."""

    tenant: str
    queue: str
    status: str
    lease_expires_at: int | None
    next_run_at: int | None


class SummaryColumns(StateColumns, Protocol):
    """The columns of a job of which a `JobSummary` consists."""

    id: str
    name: str
    mode: str
    version: int
    fence: int
    submitted_at: int
    updated_at: int
    started_at: int | None
    finished_at: int | None
    stop_requested_at: int | None
    progress: dict[str, Any] | None
    error: dict[str, Any] | None
    result_rows: int | None
    result_bytes: int | None
    request_id: str | None


class JobColumns(SummaryColumns, Protocol):
    """The columns of a job of which a `Job` consists."""

    spec: dict[str, Any]


def shown_state(row: StateColumns, now: int, listening: Waiting) -> tuple[str, str | None]:
    """Returns the effective status of a job at `now` (milliseconds), and what it waits for if it is QUEUED."""
    status = effective_status(row, now)
    waits = status is JobStatus.QUEUED
    return row.status if status is None else status.value, _waiting_for(row, listening) if waits else None


def _waiting_for(row: StateColumns, listening: Waiting) -> WaitingFor:
    return WaitingFor.RETRY if row.next_run_at is not None else listening.waiting_for(row.tenant, row.queue)


def _fields(row: SummaryColumns, now: int, listening: Waiting) -> Mapping[str, object]:
    status, waiting_for = shown_state(row, now, listening)
    waits = status == JobStatus.QUEUED
    has_result = status == JobStatus.SUCCEEDED and row.result_rows is not None
    return {
        "id": row.id,
        "name": row.name,
        "mode": row.mode,
        "status": status,
        "finished": has_finished(row),
        "version": row.version,
        "queue": row.queue,
        "waiting_for": waiting_for,
        "attempts": row.fence,
        "submitted_at": timestamp(row.submitted_at),
        "updated_at": timestamp(row.updated_at),
        "started_at": _optional_timestamp(row.started_at),
        "finished_at": _optional_timestamp(row.finished_at),
        "stop_requested": row.stop_requested_at is not None,
        "next_run_at": _optional_timestamp(row.next_run_at),
        # The progress of an attempt whose lease expired says nothing about the next attempt.
        "progress": None if waits else row.progress,
        "error": None if row.error is None else {**row.error, "request_id": row.request_id},
        "result": {"rows": row.result_rows, "bytes": row.result_bytes or 0} if has_result else None,
        "request_id": row.request_id,
    }
