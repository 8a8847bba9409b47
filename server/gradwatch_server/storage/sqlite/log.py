"""The log: every accepted record and whatever the aggregator learnt, in SQLite, fsynced.

One connection writes and checkpoints, from the engine's thread. `append` commits before it
returns; only then may a record be acknowledged. The file is read back by `replay`.
"""

from __future__ import annotations

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

from gradwatch_server.clock import now_ns
from gradwatch_server.core.entries import (
    Body,
    Entry,
    Forgotten,
    Gap,
    Lost,
    Opened,
    Received,
    RulesSet,
    Tick,
)
from gradwatch_server.errors import GradwatchError
from gradwatch_server.storage.sqlite.database import (
    is_damage,
    open_database,
    quarantine,
    transaction,
)
from gradwatch_server.storage.sqlite.filesystem import network_type
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
FIRST_SAFE_SQLITE: Final = (3, 51, 3)

# Kinds of the aggregator's own entries, far above those of the wire.
_GAP, _LOST, _TICK, _RULES, _FORGOTTEN = 101, 102, 103, 104, 105

HEAD_KINDS: Final = (int(Kind.HELLO), int(Kind.MANIFEST), _RULES)
"""What the rest of a log cannot be read without."""

RECORD_KINDS: Final = {
    Manifest: Kind.MANIFEST,
    Stats: Kind.STATS,
    Gains: Kind.GAINS,
    Event: Kind.EVENT,
    Bye: Kind.BYE,
}
"""The records that are logged, by class: the wire has more than one way to write a number."""


@dataclass(frozen=True, slots=True)
class Line:
    """An entry with the bytes it came as, if it came over the wire."""

    entry: Entry
    raw: bytes | None = None


class Log:
    """The durable log of one data directory, held by one aggregator at a time."""

    def __init__(self, directory: Path, *, allow_network_fs: bool = False) -> None:
        """Open or create the log.

        Raises:
            GradwatchError: If the directory cannot be written, is in use, is on a network file
                system, or holds no such log.
        """
        self._lock = _lock(directory)
        if not allow_network_fs and (kind := network_type(directory)) is not None:
            self._lock.close()
            msg = (
                f"the data directory {directory} is on a network file system ({kind}), where the "
                "log could be damaged; choose one on a local disk with --data, or accept it with "
                "allow_network_fs"
            )
            raise GradwatchError(msg)
        self.path = directory / DATABASE_NAME
        if sqlite3.sqlite_version_info < FIRST_SAFE_SQLITE:
            logger.info(
                "SQLite %s has the WAL-reset bug, fixed in 3.51.3; our one writer avoids it",
                sqlite3.sqlite_version,
            )
        try:
            self._db = open_database(self.path)
            self.last_offset = self._find_last()
        except GradwatchError:
            self._lock.close()
            raise
        except sqlite3.Error as error:
            self._lock.close()
            msg = f"cannot open the log {self.path}: {error}; move the file away to start afresh"
            raise GradwatchError(msg) from error

    @property
    def db(self) -> sqlite3.Connection:
        """The one connection that writes."""
        return self._db

    def _find_last(self) -> int:
        (last,) = self._db.execute("SELECT coalesce(max(log_offset), 0) FROM log").fetchone()
        return int(last)

    def replace(self, why: sqlite3.Error) -> bool:
        """Keep a damaged file under another name and go on with a new one.

        Returns:
            Whether the error says that the file is damaged; nothing is done if not.
        """
        if not is_damage(why):
            return False
        self._db.close()
        quarantine(self.path, why)
        self._db = open_database(self.path)
        self.last_offset = 0
        return True

    def append(self, lines: Sequence[Line]) -> None:
        """Write lines and commit them, all or none; `last_offset` is the last one's then.

        Raises:
            sqlite3.Error: If the disk is full or fails; nothing was written then.
        """
        # SQLite's own numbers would begin again once the log was trimmed to nothing.
        rows = [(offset, *_row(line)) for offset, line in enumerate(lines, self.last_offset + 1)]
        with transaction(self._db):
            self._db.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?)", rows)
        self.last_offset += len(rows)

    def add_alert_events(self, events: Sequence[tuple[str, str, str, str]]) -> int:
        """Store `(alert id, change, run, JSON)` once each, and return the newest cursor.

        Raises:
            sqlite3.Error: If the disk is full or fails; nothing was written then.
        """
        if events:
            with transaction(self._db):
                self._db.executemany(
                    # Not OR IGNORE, which takes a cursor away for each event that it ignores.
                    "INSERT INTO alert_events (alert_id, state, run, body, stored_ns)"
                    " SELECT ?1, ?2, ?3, ?4, ?5 WHERE NOT EXISTS"
                    " (SELECT 1 FROM alert_events WHERE alert_id = ?1 AND state = ?2)",
                    [(*event, now_ns()) for event in events],
                )
        (newest,) = self._db.execute("SELECT coalesce(max(cursor), 0) FROM alert_events").fetchone()
        return int(newest)

    def replay(self) -> Iterator[Entry]:
        """Yield all entries that are kept, oldest first."""
        for _, entry in self.entries(0):
            yield entry

    def entries(self, after: int) -> Iterator[tuple[int, Entry]]:
        """Yield the entries behind an offset with theirs, oldest first.

        A row that cannot be read is logged and passed over.

        Raises:
            sqlite3.Error: If the file cannot be read.
        """
        rows = self._db.execute(
            "SELECT log_offset, received_ns, kind, session, payload FROM log"
            " WHERE log_offset > ? ORDER BY log_offset",
            (after,),
        )
        for offset, received_ns, kind, session, payload in rows:
            try:
                yield offset, Entry(received_ns, _body(kind, session, payload))
            except Exception as error:  # noqa: BLE001 - a damaged row must not cost those behind it
                logger.warning("log line %d cannot be read: %s", offset, error)

    def close(self) -> None:
        """Checkpoint, close the file and let the directory go."""
        self._db.close()
        self._lock.close()


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
        case Forgotten(run, attempts):
            return entry.received_ns, _FORGOTTEN, None, msgpack.packb((run, attempts))
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
    if kind == _FORGOTTEN:
        run, attempts = msgpack.unpackb(payload)
        return Forgotten(run, attempts)
    msg = f"kind {kind} is not known to this version"
    raise ValueError(msg)
