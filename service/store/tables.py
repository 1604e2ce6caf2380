"""The tables. Times are whole milliseconds since the epoch, by the database's clock.

Rows have the tenant to which they belong. `jobs.version` grows with every change that a client can see: it is the ETag,
and waiting requests watch it. `jobs.fence` grows with every claim: a writer with an older fence changes nothing.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from service.contract.enums import Mode, Queue

Json = JSON().with_variant(JSONB(), "postgresql")
RowId = BigInteger().with_variant(Integer(), "sqlite")

ID_LENGTH = 36
TENANT_LENGTH = 64
STREAM_LENGTH = 100
KEY_ID_LENGTH = 16


class Base(DeclarativeBase):
    """Names every constraint, so that migrations find them on both databases."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {dict[str, Any]: Json}  # noqa: RUF012 - the form that SQLAlchemy reads


class JobRow(Base):
    """A job as submitted, and its state."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_tenant_submitted_at_id", "tenant", "submitted_at", "id"),
        Index("ix_jobs_status_lease_expires_at", "status", "lease_expires_at"),
        Index("ix_jobs_status_submitted_at", "status", "submitted_at"),
        Index("ix_jobs_status_next_run_at", "status", "next_run_at"),
        Index("ix_jobs_finished_at", "finished_at"),
        Index("ix_jobs_tenant_status", "tenant", "status"),
        # Finds the tenants that wait, and the oldest job of each.
        Index("ix_jobs_status_tenant_submitted_at", "status", "tenant", "submitted_at"),
        # Contains all columns that a scrape counts.
        Index("ix_jobs_kind_status_queue_submitted_at", "kind", "status", "queue", "submitted_at"),
    )

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(TENANT_LENGTH))
    kind: Mapped[str] = mapped_column(String(16))
    """`run`, or `explain`: planned but not run, not listed, and removed once answered."""
    name: Mapped[str] = mapped_column(String(200))
    spec: Mapped[dict[str, Any]]
    """The accepted `JobSpec` as JSON, with canonical names of settings."""
    status: Mapped[str] = mapped_column(String(16))
    version: Mapped[int] = mapped_column(BigInteger, default=1)
    request_id: Mapped[str | None] = mapped_column(String(64))
    submitted_at: Mapped[int] = mapped_column(BigInteger)
    updated_at: Mapped[int] = mapped_column(BigInteger)
    started_at: Mapped[int | None] = mapped_column(BigInteger)
    """First claim since the submission or the last resume. The time limit counts from here."""
    finished_at: Mapped[int | None] = mapped_column(BigInteger)
    cancel_requested_at: Mapped[int | None] = mapped_column(BigInteger)
    mode: Mapped[str] = mapped_column(String(16), server_default=Mode.BATCH.value)
    """A `Mode`."""
    stop_requested_at: Mapped[int | None] = mapped_column(BigInteger)
    next_run_at: Mapped[int | None] = mapped_column(BigInteger)
    """When a STOPPED job is queued again by itself, or a job that is QUEUED after a failure can be claimed."""
    announced_at: Mapped[int] = mapped_column("rung_at", BigInteger, key="announced_at")
    """When the job was last announced to workers."""
    fence: Mapped[int] = mapped_column(Integer, default=0)
    """Number of claims; the fencing token of the newest attempt."""
    lease_owner: Mapped[str | None] = mapped_column(String(128))
    lease_expires_at: Mapped[int | None] = mapped_column(BigInteger)
    max_attempts: Mapped[int] = mapped_column(Integer)
    timeout_ms: Mapped[int] = mapped_column(BigInteger)
    queue: Mapped[str] = mapped_column(String(16), server_default=Queue.SHORT.value)
    """A `Queue`: the workers that listen to it can run the job."""
    spec_version: Mapped[int] = mapped_column(Integer, server_default="1")
    """Format of `spec`. A worker claims only formats that it knows: see `service.contract.job.SPEC_VERSION`."""
    isolated: Mapped[bool] = mapped_column(Boolean, server_default=false())
    """Whether a worker runs the job in a Spark driver of its own."""
    progress: Mapped[dict[str, Any] | None] = mapped_column(Json)
    error: Mapped[dict[str, Any] | None] = mapped_column(Json)
    """A `Problem`, for a job that has ended other than SUCCEEDED."""
    result_path: Mapped[str | None] = mapped_column(Text)
    """Directory of the published attempt, relative to the results directory."""
    result_rows: Mapped[int | None] = mapped_column(BigInteger)
    result_bytes: Mapped[int | None] = mapped_column(BigInteger)


class AttemptRow(Base):
    """One try of a worker to run a job. `fence` numbers the attempts from 1."""

    __tablename__ = "attempts"
    __table_args__ = (UniqueConstraint("job_id", "fence"),)

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    tenant: Mapped[str] = mapped_column(String(TENANT_LENGTH))
    fence: Mapped[int] = mapped_column(Integer)
    status: Mapped[str] = mapped_column(String(16))
    worker: Mapped[str] = mapped_column(String(128))
    started_at: Mapped[int] = mapped_column(BigInteger)
    finished_at: Mapped[int | None] = mapped_column(BigInteger)
    error: Mapped[dict[str, Any] | None] = mapped_column(Json)


class JobEventRow(Base):
    """An event of a job, in the order of `id`; the source of `/events`."""

    __tablename__ = "job_events"
    __table_args__ = (Index("ix_job_events_job_id_id", "job_id", "id"),)

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    tenant: Mapped[str] = mapped_column(String(TENANT_LENGTH))
    at: Mapped[int] = mapped_column(BigInteger)
    type: Mapped[str] = mapped_column(String(32))
    """`status`, `progress`, `attempt`, `plan`."""
    data: Mapped[dict[str, Any]]


class PlanRow(Base):
    """The plan of one attempt, and the reports about its run."""

    __tablename__ = "plans"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    fence: Mapped[int] = mapped_column(Integer, primary_key=True)
    tenant: Mapped[str] = mapped_column(String(TENANT_LENGTH))
    report: Mapped[dict[str, Any]]
    """A `PlanReport` in the format of version 1; `details` has the other fields."""
    details: Mapped[dict[str, Any] | None] = mapped_column(Json)
    """The fields of a `PlanReport` that version 1 does not know: see `service.store.publication`."""
    planning_ms: Mapped[int] = mapped_column(BigInteger)
    execution_ms: Mapped[int | None] = mapped_column(BigInteger)
    skew: Mapped[dict[str, Any] | None] = mapped_column(Json)
    """A `SkewReport`, once the attempt has run."""
    estimates: Mapped[dict[str, Any] | None] = mapped_column(Json)
    """An `EstimateReport`, once the attempt has run."""
    figures: Mapped[dict[str, Any] | None] = mapped_column(Json)
    """A `RunFigures`, once the attempt has run."""


class StageMetricsRow(Base):
    """Task quantiles of one Spark stage of one attempt."""

    __tablename__ = "stage_metrics"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    fence: Mapped[int] = mapped_column(Integer, primary_key=True)
    stage_id: Mapped[int] = mapped_column(Integer, primary_key=True)
    stage_attempt: Mapped[int] = mapped_column(Integer, primary_key=True)
    tenant: Mapped[str] = mapped_column(String(TENANT_LENGTH))
    metrics: Mapped[dict[str, Any]]
    """A `StageMetrics`."""


class StreamRow(Base):
    """The state of a streaming job: see `service.store.streaming_state`."""

    __tablename__ = "streams"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(TENANT_LENGTH))
    generation: Mapped[int] = mapped_column(Integer)
    """Number of the state; grows with every start from scratch."""
    layout: Mapped[dict[str, Any] | None] = mapped_column(Json)
    """Schema of this generation's state, once the first attempt has stored it."""
    steady_fence: Mapped[int] = mapped_column(Integer)
    """The newest attempt that made progress. Lost attempts after it count against the job."""
    last_batch: Mapped[int | None] = mapped_column(BigInteger)
    rows_in: Mapped[int] = mapped_column(BigInteger)
    rows_out: Mapped[int] = mapped_column(BigInteger)
    sink_version: Mapped[int | None] = mapped_column(BigInteger)
    metrics: Mapped[dict[str, Any] | None] = mapped_column(Json)
    stopped_because: Mapped[str | None] = mapped_column(String(32))
    updated_at: Mapped[int] = mapped_column(BigInteger)


class StreamBatchRow(Base):
    """A mini-batch of a streaming job; committed once the sink has it."""

    __tablename__ = "stream_batches"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    generation: Mapped[int] = mapped_column(Integer, primary_key=True)
    batch_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    tenant: Mapped[str] = mapped_column(String(TENANT_LENGTH))
    fence: Mapped[int] = mapped_column(Integer)
    begun_at: Mapped[int] = mapped_column(BigInteger)
    committed_at: Mapped[int | None] = mapped_column(BigInteger)
    rows_in: Mapped[int | None] = mapped_column(BigInteger)
    rows_out: Mapped[int | None] = mapped_column(BigInteger)
    elapsed_ms: Mapped[int | None] = mapped_column(BigInteger)
    sink_version: Mapped[int | None] = mapped_column(BigInteger)
    metrics: Mapped[dict[str, Any] | None] = mapped_column(Json)


class OutboxRow(Base):
    """A message for the broker, stored together with the job that it announces, and removed once it is sent."""

    __tablename__ = "outbox"

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), index=True)
    tenant: Mapped[str] = mapped_column(String(TENANT_LENGTH))
    created_at: Mapped[int] = mapped_column(BigInteger)


class IdempotencyKeyRow(Base):
    """An idempotency key of a client, and what it submitted with it."""

    __tablename__ = "idempotency_keys"

    tenant: Mapped[str] = mapped_column(String(TENANT_LENGTH), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    payload_sha256: Mapped[str] = mapped_column(String(64))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), index=True)
    expires_at: Mapped[int] = mapped_column(BigInteger, index=True)


class WorkerRow(Base):
    """A worker process that has sent a heartbeat; belongs to no tenant."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(String(128), primary_key=True)
    started_at: Mapped[int] = mapped_column(BigInteger)
    heartbeat_at: Mapped[int] = mapped_column(BigInteger)
    version: Mapped[str] = mapped_column(String(32))
    host: Mapped[str | None] = mapped_column(String(255))
    pid: Mapped[int | None] = mapped_column(Integer)
    concurrency: Mapped[int | None] = mapped_column(Integer)
    """Number of jobs that it runs at once."""
    queues: Mapped[str | None] = mapped_column(String(64))
    """The queues that it listens to, separated by commas."""
    cluster: Mapped[str | None] = mapped_column(String(255))
    """Spark's master URL."""
    app_id: Mapped[str | None] = mapped_column(String(128))
    """Spark's application id, once Spark has started."""
    spark_state: Mapped[str | None] = mapped_column(String(16))
    """A `SparkState`: whether the worker can run a job now."""
    spark_fault: Mapped[str | None] = mapped_column(Text)
    """Why Spark does not run, as text."""
    slots: Mapped[int | None] = mapped_column(Integer)
    """Number of Spark tasks that run at once."""
    memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Resident memory of the process and its JVM."""
    drain_requested_at: Mapped[int | None] = mapped_column(BigInteger)


class LeaderRow(Base):
    """The leader of a task that one process at a time does, and the end of its term; belongs to no tenant."""

    __tablename__ = "leaders"

    task: Mapped[str] = mapped_column(String(32), primary_key=True)
    owner: Mapped[str] = mapped_column(String(128))
    expires_at: Mapped[int] = mapped_column(BigInteger)


class InputStreamRow(Base):
    """An input stream as declared, and what clients have posted to it."""

    __tablename__ = "input_streams"

    tenant: Mapped[str] = mapped_column(String(TENANT_LENGTH), primary_key=True)
    name: Mapped[str] = mapped_column(String(STREAM_LENGTH), primary_key=True)
    id: Mapped[str] = mapped_column(String(ID_LENGTH))
    """Part of its directory's name. A stream that is declared again after its deletion has another id."""
    columns: Mapped[str] = mapped_column(Text)
    """The schema as DDL, in canonical form."""
    batches: Mapped[int] = mapped_column(BigInteger, default=0)
    """Number of batches, and the sequence number of the newest."""
    rows: Mapped[int] = mapped_column(BigInteger, default=0)
    bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    created_at: Mapped[int] = mapped_column(BigInteger)
    newest_at: Mapped[int | None] = mapped_column(BigInteger)


class InputBatchRow(Base):
    """A batch of posted rows. Once this row is stored, the batch is accepted, even if its file is still hidden."""

    __tablename__ = "input_batches"
    __table_args__ = (
        ForeignKeyConstraint(["tenant", "stream"], ["input_streams.tenant", "input_streams.name"], ondelete="CASCADE"),
        UniqueConstraint("file"),
    )

    tenant: Mapped[str] = mapped_column(String(TENANT_LENGTH), primary_key=True)
    stream: Mapped[str] = mapped_column(String(STREAM_LENGTH), primary_key=True)
    batch_id: Mapped[str] = mapped_column(String(255), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64))
    """Digest of the media type and the body."""
    seq: Mapped[int] = mapped_column(BigInteger)
    """Number of the batch in its stream, from 1, in the order of acceptance."""
    file: Mapped[str] = mapped_column(String(ID_LENGTH))
    """Id of the file while it is hidden. Its visible name consists of `seq` and `sha256`."""
    rows: Mapped[int] = mapped_column(BigInteger)
    bytes: Mapped[int] = mapped_column(BigInteger)
    at: Mapped[int] = mapped_column(BigInteger)


class CompatibleRevisionRow(Base):
    """An older revision whose code works with this schema. A migration that only adds to the schema inserts it."""

    __tablename__ = "compatible_revisions"

    revision: Mapped[str] = mapped_column(String(32), primary_key=True)


class ApiKeyRow(Base):
    """An API key. Only the digest of its secret is stored."""

    __tablename__ = "api_keys"
    __table_args__ = (Index("ix_api_keys_created_at_id", "created_at", "id"),)

    id: Mapped[str] = mapped_column(String(KEY_ID_LENGTH), primary_key=True)
    """Public part of the key."""
    tenant: Mapped[str] = mapped_column(String(TENANT_LENGTH))
    name: Mapped[str] = mapped_column(String(200))
    scopes: Mapped[str] = mapped_column(String(64))
    """`KeyScope`s, separated by commas."""
    secret_sha256: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[int] = mapped_column(BigInteger)
    created_by: Mapped[str | None] = mapped_column(String(KEY_ID_LENGTH))
    """The key that created it; None if the command line did."""
    expires_at: Mapped[int | None] = mapped_column(BigInteger)
    revoked_at: Mapped[int | None] = mapped_column(BigInteger)
    used_at: Mapped[int | None] = mapped_column(BigInteger)
    """When it was last used, to the minute."""


class InstallationRow(Base):
    """The id of the installation: one row, created when it is first needed; belongs to no tenant."""

    __tablename__ = "installation"

    row: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    """Always 1."""
    id: Mapped[str] = mapped_column(String(ID_LENGTH))


def table_of(row: type[Base]) -> Table:
    """Returns the table of a class of rows, for statements without objects, which take half as long."""
    return Base.metadata.tables[row.__tablename__]
