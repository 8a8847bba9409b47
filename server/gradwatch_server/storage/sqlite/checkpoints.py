"""Checkpoints: the state as it was at a place of the log, so that a restart folds only the rest.

Each run is saved by itself, in the log's own file: a busy one often, a quiet one never. A save is
one transaction that also says how far each run is, so that the saved runs and these words
always belong together. Rows are msgpack with a checksum; `state_dict` of runs and attempts gives
what is in them.
"""

from __future__ import annotations

import logging
import sqlite3
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from gradwatch_server.core.alerting.evaluation import NUM_BEFORE
from gradwatch_server.core.arrays import FloatArray
from gradwatch_server.core.attempt import Attempt
from gradwatch_server.core.frames.window import CHUNK_ROWS, Chunk
from gradwatch_server.core.packing import pack, unpack
from gradwatch_server.core.run import Run

logger = logging.getLogger(__name__)

FORMAT: Final = 1
"""Of the rows. A reader knows all that came before; what came after it leaves alone."""

EAGER_CHUNKS: Final = 1 + -(-NUM_BEFORE // CHUNK_ROWS)
"""Chunks of a window that are read at once: an alert tells of the newest frames."""

_CHECKSUM_BYTES: Final = 4

_POSITION: Final = "position"
_FORGOTTEN: Final = "forgotten"


@dataclass(frozen=True, slots=True)
class Position:
    """Where in the log the saved runs stand.

    Args:
        offset: The newest entry at the time of the save.
        rules: The rules in force at `start`, plain.
        behind: Run to the newest entry that its saved form has, of those that lack some; 0 for one
            that is not saved at all. All others are at `offset`.
    """

    offset: int = 0
    rules: Mapping[str, Any] = field(default_factory=dict)
    behind: Mapping[str, int] = field(default_factory=dict)

    @property
    def start(self) -> int:
        """The newest entry of which nothing is needed any more, nor of those before."""
        return min([self.offset, *self.behind.values()])


@dataclass(slots=True)
class Saved:
    """What was found.

    Args:
        position: Where in the log it stands.
        forgotten: As `State.forgotten`.
        runs: The runs.
        damaged: Names of the runs that cannot be read.
        resized: Names of those whose window has another size than it is saved in.
    """

    position: Position = field(default_factory=Position)
    forgotten: dict[str, int] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    resized: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be saved of one run.

    Args:
        run: The run.
        attempts: Those of its attempts that changed.
        since: How many frames the window of the current one had when it was last saved.
        whole: Whether what is there of the run is to be replaced altogether.
    """

    run: Run
    attempts: Sequence[Attempt]
    since: int
    whole: bool


class DamagedRowError(Exception):
    """A saved row is not what was written."""


class Checkpoints:
    """The saved state in one database. All writes are to be inside a transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def load(self, window_steps: int) -> Saved:
        """Return what is saved and good; each run that is not is named in `damaged`.

        Most of what the windows hold is left to `fill`.

        Raises:
            sqlite3.Error: If the file cannot be read.
        """
        try:
            position = self._part(_POSITION)
            saved = Saved() if position is None else Saved(Position(**position))
            saved.forgotten = dict(self._part(_FORGOTTEN) or {})
        except (DamagedRowError, TypeError, ValueError) as error:
            logger.warning("no checkpoint can be used, the log is read instead: %s", error)
            return Saved()
        if position is None:
            return saved
        for (name,) in self._db.execute("SELECT run FROM saved_runs ORDER BY rowid").fetchall():
            try:
                run = self._load_run(name)
                if self._fit(run, window_steps):
                    saved.resized.add(name)
                saved.runs[name] = run
            except sqlite3.Error:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, it is not what was written
                logger.warning("the checkpoint of run %s cannot be used: %r", name, error)
                saved.damaged.append(name)
        return saved

    def put_position(self, position: Position) -> None:
        """Say how far the saved runs are."""
        plain = {"offset": position.offset, "rules": position.rules, "behind": position.behind}
        self._put_part(_POSITION, plain)

    def put_forgotten(self, forgotten: Mapping[str, int]) -> None:
        """Save the names of runs that left memory."""
        self._put_part(_FORGOTTEN, forgotten)

    def put(self, change: Change) -> int:
        """Save what changed of a run; return the bytes that were written."""
        run = change.run
        if change.whole:
            self._remove(run.name, "saved_attempts", "saved_frames")
        rows = [(run.name, _encode(run.state_dict()))]
        # The row stays in its place: the order of the rows is the order of the runs.
        self._db.executemany(
            "INSERT INTO saved_runs VALUES (?1, ?2) ON CONFLICT DO UPDATE SET body = ?2", rows
        )
        attempts = [
            (run.name, attempt.number, _encode(attempt.state_dict())) for attempt in change.attempts
        ]
        self._db.executemany("INSERT OR REPLACE INTO saved_attempts VALUES (?, ?, ?)", attempts)
        current = run.current
        chunks = [
            (run.name, current.number, number, *_encode_chunk(current.window.chunk(number)))
            for number in current.window.changed(change.since)
        ]
        self._db.executemany("INSERT OR REPLACE INTO saved_frames VALUES (?, ?, ?, ?, ?)", chunks)
        for table, oldest in (
            ("saved_attempts", run.attempts[0].number),
            ("saved_frames", current.number),
        ):
            if oldest > 1:
                self._db.execute(
                    f"DELETE FROM {table} WHERE run = ? AND attempt < ?",  # noqa: S608 - a literal
                    (run.name, oldest),
                )
        return sum(len(row[-1]) for written in (rows, attempts, chunks) for row in written)

    def remove(self, name: str) -> None:
        """Remove what is saved of a run."""
        self._remove(name, "saved_runs", "saved_attempts", "saved_frames")

    def _remove(self, name: str, *tables: str) -> None:
        for table in tables:
            self._db.execute(f"DELETE FROM {table} WHERE run = ?", (name,))  # noqa: S608 - a literal

    def clear(self) -> None:
        """Remove all that is saved."""
        for table in ("saved_state", "saved_runs", "saved_attempts", "saved_frames"):
            self._db.execute(f"DELETE FROM {table}")  # noqa: S608 - a literal

    def _fit(self, run: Run, window_steps: int) -> bool:
        """Fill in what is needed of a run's window; tell whether it got another size."""
        window = run.current.window
        if window.capacity == window_steps:
            self.fill(run, window.absent()[:EAGER_CHUNKS])
            return False
        self.fill(run, window.absent())
        run.current.window = window.resized(window_steps)
        return True

    def _load_run(self, name: str) -> Run:
        (body,) = self._db.execute("SELECT body FROM saved_runs WHERE run = ?", (name,)).fetchone()
        run = Run.from_state_dict(name, _decode(body))
        attempts = self._db.execute(
            "SELECT attempt, body FROM saved_attempts WHERE run = ? ORDER BY attempt", (name,)
        ).fetchall()
        for number, body in attempts:
            run.attempts.append(
                Attempt.from_state_dict(name, _decode(body), self._steps(name, number))
            )
        if not run.attempts:
            msg = "no attempt is saved"
            raise DamagedRowError(msg)
        return run

    def fill(self, run: Run, chunks: Collection[int]) -> None:
        """Fill in chunks of a run's window. One that is damaged is empty, and logged.

        Raises:
            sqlite3.Error: If the file cannot be read.
        """
        current = run.current
        for number in chunks:
            row = self._db.execute(
                "SELECT body FROM saved_frames WHERE run = ? AND attempt = ? AND chunk = ?",
                (run.name, current.number, number),
            ).fetchone()
            try:
                if row is None:
                    msg = "the row is missing"
                    raise DamagedRowError(msg)
                current.window.fill(number, [unpack(column) for column in _decode(row[0])])
            except (DamagedRowError, ValueError, TypeError) as error:
                logger.warning("frames of run %s are lost, chunk %d: %s", run.name, number, error)
                current.window.fill(number)

    def _steps(self, name: str, attempt: int) -> Iterator[tuple[int, FloatArray]]:
        rows = self._db.execute(
            "SELECT chunk, steps FROM saved_frames WHERE run = ? AND attempt = ?", (name, attempt)
        )
        for chunk, steps in rows:
            yield chunk, unpack(_decode(steps))

    def _part(self, part: str) -> Any:
        row = self._db.execute("SELECT body FROM saved_state WHERE part = ?", (part,)).fetchone()
        return None if row is None else _decode(row[0])

    def _put_part(self, part: str, plain: Any) -> None:
        row = (part, _encode(plain))
        self._db.execute("INSERT OR REPLACE INTO saved_state VALUES (?, ?)", row)


def _encode(plain: Any) -> bytes:
    body: bytes = msgpack.packb([FORMAT, plain])
    return zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "little") + body


def _decode(row: bytes) -> Any:
    """Return what was encoded.

    Raises:
        DamagedRowError: If it was something else.
    """
    body = memoryview(row)[_CHECKSUM_BYTES:]
    if zlib.crc32(body) != int.from_bytes(row[:_CHECKSUM_BYTES], "little"):
        msg = f"a row of {len(row)} bytes has another checksum"
        raise DamagedRowError(msg)
    version, plain = msgpack.unpackb(body, strict_map_key=False)
    if version > FORMAT:
        msg = f"a row has format {version}, this gradwatch reads up to {FORMAT}"
        raise DamagedRowError(msg)
    return plain


def _encode_chunk(chunk: Chunk) -> tuple[bytes, bytes]:
    return _encode(pack(chunk.steps)), _encode([pack(column) for column in chunk.columns])
