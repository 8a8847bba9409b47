"""The tables of a data directory, and the number of the form in which it is stored."""

from __future__ import annotations

from typing import Final

SCHEMA_VERSION: Final = 8
"""Each change of what is stored, also inside of a row, takes the next number. Data of any other
number is refused: nothing reads older forms."""

TABLES: Final = """
    CREATE TABLE log (
        id INTEGER PRIMARY KEY, run TEXT NOT NULL, is_head INTEGER NOT NULL,
        first INTEGER NOT NULL, last INTEGER NOT NULL, received_ns INTEGER NOT NULL,
        num_bytes INTEGER NOT NULL, body BLOB NOT NULL, checksum INTEGER NOT NULL
    );
    CREATE UNIQUE INDEX log_of_run ON log (run, is_head, last, first, num_bytes);
    CREATE TABLE alert_events (
        cursor INTEGER PRIMARY KEY AUTOINCREMENT, alert_id TEXT NOT NULL, state TEXT NOT NULL,
        run TEXT NOT NULL, body TEXT NOT NULL, stored_ns INTEGER NOT NULL,
        num_bytes INTEGER NOT NULL, checksum INTEGER NOT NULL,
        UNIQUE (alert_id, state)
    );
    CREATE INDEX alert_events_of_run ON alert_events (run, cursor, num_bytes);
    CREATE TABLE forgotten_runs (
        run TEXT PRIMARY KEY, position INTEGER NOT NULL, attempts INTEGER NOT NULL,
        forgotten_ns INTEGER NOT NULL
    );
    CREATE TABLE saved_state (part TEXT PRIMARY KEY, body BLOB NOT NULL);
    CREATE TABLE saved_runs (run TEXT PRIMARY KEY, body BLOB NOT NULL);
    CREATE TABLE saved_attempts (
        run TEXT NOT NULL, attempt INTEGER NOT NULL, body BLOB NOT NULL,
        PRIMARY KEY (run, attempt)
    );
    CREATE TABLE curves (
        id INTEGER PRIMARY KEY, run TEXT NOT NULL, attempt INTEGER NOT NULL,
        num_bytes INTEGER NOT NULL, layers BLOB NOT NULL,
        UNIQUE (run, attempt)
    );
    CREATE TABLE blocks (
        id INTEGER PRIMARY KEY, curve INTEGER NOT NULL, level INTEGER NOT NULL,
        number INTEGER NOT NULL, epoch INTEGER NOT NULL, first_step INTEGER NOT NULL,
        last_step INTEGER NOT NULL, entries INTEGER NOT NULL, is_closed INTEGER NOT NULL,
        upto INTEGER NOT NULL, num_bytes INTEGER NOT NULL, head BLOB NOT NULL,
        body BLOB NOT NULL,
        UNIQUE (curve, level, number)
    );
    CREATE INDEX blocks_of_steps ON blocks (curve, level, epoch, last_step)
"""
