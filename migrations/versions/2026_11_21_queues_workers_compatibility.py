"""Queues, reports of workers, compatible revisions, the id of the installation. Compatible with older code."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_WORKER_COLUMNS: dict[str, sa.types.TypeEngine[Any]] = {
    "host": sa.String(length=255),
    "pid": sa.Integer(),
    "concurrency": sa.Integer(),
    "queues": sa.String(length=64),
    "cluster": sa.String(length=255),
    "app_id": sa.String(length=128),
    "spark_state": sa.String(length=16),
    "spark_fault": sa.Text(),
    "slots": sa.Integer(),
    "memory_bytes": sa.BigInteger(),
    "drain_requested_at": sa.BigInteger(),
}


def upgrade() -> None:
    """Applies this revision."""
    op.create_table(
        "compatible_revisions",
        sa.Column("revision", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("revision", name=op.f("pk_compatible_revisions")),
    )
    op.create_table(
        "installation",
        sa.Column("row", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.PrimaryKeyConstraint("row", name=op.f("pk_installation")),
    )
    op.add_column("jobs", sa.Column("queue", sa.String(length=16), server_default="short", nullable=False))
    op.add_column("jobs", sa.Column("spec_version", sa.Integer(), server_default="1", nullable=False))
    op.create_index(op.f("ix_jobs_finished_at"), "jobs", ["finished_at"])
    op.create_index(op.f("ix_jobs_kind_status_queue_submitted_at"), "jobs", ["kind", "status", "queue", "submitted_at"])
    op.create_index(op.f("ix_jobs_status_submitted_at"), "jobs", ["status", "submitted_at"])
    for name, kind in _WORKER_COLUMNS.items():
        op.add_column("workers", sa.Column(name, kind, nullable=True))


def downgrade() -> None:
    """Reverts this revision."""
    for name in reversed(_WORKER_COLUMNS):
        op.drop_column("workers", name)
    op.drop_index(op.f("ix_jobs_status_submitted_at"), table_name="jobs")
    op.drop_index(op.f("ix_jobs_kind_status_queue_submitted_at"), table_name="jobs")
    op.drop_index(op.f("ix_jobs_finished_at"), table_name="jobs")
    op.drop_column("jobs", "spec_version")
    op.drop_column("jobs", "queue")
    op.drop_table("installation")
    op.drop_table("compatible_revisions")
