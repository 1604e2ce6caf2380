"""Streaming jobs: mode, stop requests, next runs, and their state. Compatible with code of revision 0003."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies this revision."""
    json = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
    op.add_column("jobs", sa.Column("mode", sa.String(length=16), server_default="batch", nullable=False))
    op.add_column("jobs", sa.Column("stop_requested_at", sa.BigInteger(), nullable=True))
    op.add_column("jobs", sa.Column("next_run_at", sa.BigInteger(), nullable=True))
    op.create_index(op.f("ix_jobs_status_next_run_at"), "jobs", ["status", "next_run_at"])
    op.create_table(
        "streams",
        sa.Column("job_id", sa.String(length=36), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("layout", json, nullable=True),
        sa.Column("steady_fence", sa.Integer(), nullable=False),
        sa.Column("last_batch", sa.BigInteger(), nullable=True),
        sa.Column("rows_in", sa.BigInteger(), nullable=False),
        sa.Column("rows_out", sa.BigInteger(), nullable=False),
        sa.Column("sink_version", sa.BigInteger(), nullable=True),
        sa.Column("metrics", json, nullable=True),
        sa.Column("stopped_because", sa.String(length=32), nullable=True),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_streams_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_streams")),
    )
    op.create_table(
        "stream_batches",
        sa.Column("job_id", sa.String(length=36), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("batch_id", sa.BigInteger(), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("begun_at", sa.BigInteger(), nullable=False),
        sa.Column("committed_at", sa.BigInteger(), nullable=True),
        sa.Column("rows_in", sa.BigInteger(), nullable=True),
        sa.Column("rows_out", sa.BigInteger(), nullable=True),
        sa.Column("elapsed_ms", sa.BigInteger(), nullable=True),
        sa.Column("sink_version", sa.BigInteger(), nullable=True),
        sa.Column("metrics", json, nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_stream_batches_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "generation", "batch_id", name=op.f("pk_stream_batches")),
    )
    op.execute("INSERT INTO compatible_revisions (revision) VALUES ('0003')")


def downgrade() -> None:
    """Reverts this revision."""
    op.execute("DELETE FROM compatible_revisions WHERE revision = '0003'")
    op.drop_table("stream_batches")
    op.drop_table("streams")
    op.drop_index(op.f("ix_jobs_status_next_run_at"), table_name="jobs")
    op.drop_column("jobs", "next_run_at")
    op.drop_column("jobs", "stop_requested_at")
    op.drop_column("jobs", "mode")
