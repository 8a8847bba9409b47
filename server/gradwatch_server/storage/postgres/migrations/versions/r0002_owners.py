"""Who took a partition, beside the epoch; and the published runs of a partition by an index."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add them; nodes of before, which know nothing of owners, go on."""
    op.execute("ALTER TABLE partitions ADD COLUMN owner text NOT NULL DEFAULT ''")
    op.execute("CREATE INDEX runs_of_partition ON runs (partition)")
