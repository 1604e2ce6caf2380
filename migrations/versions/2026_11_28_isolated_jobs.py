"""Which jobs run in a Spark driver of their own. Compatible with code of revision 0008."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies this revision."""
    op.add_column("jobs", sa.Column("isolated", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.execute("INSERT INTO compatible_revisions (revision) VALUES ('0008')")


def downgrade() -> None:
    """Reverts this revision. Jobs that wait until another upgrade then share a driver."""
    op.execute("DELETE FROM compatible_revisions WHERE revision = '0008'")
    op.drop_column("jobs", "isolated")
