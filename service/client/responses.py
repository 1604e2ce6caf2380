"""The fields of the service's responses that the client and the commands use, as models; `read` validates a response.

Unknown fields are ignored, and states, queues and types of events are text, so that responses of newer services are
accepted. Fields that older services do not send have defaults. Models of `service.contract` are used where they fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from ..contract.enums import JobStatus
from ..contract.problems import Problem
from ..contract.reports import EstimateReport, HotKey, MetricsReport, Progress, SavingsReport, WrongEstimate
from .errors import ServiceFailedError
from .text import safe_line

M = TypeVar("M", bound=BaseModel)

Document = dict[str, Any]
"""A response as parsed JSON."""


def read(kind: type[M], document: object) -> M:
    """Validates a response. Raises ServiceFailedError if it does not have the form of `kind`."""
    try:
        return kind.model_validate(document, extra="ignore")
    except ValidationError as error:
        fields = ", ".join(".".join(map(str, problem["loc"])) for problem in error.errors()[:3])
        raise ServiceFailedError(
            f"the response does not have the expected form: {safe_line(fields) or 'it is not an object'}",
            "Check that the address is that of an Evenkeel service, and compare its version (GET /healthz) with that "
            "of the client.",
        ) from None


def document_of(response: httpx.Response) -> Document:
    """Returns the JSON object of a response. Raises ServiceFailedError if it has none."""
    try:
        document = response.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ServiceFailedError(
            "the response is not a JSON object", "Check that the address (EVENKEEL_URL) is that of an Evenkeel service."
        )
    return document


class _Response(BaseModel):
    model_config = ConfigDict(frozen=True)


class ResultSize(_Response):
    """The size of a result."""

    rows: int
    bytes: int = 0


class JobSummary(_Response):
    """A job's current state."""

    id: str
    name: str = ""
    mode: str = "batch"
    status: str
    finished: bool
    queue: str = ""
    waiting_for: str | None = None
    attempts: int = 0
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    next_run_at: datetime | None = None
    progress: Progress | None = None
    error: Problem | None = None
    result: ResultSize | None = None

    @property
    def is_at_rest(self) -> bool:
        """Whether the job changes only after a request, or when its next run is due."""
        return self.finished or self.status == JobStatus.STOPPED


class Job(JobSummary):
    """A job's current state and its spec."""

    spec: Mapping[str, Any] = {}

    @property
    def sql(self) -> str:
        """The posted SQL; empty for a structured query."""
        return str(self.spec.get("sql") or "")


class JobPage(_Response):
    """A page of jobs, newest first."""

    jobs: tuple[JobSummary, ...]
    next_cursor: str = ""


class Event(_Response):
    """An event of a job."""

    id: int
    at: datetime
    type: str
    data: Mapping[str, Any]


class EventPage(_Response):
    """A page of events, oldest first."""

    events: tuple[Event, ...]
    last_event_id: int
    complete: bool


class Column(_Response):
    """A column of a result."""

    name: str
    type: Any = ""


class ResultPage(_Response):
    """A page of rows of a result."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    total_rows: int
    next_cursor: str = ""


class Me(_Response):
    """The caller's tenant and permissions."""

    tenant: str
    scopes: tuple[str, ...]
    key_id: str | None = None


class Worker(_Response):
    """A worker process."""

    id: str
    status: str
    queues: tuple[str, ...] = ()
    concurrency: int | None = None
    slots: int | None = None
    memory_bytes: int | None = None
    unavailable_reason: str | None = None
    jobs: tuple[Any, ...] = ()
    other_jobs: int = 0


class WorkerList(_Response):
    """All workers."""

    workers: tuple[Worker, ...]


class Key(_Response):
    """An API key without its secret."""

    id: str
    tenant: str
    name: str
    scopes: tuple[str, ...]
    active: bool
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    used_at: datetime | None = None


class KeyPage(_Response):
    """A page of keys, oldest first."""

    keys: tuple[Key, ...]
    next_cursor: str = ""


class EstimateError(WrongEstimate):
    """A wrong estimate; newer services may compare other quantities."""

    quantity: str  # type: ignore[assignment]


class RunEstimates(EstimateReport):
    """The estimates of a run and their errors."""

    wrong: tuple[EstimateError, ...] = ()


class RunMetrics(MetricsReport):
    """The metrics of a run; older services do not send savings."""

    estimates: RunEstimates | None = None
    savings: SavingsReport = SavingsReport(simulated=None, estimated=())


class ProfiledTable(_Response):
    """The size of a table; unknown values are null."""

    files: int | None = None
    bytes: int | None = None
    rows: int | None = None
    rows_are_exact: bool = False


class ProfiledKey(_Response):
    """Statistics of one key of a table."""

    columns: tuple[str, ...]
    rows: int
    rows_are_exact: bool = False
    sampled_rows: int = 0
    distinct_keys: int
    null_share: float = 0
    hot_keys: tuple[HotKey, ...] = ()
    advice: str = ""


class Profile(_Response):
    """Statistics of the keys of a table."""

    table: ProfiledTable = ProfiledTable()
    keys: tuple[ProfiledKey, ...]
