"""The alert events. Text is compared by bytes: no change of a collation can break an index."""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TABLE = """
    CREATE TABLE alert_events (
        cursor bigint PRIMARY KEY,
        alert_id text COLLATE "C" NOT NULL,
        state text COLLATE "C" NOT NULL,
        run text COLLATE "C" NOT NULL,
        body text NOT NULL,
        stored_ns bigint NOT NULL,
        UNIQUE (alert_id, state)
    )
"""

_INDEX = "CREATE INDEX alert_events_of_run ON alert_events (run, cursor)"


def upgrade() -> None:
    """Make the table and its index."""
    op.execute(_TABLE)
    op.execute(_INDEX)
