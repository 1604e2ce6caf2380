"""Opaque cursors: where a page ended, and of which list. A cursor of another list is refused, not misread.

Looks a job up for the other use cases.

What a queued job waits for.

Jobs as clients see them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
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

_MAX_LENGTH = 512
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**63 - 1


def encode_cursor(position: list[int | str], scope: str) -> str:
    """A cursor that goes on behind `position` in the list that `scope` (its filters as text) describes."""
    text = json.dumps([_digest(scope), *position], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(cursor: str, scope: str, shape: tuple[type, ...]) -> list[int | str]:
    """The position in `cursor`, its parts of the types in `shape`.

    Raises InvalidCursorError when the cursor was made by someone else or for another list.
    """
    try:
        if len(cursor) > _MAX_LENGTH:
            raise ValueError("too long")
        padded = cursor + "=" * (-len(cursor) % 4)
        parts = json.loads(base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError) as error:
        raise InvalidCursorError("The cursor is not one that this service gave. Start without a cursor.") from error
    if not isinstance(parts, list) or [type(part) for part in parts] != [str, *shape]:
        raise InvalidCursorError("The cursor is not one that this service gave. Start without a cursor.")
    if not all(_MIN_INTEGER <= part <= _MAX_INTEGER for part in parts if isinstance(part, int)):
        raise InvalidCursorError("The cursor is not one that this service gave. Start without a cursor.")
    digest, *position = parts
    if digest != _digest(scope):
        raise InvalidCursorError(
            "The cursor belongs to a list with other filters, or to a result that has been replaced. "
            "Keep the filters while paging, or start without a cursor."
        )
    return position


def _digest(scope: str) -> str:
    return hashlib.sha256(scope.encode()).hexdigest()[:16]


_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def is_job_id(text: str) -> bool:
    """Whether a job could have this id."""
    return _ID.fullmatch(text) is not None


def require_job(
    session: Session, tenant: str, job_id: str, *, for_change: bool = False, with_spec: bool = False
) -> JobRow:
    """The tenant's job, locked until the transaction ends where it is read `for_change`.

    `spec` can be read only where it is asked for. Raises JobNotFoundError, also for an id that no job can have.
    """
    row = None
    if is_job_id(job_id):
        row = jobs.find_job(session, tenant=tenant, job_id=job_id, lock=for_change, with_spec=with_spec)
    if row is None:
        raise JobNotFoundError("No job has this id; it may have been deleted.")
    return row


def state_for_change(row: JobRow, now: int) -> JobStatus | None:
    """The state of a job for a request that changes it; None where the job has finished.

    Raises JobStateUnknownError for a state that only a newer version knows: what is allowed in it is not known here.
    """
    if has_finished(row):
        return None
    status = effective_status(row, now)
    if status is None:
        raise JobStateUnknownError(
            f"The job is {row.status}, a state that this version of the service does not know: a newer version stored "
            "it. Send the request again when every process of the service runs that version; GET /v1/jobs/{id} shows "
            "the job until then."
        )
    return status


class WaitingFor(StrEnum):
    """`SLOT`: a worker that listens to its queue is to become free. `WORKER`: none that could run it listens. `TENANT`:
    a job of the same tenant is to end. `RETRY`: its attempt failed, and the pause before the next one is to pass."""

    SLOT = "slot"
    WORKER = "worker"
    TENANT = "tenant"
    RETRY = "retry"


class Waiting(Protocol):
    """Tells what a tenant's job waits for that is queued in `queue`."""

    def waiting_for(self, tenant: str, queue: str) -> WaitingFor: ...


class Listening:
    """Which queues live workers listen to; looked up once, and only where a job waits."""

    def __init__(self, session: Session, settings: Settings, now: int) -> None:
        """`session` must be open as long as questions come; `now` in milliseconds by the database's clock."""
        self._session = session
        self._heard_since = now - worker_silence_ms(settings)
        self._most_running = settings.limits.running_jobs
        self._is_full: dict[tuple[str, str], bool] = {}

    def waiting_for(self, tenant: str, queue: str) -> WaitingFor:
        """What a tenant's job waits for that is queued in `queue`."""
        if queue not in self._queues:
            return WaitingFor.WORKER
        return WaitingFor.TENANT if self._is_tenant_full(tenant, queue) else WaitingFor.SLOT

    def _is_tenant_full(self, tenant: str, queue: str) -> bool:
        if not self._most_running:
            return False
        if (tenant, queue) not in self._is_full:
            self._is_full[tenant, queue] = accounts.is_full(self._session, tenant, queue, self._most_running)
        return self._is_full[tenant, queue]

    @cached_property
    def _queues(self) -> frozenset[str]:
        return queues_listened_to(self._session, self._heard_since)


_REMEMBERED = 2048
_REMEMBERED_CHARACTERS = 16_384
"""Of how many jobs a process keeps the checked specification, and of none that is longer: 64 MB or so at the most."""

QueueText = Annotated[
    str,
    WithJsonSchema(
        {
            "type": "string",
            "examples": ["short"],
            "x-extensible-enum": [queue.value for queue in Queue],
            "description": "Which workers it is offered to: `short`, `long`, or `stream` for continuous jobs.",
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
            "description": "What a QUEUED job waits for: `slot`: workers listen to its queue, and it has its turn when "
            "one of them is free; `worker`: none that can run jobs listens, one has to be started or mended "
            "(`EVENKEEL_WORKER_QUEUES`); `tenant`: workers have as many jobs of its tenant as they may "
            "(`EVENKEEL_LIMITS_RUNNING_JOBS`), and one of them is to end; `retry`: it failed, and `next_run_at` tells "
            "when it is tried again (`limits.failure_retries`). "
            "Null in every other state.",
        }
    ),
]


def timestamp(milliseconds: int) -> datetime:
    """Milliseconds since the epoch as a time in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC)


def _optional_timestamp(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else timestamp(milliseconds)


@dataclass(frozen=True)
class LooksLike:
    """Documents JSON by the model that it is usually read as."""

    model: type[BaseModel]

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(self.model.__pydantic_core_schema__)


class ResultSummary(Frozen):
    """How large the result is."""

    rows: int
    bytes: int = Field(description="Size of its files.")


class JobSummary(Frozen):
    """A job as it stands, without what was posted."""

    id: str = Field(examples=["0b9f6c1e-6a44-4b7e-9d0e-0f6d5a3c2b1a"])
    name: str
    mode: Mode
    status: StatusText
    finished: bool = Field(description="Whether nothing will change any more.")
    version: int = Field(description="Grows with every change.")
    queue: QueueText
    waiting_for: WaitingText | None
    attempts: int = Field(description="How often a worker has started it.")
    submitted_at: datetime
    updated_at: datetime
    started_at: datetime | None = Field(description="When it was first started; a stream, since it was resumed.")
    finished_at: datetime | None
    stop_requested: bool = Field(description="Whether a stream was asked to stop, and has not been resumed since.")
    next_run_at: datetime | None = Field(
        description="When an incremental job at rest runs again by itself, or one that failed is tried again."
    )
    progress: Progress | None = Field(description="How far the running attempt is; null before it runs.")
    error: Problem | None = Field(
        description="Why it ended otherwise than SUCCEEDED, or why a stream rests that failed."
    )
    result: ResultSummary | None = Field(description="Null until SUCCEEDED.")
    request_id: str | None = Field(description="`X-Request-Id` of its submission.")

    @property
    def is_at_rest(self) -> bool:
        """True where nothing will change the job unless somebody asks for it, or its next run is due."""
        return self.finished or self.status == JobStatus.STOPPED

    @classmethod
    def of(cls, row: JobRow, now: int, listening: Waiting) -> Self:
        """The job of `row` as it truly stands at `now` (milliseconds)."""
        # Workers of a newer version may store more.
        return cls.model_validate(_fields(row, now, listening), extra="ignore")


class Job(JobSummary):
    """A job as posted and as it stands."""

    spec: Annotated[dict[str, Any], LooksLike(JobSpec)] = Field(
        description="What was posted, every setting under its canonical name, defaults and inferred columns filled in."
    )

    @classmethod
    def of(cls, row: JobRow, now: int, listening: Waiting) -> Self:
        """The job of `row` as it truly stands at `now` (milliseconds)."""
        return cls.model_validate({**_fields(row, now, listening), "spec": _spec(row.spec)}, extra="ignore")


def _spec(stored: dict[str, Any]) -> dict[str, Any]:
    """In one order on every database; as it was stored where another version stored what this one does not know."""
    text = json.dumps(stored)
    return _shown_again(text) if len(text) <= _REMEMBERED_CHARACTERS else _shown(stored)


@lru_cache(maxsize=_REMEMBERED)
def _shown_again(text: str) -> dict[str, Any]:
    # Whoever polls a job has it shown over and over; to check it costs as much as to read it.
    return _shown(json.loads(text))


def _shown(stored: dict[str, Any]) -> dict[str, Any]:
    try:
        return JobSpec.model_validate(stored).model_dump(mode="json", by_alias=True)
    except ValidationError:
        return stored


def _waiting_for(row: JobRow, listening: Waiting) -> WaitingFor:
    return WaitingFor.RETRY if row.next_run_at is not None else listening.waiting_for(row.tenant, row.queue)


def _fields(row: JobRow, now: int, listening: Waiting) -> Mapping[str, object]:
    status = effective_status(row, now)
    waits = status is JobStatus.QUEUED
    has_result = status is JobStatus.SUCCEEDED and row.result_rows is not None
    return {
        "id": row.id,
        "name": row.name,
        "mode": row.mode,
        "status": row.status if status is None else status.value,
        "finished": has_finished(row),
        "version": row.version,
        "queue": row.queue,
        "waiting_for": _waiting_for(row, listening) if waits else None,
        "attempts": row.fence,
        "submitted_at": timestamp(row.submitted_at),
        "updated_at": timestamp(row.updated_at),
        "started_at": _optional_timestamp(row.started_at),
        "finished_at": _optional_timestamp(row.finished_at),
        "stop_requested": row.stop_requested_at is not None,
        "next_run_at": _optional_timestamp(row.next_run_at),
        # That of an attempt whose lease expired tells nothing of the next one.
        "progress": None if waits else row.progress,
        "error": None if row.error is None else {**row.error, "request_id": row.request_id},
        "result": {"rows": row.result_rows, "bytes": row.result_bytes or 0} if has_result else None,
        "request_id": row.request_id,
    }
