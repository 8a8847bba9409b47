"""The tables of a data directory, and how those of an older version become those of this one."""

from __future__ import annotations

from typing import Final

MIGRATIONS: Final = (
    """
    CREATE TABLE IF NOT EXISTS log (
        log_offset  INTEGER PRIMARY KEY,
        received_ns INTEGER NOT NULL,
        kind        INTEGER NOT NULL,
        session     BLOB,
        payload     BLOB
    );
    CREATE TABLE IF NOT EXISTS alert_events (
        cursor   INTEGER PRIMARY KEY AUTOINCREMENT,
        alert_id TEXT NOT NULL,
        state    TEXT NOT NULL,
        run      TEXT NOT NULL,
        body     TEXT NOT NULL,
        UNIQUE (alert_id, state)
    );
    CREATE INDEX IF NOT EXISTS alert_events_of_run ON alert_events (run, cursor);
    """,
    """
    ALTER TABLE alert_events ADD COLUMN stored_ns INTEGER NOT NULL DEFAULT 0;
    UPDATE alert_events SET stored_ns = 1000000000 * coalesce(
        CASE WHEN json_valid(body) THEN strftime('%s', json_extract(body, '$.updated_at')) END,
        strftime('%s', 'now')
    );
    CREATE TABLE saved_state (part TEXT PRIMARY KEY, body BLOB NOT NULL);
    CREATE TABLE saved_runs (run TEXT PRIMARY KEY, body BLOB NOT NULL);
    CREATE TABLE saved_attempts (
        run TEXT NOT NULL, attempt INTEGER NOT NULL, body BLOB NOT NULL,
        PRIMARY KEY (run, attempt)
    );
    CREATE TABLE saved_frames (
        run TEXT NOT NULL, attempt INTEGER NOT NULL, chunk INTEGER NOT NULL, steps BLOB NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (run, attempt, chunk)
    );
    """,
    """
    ALTER TABLE log ADD COLUMN checksum INTEGER;
    ALTER TABLE alert_events ADD COLUMN checksum INTEGER
    """,
    """
    CREATE TABLE series (
        id INTEGER PRIMARY KEY, run TEXT NOT NULL, attempt INTEGER NOT NULL,
        num_bytes INTEGER NOT NULL, layers BLOB NOT NULL,
        UNIQUE (run, attempt)
    );
    CREATE TABLE series_chunks (
        id INTEGER PRIMARY KEY, series INTEGER NOT NULL, level INTEGER NOT NULL,
        number INTEGER NOT NULL, epoch INTEGER NOT NULL, first_step INTEGER NOT NULL,
        last_step INTEGER NOT NULL, entries INTEGER NOT NULL, is_closed INTEGER NOT NULL,
        upto INTEGER NOT NULL, num_bytes INTEGER NOT NULL, head BLOB NOT NULL,
        UNIQUE (series, level, number)
    );
    CREATE INDEX series_chunks_of_steps ON series_chunks (series, level, epoch, last_step);
    CREATE TABLE series_tables (
        id INTEGER PRIMARY KEY, chunk INTEGER NOT NULL, name TEXT NOT NULL, body BLOB NOT NULL,
        UNIQUE (chunk, name)
    )
    """,
)
"""What makes version n + 1 of version n. Version 0 is an empty file, or one of our first days."""

SCHEMA_VERSION: Final = len(MIGRATIONS)
