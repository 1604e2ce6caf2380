"""An index with which workers find the tenants that wait. Compatible with code of revision 0007."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies this revision."""
    op.create_index(op.f("ix_jobs_status_tenant_submitted_at"), "jobs", ["status", "tenant", "submitted_at"])
    op.execute("INSERT INTO compatible_revisions (revision) VALUES ('0007')")


def downgrade() -> None:
    """Reverts this revision."""
    op.execute("DELETE FROM compatible_revisions WHERE revision = '0007'")
    op.drop_index(op.f("ix_jobs_status_tenant_submitted_at"), table_name="jobs")
