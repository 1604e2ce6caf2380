"""Jobs as clients see them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, GetJsonSchemaHandler, ValidationError, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from service.jobs.waiting import Waiting, WaitingFor
from service.spec.job import JobSpec
from service.spec.model import Frozen
from service.spec.modes import Mode
from service.spec.problem import Problem
from service.spec.queues import Queue
from service.spec.reports import Progress
from service.spec.status import JobStatus, StatusText
from service.store.jobs import effective_status, has_finished
from service.store.tables import JobRow

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
