"""Input streams and their batches. Compatible with code of revision 0004."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies this revision."""
    op.create_table(
        "input_streams",
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("columns", sa.Text(), nullable=False),
        sa.Column("batches", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("newest_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "name", name=op.f("pk_input_streams")),
    )
    op.create_table(
        "input_batches",
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("stream", sa.String(100), nullable=False),
        sa.Column("batch_id", sa.String(255), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("file", sa.String(36), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "stream", "batch_id", name=op.f("pk_input_batches")),
        sa.ForeignKeyConstraint(
            ["tenant", "stream"],
            ["input_streams.tenant", "input_streams.name"],
            name=op.f("fk_input_batches_tenant_input_streams"),
            ondelete="CASCADE",
        ),
        sa.UniqueConstraint("file", name=op.f("uq_input_batches_file")),
    )
    op.execute("INSERT INTO compatible_revisions (revision) VALUES ('0004')")


def downgrade() -> None:
    """Reverts this revision. The files of posted rows stay."""
    op.execute("DELETE FROM compatible_revisions WHERE revision = '0004'")
    op.drop_table("input_batches")
    op.drop_table("input_streams")
