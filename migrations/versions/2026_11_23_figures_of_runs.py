"""Figures of Spark's operators, and estimated savings. Compatible with code of revision 0006."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies this revision."""
    kind = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
    op.add_column("plans", sa.Column("figures", kind, nullable=True))
    op.execute("INSERT INTO compatible_revisions (revision) VALUES ('0006')")


def downgrade() -> None:
    """Reverts this revision, and deletes these figures."""
    op.execute("DELETE FROM compatible_revisions WHERE revision = '0006'")
    op.drop_column("plans", "figures")
