"""API keys, and an index for limits of tenants. Compatible with code of revision 0005, which authenticates nobody."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies this revision."""
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("scopes", sa.String(64), nullable=False),
        sa.Column("secret_sha256", sa.String(64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(16), nullable=True),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.Column("used_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    op.create_index(op.f("ix_api_keys_created_at_id"), "api_keys", ["created_at", "id"])
    op.create_index(op.f("ix_jobs_tenant_status"), "jobs", ["tenant", "status"])
    op.execute("INSERT INTO compatible_revisions (revision) VALUES ('0005')")


def downgrade() -> None:
    """Reverts this revision, and deletes every key."""
    op.execute("DELETE FROM compatible_revisions WHERE revision = '0005'")
    op.drop_index(op.f("ix_jobs_tenant_status"), table_name="jobs")
    op.drop_table("api_keys")
