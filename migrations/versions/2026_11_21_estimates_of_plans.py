"""Estimates of plans compared with their runs, and details of plans. Compatible with code of revision 0002."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies this revision."""
    kind = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
    op.add_column("plans", sa.Column("estimates", kind, nullable=True))
    op.add_column("plans", sa.Column("details", kind, nullable=True))
    op.execute("INSERT INTO compatible_revisions (revision) VALUES ('0002')")


def downgrade() -> None:
    """Reverts this revision."""
    op.execute("DELETE FROM compatible_revisions WHERE revision = '0002'")
    op.drop_column("plans", "details")
    op.drop_column("plans", "estimates")
