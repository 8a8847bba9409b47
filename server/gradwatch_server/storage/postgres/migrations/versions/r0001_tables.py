"""The first tables. Text is compared by bytes, so that no change of a collation can break an index.

What is stored as bytes is packed already, and read in parts: PostgreSQL does not compress it.
"""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TABLES = (
    """
    CREATE TABLE cluster (
        only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
        cluster_id text COLLATE "C" NOT NULL,
        partitions integer NOT NULL
    )
    """,
    """
    CREATE TABLE partitions (partition integer PRIMARY KEY, epoch bigint NOT NULL)
    """,
    """
    CREATE TABLE alert_cursor (
        only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
        newest bigint NOT NULL
    );
    INSERT INTO alert_cursor (newest) VALUES (0);
    CREATE TABLE alert_events (
        cursor bigint PRIMARY KEY,
        partition integer NOT NULL,
        alert_id text COLLATE "C" NOT NULL,
        state text COLLATE "C" NOT NULL,
        run text COLLATE "C" NOT NULL,
        body text NOT NULL,
        stored_ns bigint NOT NULL,
        UNIQUE (alert_id, state)
    );
    CREATE INDEX alert_events_of_partition ON alert_events (partition, cursor);
    CREATE INDEX alert_events_of_run ON alert_events (run, cursor)
    """,
    """
    CREATE TABLE saved_state (
        partition integer NOT NULL,
        part text COLLATE "C" NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (partition, part)
    );
    CREATE TABLE saved_runs (
        partition integer NOT NULL,
        run text COLLATE "C" NOT NULL,
        place bigint GENERATED ALWAYS AS IDENTITY,
        body bytea NOT NULL,
        PRIMARY KEY (partition, run)
    );
    CREATE TABLE saved_attempts (
        partition integer NOT NULL,
        run text COLLATE "C" NOT NULL,
        attempt bigint NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (partition, run, attempt)
    );
    CREATE TABLE saved_frames (
        partition integer NOT NULL,
        run text COLLATE "C" NOT NULL,
        attempt bigint NOT NULL,
        chunk bigint NOT NULL,
        steps bytea NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (partition, run, attempt, chunk)
    )
    """,
    """
    CREATE TABLE series (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        partition integer NOT NULL,
        run text COLLATE "C" NOT NULL,
        attempt bigint NOT NULL,
        num_bytes bigint NOT NULL,
        layers bytea NOT NULL,
        UNIQUE (partition, run, attempt)
    );
    CREATE TABLE series_chunks (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        series bigint NOT NULL REFERENCES series ON DELETE CASCADE,
        level integer NOT NULL,
        number bigint NOT NULL,
        epoch bigint NOT NULL,
        first_step bigint NOT NULL,
        last_step bigint NOT NULL,
        entries bigint NOT NULL,
        is_closed boolean NOT NULL,
        upto bigint NOT NULL,
        num_bytes bigint NOT NULL,
        head bytea NOT NULL,
        UNIQUE (series, level, number)
    );
    CREATE INDEX series_chunks_of_steps ON series_chunks (series, level, epoch, last_step);
    CREATE TABLE series_tables (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        chunk bigint NOT NULL REFERENCES series_chunks ON DELETE CASCADE,
        name text COLLATE "C" NOT NULL,
        body bytea NOT NULL,
        UNIQUE (chunk, name)
    )
    """,
    """
    CREATE TABLE runs (
        run text COLLATE "C" PRIMARY KEY,
        partition integer NOT NULL,
        summary text NOT NULL,
        updated_ns bigint NOT NULL
    )
    """,
    """
    CREATE TABLE delivery_targets (
        target text COLLATE "C" PRIMARY KEY,
        cursor bigint NOT NULL,
        sending text,
        failing_since_s double precision,
        succeeded_s double precision,
        num_attempts bigint NOT NULL,
        error text
    );
    CREATE TABLE delivery_entries (
        target text COLLATE "C" NOT NULL,
        alert_id text COLLATE "C" NOT NULL,
        told_in text NOT NULL,
        run text NOT NULL,
        rule text NOT NULL,
        severity text NOT NULL,
        state text NOT NULL,
        cursor bigint NOT NULL,
        is_told boolean NOT NULL,
        is_pending boolean NOT NULL,
        is_muted boolean NOT NULL,
        PRIMARY KEY (target, alert_id)
    );
    CREATE TABLE delivery_groups (
        target text COLLATE "C" NOT NULL,
        told_in text COLLATE "C" NOT NULL,
        since_s double precision NOT NULL,
        sent_s double precision NOT NULL,
        repeated_s double precision NOT NULL,
        PRIMARY KEY (target, told_in)
    )
    """,
)

_PACKED = (
    "saved_state.body",
    "saved_runs.body",
    "saved_attempts.body",
    "saved_frames.steps",
    "saved_frames.body",
    "series_chunks.head",
    "series_tables.body",
)


def upgrade() -> None:
    """Make them."""
    for tables in _TABLES:
        op.execute(tables)
    for packed in _PACKED:
        table, column = packed.split(".")
        op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET STORAGE EXTERNAL")
