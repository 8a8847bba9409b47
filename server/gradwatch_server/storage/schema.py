"""The tables of a store and of its deliveries, and the number of the form in which both are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SCHEMA_VERSION: Final = 16
"""Each change of what is stored, also inside of a row, takes the next number. Data of any other
number is refused: nothing reads older forms."""

STORE_TABLES: Final = """
    CREATE TABLE log (
        id {key}, run {text} NOT NULL, is_head {number} NOT NULL,
        first {number} NOT NULL, last {number} NOT NULL, received_ns {number} NOT NULL,
        num_bytes {number} NOT NULL, body {bytes} NOT NULL, checksum {number} NOT NULL
    );
    CREATE UNIQUE INDEX log_of_run ON log (run, is_head, last, first, num_bytes);
    CREATE TABLE alert_events (
        cursor {key}, alert_id {text} NOT NULL, state {text} NOT NULL,
        run {text} NOT NULL, body {text} NOT NULL, stored_ns {number} NOT NULL,
        num_bytes {number} NOT NULL, checksum {number} NOT NULL,
        UNIQUE (alert_id, state)
    );
    CREATE INDEX alert_events_of_run ON alert_events (run, cursor, num_bytes);
    CREATE TABLE forgotten_runs (
        run {text} PRIMARY KEY, position {number} NOT NULL, attempts {number} NOT NULL,
        forgotten_ns {number} NOT NULL
    );
    CREATE TABLE saved_state (part {text} PRIMARY KEY, body {bytes} NOT NULL);
    CREATE TABLE saved_runs (
        run {text} PRIMARY KEY, summary {bytes}, body {bytes} NOT NULL
    );
    CREATE TABLE saved_attempts (
        run {text} NOT NULL, attempt {number} NOT NULL, body {bytes} NOT NULL,
        PRIMARY KEY (run, attempt)
    );
    CREATE TABLE curves (
        id {key}, run {text} NOT NULL, attempt {number} NOT NULL,
        num_bytes {number} NOT NULL, layers {bytes} NOT NULL,
        UNIQUE (run, attempt)
    );
    CREATE TABLE blocks (
        id {key}, curve {number} NOT NULL, level {number} NOT NULL,
        number {number} NOT NULL, epoch {number} NOT NULL, first_step {number} NOT NULL,
        last_step {number} NOT NULL, entries {number} NOT NULL, is_closed {number} NOT NULL,
        upto {number} NOT NULL, num_bytes {number} NOT NULL, head {bytes} NOT NULL,
        body {bytes} NOT NULL,
        UNIQUE (curve, level, number)
    );
    CREATE INDEX blocks_of_steps ON blocks (curve, level, epoch, last_step)
"""

DELIVERY_TABLES: Final = """
    CREATE TABLE delivery_targets (
        target {text} PRIMARY KEY, cursor {number} NOT NULL, sending {text},
        failing_since_s {real}, succeeded_s {real}, num_attempts {number} NOT NULL, error {text}
    );
    CREATE TABLE delivery_entries (
        target {text} NOT NULL, alert_id {text} NOT NULL, "group" {text} NOT NULL,
        run {text} NOT NULL, rule {text} NOT NULL, severity {text} NOT NULL, state {text} NOT NULL,
        cursor {number} NOT NULL, is_told {flag} NOT NULL, is_pending {flag} NOT NULL,
        PRIMARY KEY (target, alert_id)
    );
    CREATE TABLE delivery_groups (
        target {text} NOT NULL, "group" {text} NOT NULL, since_s {real} NOT NULL,
        sent_s {real} NOT NULL, PRIMARY KEY (target, "group")
    )
"""


def statements(tables: str, types: Mapping[str, str]) -> list[str]:
    """Return the statements that make tables.

    Args:
        tables: `STORE_TABLES` or `DELIVERY_TABLES`.
        types: Types of the database: `key`, a primary key that the database numbers where no number
            is given; `number`, 64 bits; `real`, a float64; `flag`; `text`, compared by bytes;
            `bytes`.
    """
    return [statement.strip() for statement in tables.format_map(types).split(";")]
