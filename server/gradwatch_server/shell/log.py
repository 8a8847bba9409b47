"""The log: every accepted record and whatever the aggregator learnt, in SQLite, fsynced.

One connection writes and checkpoints, from the engine's thread. `append` commits before it
returns; only then may a record be acknowledged. The file is read back by `replay`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final, cast

import msgpack

from gradwatch_server.core.entries import (
    Body,
    Entry,
    Gap,
    Lost,
    Opened,
    Received,
    RulesSet,
    Tick,
)
from gradwatch_server.shell.errors import GradwatchError
from gradwatch_wire import (
    SEQUENCED,
    Bye,
    Envelope,
    Event,
    Gains,
    Hello,
    Kind,
    Manifest,
    Stats,
    decode_record,
    encode,
)

logger = logging.getLogger(__name__)

DATABASE_NAME: Final = "gradwatch.db"
LOCK_NAME: Final = "gradwatch.lock"
SCHEMA_VERSION: Final = 1
FIRST_SAFE_SQLITE: Final = (3, 51, 3)

# Kinds of the aggregator's own entries, far above those of the wire.
_GAP, _LOST, _TICK, _RULES = 101, 102, 103, 104

RECORD_KINDS: Final = {
    Manifest: Kind.MANIFEST,
    Stats: Kind.STATS,
    Gains: Kind.GAINS,
    Event: Kind.EVENT,
    Bye: Kind.BYE,
}
"""The records that are logged, by class: the wire has more than one way to write a number."""

_SCHEMA: Final = """
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
"""

_PRAGMAS: Final = (
    "page_size=16384",  # before auto_vacuum, behind which it is ignored
    "auto_vacuum=INCREMENTAL",
    "journal_mode=WAL",
    "synchronous=FULL",
    "wal_autocheckpoint=1000",
    "journal_size_limit=67108864",
    "cache_size=-65536",
    "temp_store=MEMORY",
    "mmap_size=0",
    "busy_timeout=5000",
)


@dataclass(frozen=True, slots=True)
class Line:
    """An entry with the bytes it came as, if it came over the wire."""

    entry: Entry
    raw: bytes | None = None


class Log:
    """The durable log of one data directory, held by one aggregator at a time."""

    def __init__(self, directory: Path) -> None:
        """Open or create the log.

        Raises:
            GradwatchError: If the directory cannot be written, is in use, or holds no such log.
        """
        self._lock = _lock(directory)
        self.path = directory / DATABASE_NAME
        if sqlite3.sqlite_version_info < FIRST_SAFE_SQLITE:
            logger.info(
                "SQLite %s has the WAL-reset bug, fixed in 3.51.3; our one writer avoids it",
                sqlite3.sqlite_version,
            )
        try:
            self._db = _open(self.path)
        except sqlite3.Error as error:
            self._lock.close()
            msg = f"cannot open the log {self.path}: {error}; move the file away to start afresh"
            raise GradwatchError(msg) from error

    def append(self, lines: Sequence[Line]) -> None:
        """Write lines and commit them, all or none.

        Raises:
            sqlite3.Error: If the disk is full or fails; nothing was written then.
        """
        rows = [_row(line) for line in lines]
        with self._transaction():
            self._db.executemany(
                "INSERT INTO log (received_ns, kind, session, payload) VALUES (?, ?, ?, ?)", rows
            )

    def add_alert_events(self, events: Sequence[tuple[str, str, str, str]]) -> int:
        """Store `(alert id, change, run, JSON)` once each, and return the newest cursor.

        Raises:
            sqlite3.Error: If the disk is full or fails; nothing was written then.
        """
        if events:
            with self._transaction():
                self._db.executemany(
                    # Not OR IGNORE, which takes a cursor away for each event that it ignores.
                    "INSERT INTO alert_events (alert_id, state, run, body)"
                    " SELECT ?1, ?2, ?3, ?4 WHERE NOT EXISTS"
                    " (SELECT 1 FROM alert_events WHERE alert_id = ?1 AND state = ?2)",
                    events,
                )
        (newest,) = self._db.execute("SELECT coalesce(max(cursor), 0) FROM alert_events").fetchone()
        return int(newest)

    def replay(self) -> Iterator[Entry]:
        """Yield all entries, oldest first. A row that cannot be read is logged and passed over."""
        rows = self._db.execute(
            "SELECT log_offset, received_ns, kind, session, payload FROM log ORDER BY log_offset"
        )
        for offset, received_ns, kind, session, payload in rows:
            try:
                yield Entry(received_ns, _body(kind, session, payload))
            except Exception as error:  # noqa: BLE001 - a damaged row must not cost those behind it
                logger.warning("log line %d cannot be read: %s", offset, error)

    def close(self) -> None:
        """Checkpoint, close the file and let the directory go."""
        self._db.close()
        self._lock.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            # SQLite may have rolled back by itself, on a full disk for one.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise


def _lock(directory: Path) -> IO[str]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / LOCK_NAME).open("a+", encoding="ascii")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = getattr(error, "strerror", None) or error
        msg = f"cannot use the data directory {directory}: {why}; choose one with --data"
        raise GradwatchError(msg) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        owner = lock.read().strip() or "unknown"
        lock.close()
        msg = (
            f"the data directory {directory} is in use by another aggregator (pid {owner}); "
            "stop it, or choose another directory with --data"
        )
        raise GradwatchError(msg) from error
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for pragma in _PRAGMAS:
        db.execute(f"PRAGMA {pragma}")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version not in (0, SCHEMA_VERSION):
        db.close()
        msg = f"schema version {version}, this gradwatch reads {SCHEMA_VERSION}"
        raise sqlite3.DatabaseError(msg)
    db.executescript(_SCHEMA)
    db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    return db


def _row(line: Line) -> tuple[int, int, bytes | None, bytes | None]:
    entry = line.entry
    match entry.body:
        case Received(envelope) if line.raw is not None:
            kind = RECORD_KINDS[type(envelope.record)]
            return entry.received_ns, kind, envelope.session, line.raw
        case Opened(session, hello):
            # The token is a secret of the door, not a fact of the run.
            frame = line.raw if line.raw and not hello.token else _hello_frame(session, hello)
            return entry.received_ns, Kind.HELLO, session, frame
        case Gap(session, first, last):
            return entry.received_ns, _GAP, session, msgpack.packb((first, last))
        case Lost(session):
            return entry.received_ns, _LOST, session, None
        case Tick():
            return entry.received_ns, _TICK, None, None
        case RulesSet(rules):
            return entry.received_ns, _RULES, None, json.dumps(dict(rules)).encode()
    msg = f"a record needs the bytes it came as: {entry.body!r:.80}"
    raise AssertionError(msg)


def _hello_frame(session: bytes, hello: Hello) -> bytes:
    return encode(Envelope(session=session, record=replace(hello, token="")))[1]


def _body(kind: int, session: bytes, payload: bytes) -> Body:
    if kind == Kind.HELLO:
        return Opened(session, cast("Hello", decode_record(payload).record))
    if kind in SEQUENCED:
        return Received(decode_record(payload))
    if kind == _GAP:
        first, last = msgpack.unpackb(payload)
        return Gap(session, first, last)
    if kind == _LOST:
        return Lost(session)
    if kind == _TICK:
        return Tick()
    if kind == _RULES:
        return RulesSet(json.loads(payload))
    msg = f"kind {kind} is not known to this version"
    raise ValueError(msg)
