"""What the commands read of the service's answers. Fields that they do not know, of a newer service, are passed over;
so are states, queues and types of events, which are texts here."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from service.client.terminal import CliError, ExitCode, safe_line
from service.contract.enums import JobStatus
from service.contract.problems import Problem
from service.contract.reports import HotKey, Progress, Quantiles, SkewReport

M = TypeVar("M", bound=BaseModel)

Document = dict[str, Any]
"""An answer as it came."""


def read(kind: type[M], document: object) -> M:
    """The answer as `kind`, whatever else it holds. Raises CliError where it is something else."""
    try:
        return kind.model_validate(document, extra="ignore")
    except ValidationError as error:
        wrong = ", ".join(".".join(map(str, problem["loc"])) for problem in error.errors()[:3])
        raise CliError(
            f"the answer is none that this version of evenkeel understands: {safe_line(wrong) or 'it is no object'}",
            "Is that the address of an Evenkeel service? `evenkeel --version` and GET /healthz tell the versions.",
            code=ExitCode.CRASHED,
        ) from None


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class ResultSize(_Answer):
    """How large a result is."""

    rows: int
    bytes: int = 0


class JobSummary(_Answer):
    """A job as it stands."""

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
    def at_rest(self) -> bool:
        """Whether nothing will change it unless somebody asks, or its next run is due."""
        return self.finished or self.status == JobStatus.STOPPED


class Job(JobSummary):
    """A job as it stands and as it was posted."""

    spec: Mapping[str, Any] = {}

    @property
    def sql(self) -> str:
        """What was posted as SQL, if it was."""
        return str(self.spec.get("sql") or "")


class JobPage(_Answer):
    """Some jobs, newest first."""

    jobs: tuple[JobSummary, ...]
    next_cursor: str = ""


class Event(_Answer):
    """One thing that happened to a job."""

    id: int
    at: datetime
    type: str
    data: Mapping[str, Any]


class EventPage(_Answer):
    """Some events, oldest first."""

    events: tuple[Event, ...]
    last_event_id: int
    complete: bool


class Column(_Answer):
    """A column of a result."""

    name: str
    type: Any = ""


class ResultPage(_Answer):
    """Some rows of a result."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    total_rows: int
    next_cursor: str = ""


class Me(_Answer):
    """Who asks."""

    tenant: str
    scopes: tuple[str, ...]
    key_id: str | None = None


class WorkerJob(_Answer):
    """A job that a worker is at."""

    id: str
    name: str = ""
    status: str = ""


class Worker(_Answer):
    """A worker process."""

    id: str
    host: str | None = None
    version: str = ""
    status: str
    queues: tuple[str, ...] = ()
    concurrency: int | None = None
    slots: int | None = None
    memory_bytes: int | None = None
    fault: str | None = None
    jobs: tuple[WorkerJob, ...] = ()
    other_jobs: int = 0


class WorkerList(_Answer):
    """All workers."""

    workers: tuple[Worker, ...]


class Key(_Answer):
    """An API key without its secret."""

    id: str
    tenant: str
    name: str
    scopes: tuple[str, ...]
    live: bool
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    used_at: datetime | None = None


class KeyPage(_Answer):
    """Some keys, oldest first."""

    keys: tuple[Key, ...]
    next_cursor: str = ""


class IssuedKey(Key):
    """A key that was just made."""

    key: str


class SimulatedSaving(_Answer):
    """What the stages of a run would take on so many slots: as their tasks were, and had they been even."""

    slots: int
    as_is_ms: int
    even_ms: int


class Savings(_Answer):
    """What evenly spread work would save."""

    simulated: SimulatedSaving | None = None


class Comparison(_Answer):
    """A run beside that of another job."""

    job_id: str
    before_ms: int | None = None
    after_ms: int | None = None


class RunSavings(_Answer):
    """Parts of the metrics that older services do not tell."""

    savings: Savings = Savings()
    comparison: Comparison | None = None


class StageFigures(_Answer):
    """What a stage of a run did."""

    stage_id: int
    tasks: int = 0
    failed_tasks: int = 0
    wall_ms: int = 0
    input_bytes: int = 0
    shuffle_read_bytes: int = 0
    shuffle_write_rows: int = 0
    spilled_bytes: int = 0
    duration_ms: Quantiles | None = None


class EstimateError(_Answer):
    """An estimate that was wrong by more than ten times."""

    quantity: str
    node_id: int | None = None
    node: str | None = None
    rule: str | None = None
    estimated: int
    measured: int
    factor: float


class RunEstimates(_Answer):
    """How good the estimates of the cost model were."""

    summary: str = ""
    wrong: tuple[EstimateError, ...] = ()


class RunMetrics(_Answer):
    """What was measured of a run."""

    planning_ms: int
    execution_ms: int
    result_rows: int | None = None
    stages: tuple[StageFigures, ...]
    estimates: RunEstimates | None = None
    skew: SkewReport


class ProfiledTable(_Answer):
    """Size of a table; what is not known is null."""

    files: int | None = None
    bytes: int | None = None
    rows: int | None = None
    rows_are_exact: bool = False


class ProfiledKey(_Answer):
    """What is known of one key of a table."""

    columns: tuple[str, ...]
    rows: int
    rows_are_exact: bool = False
    sampled_rows: int = 0
    distinct_keys: int
    null_share: float = 0
    hot_keys: tuple[HotKey, ...] = ()
    advice: str = ""


class Profile(_Answer):
    """How the keys of a table are spread."""

    table: ProfiledTable = ProfiledTable()
    keys: tuple[ProfiledKey, ...]
