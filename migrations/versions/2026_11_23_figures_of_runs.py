"""What Spark's operators did, and what choices were estimated to save. Only adds: code of the revision before works
on."""

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
    """Takes it back, and with it these figures."""
    op.execute("DELETE FROM compatible_revisions WHERE revision = '0006'")
    op.drop_column("plans", "figures")
