"""The SQLite file of a data directory: how it is set up, brought up to date, checked and replaced.

What other modules keep in it they read and write themselves. Only the log's own connection
writes.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gradwatch_server.errors import GradwatchError

logger = logging.getLogger(__name__)

PAGE_BYTES: Final = 65_536
"""A record of 300 layers takes 10.9 kB, of which one fits a page of 16 kB, and five this one."""

WAL_BYTES: Final = 16 << 20
"""Size from which on the WAL is written back into the file."""

CHECK_BYTES: Final = 64 << 20
"""A file up to this size is checked as a whole after an unclean stop; that takes 0.1 s. Of a larger
one it is the tables that nothing else would check: what is saved has checksums, and records are
read one by one."""

_PRAGMAS: Final = (
    f"page_size={PAGE_BYTES}",  # before auto_vacuum, behind which it is ignored
    "auto_vacuum=INCREMENTAL",
    "journal_mode=WAL",
    "synchronous=FULL",
    "journal_size_limit=67108864",
    "cache_size=-65536",
    "temp_store=MEMORY",
    "mmap_size=0",
    "busy_timeout=5000",
)

_MIGRATIONS: Final = (
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
)
"""What makes version n + 1 of version n. Version 0 is an empty file, or one of our first days."""

SCHEMA_VERSION: Final = len(_MIGRATIONS)

_SIDE_FILES: Final = ("-wal", "-shm", "-journal")
_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def is_damage(error: sqlite3.Error) -> bool:
    """Tell whether an error says that the file itself is bad, not the disk or the request."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


def open_database(path: Path) -> sqlite3.Connection:
    """Open or create the file; after an unclean stop check it, and replace it if it is damaged.

    Raises:
        GradwatchError: If a newer version of gradwatch wrote it.
        sqlite3.Error: If it cannot be used.
    """
    unclean = path.exists() and _side(path, "-wal").exists()  # a clean stop removes it
    try:
        return _open(path, check=unclean)
    except sqlite3.DatabaseError as error:
        # What was never ours, such as a file of another kind, is left alone.
        if not (unclean and is_damage(error)):
            raise
        quarantine(path, error)
    return _open(path, check=False)


def quarantine(path: Path, why: object) -> None:
    """Rename a damaged file, and those beside it, so that a new one can take its place."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    kept = path.with_name(f"{path.name}.damaged-{stamp}")
    number = 0
    while kept.exists():
        number += 1
        kept = path.with_name(f"{path.name}.damaged-{stamp}-{number}")
    path.rename(kept)
    for suffix in _SIDE_FILES:
        with contextlib.suppress(FileNotFoundError):
            _side(path, suffix).rename(_side(kept, suffix))
    logger.error("the log %s is damaged (%s): kept as %s, begun anew", path, why, kept.name)


def _side(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _open(path: Path, *, check: bool) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        for pragma in _PRAGMAS:
            db.execute(f"PRAGMA {pragma}")
        # In pages, which keep the size that the file was made with.
        db.execute(f"PRAGMA wal_autocheckpoint={WAL_BYTES // number(db, 'page_size')}")
        if check:
            _check(db)
        _migrate(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _check(db: sqlite3.Connection) -> None:
    """Look for damage in a time that does not grow with the file.

    Raises:
        sqlite3.DatabaseError: If there is some, with the code of damage.
    """
    began = time.monotonic()
    whole = number(db, "page_count") * number(db, "page_size") <= CHECK_BYTES
    for pragma in ("quick_check(1)",) if whole else ("quick_check('alert_events')",):
        (found,) = db.execute(f"PRAGMA {pragma}").fetchone()
        if found != "ok":
            error = sqlite3.DatabaseError(" ".join(str(found).split())[:200])
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error
    logger.info("checked after an unclean stop: ok, %.2f s", time.monotonic() - began)


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    version = number(db, "user_version")
    if not 0 <= version <= SCHEMA_VERSION:
        msg = (
            f"cannot open the log {path}: schema version {version}, this gradwatch reads up to "
            f"{SCHEMA_VERSION}; use the gradwatch that wrote it, or another directory with --data"
        )
        raise GradwatchError(msg)
    for reached in range(version, SCHEMA_VERSION):
        with transaction(db):
            for statement in _MIGRATIONS[reached].split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version={reached + 1}")
    if 0 < version < SCHEMA_VERSION:
        logger.info("brought %s from schema version %d to %d", path, version, SCHEMA_VERSION)


def number(db: sqlite3.Connection, pragma: str) -> int:
    """Return what a pragma says that is one number."""
    (found,) = db.execute(f"PRAGMA {pragma}").fetchone()
    return int(found)


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit what is written inside, all or none."""
    if db.in_transaction:  # the last one could not even be rolled back
        db.execute("ROLLBACK")
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        # SQLite may have rolled back by itself, on a full disk for one.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def deferred_sync(db: sqlite3.Connection) -> Iterator[None]:
    """Let what is committed inside become durable with the next commit outside.

    The WAL is in order, so nothing that comes after it can be durable without it.
    """
    before = number(db, "synchronous")
    db.execute(f"PRAGMA synchronous={min(before, 1)}")
    try:
        yield
    finally:
        db.execute(f"PRAGMA synchronous={before}")
