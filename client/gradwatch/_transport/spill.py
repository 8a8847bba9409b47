"""Spill files: records on disk until they are acknowledged, of this process and of killed ones.

Only the sender thread calls this. What is written is in the system's hands, and outlives a SIGKILL;
nothing waits for the disk itself.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gradwatch._faults import Faults
from gradwatch_wire import Hello, Kind
from gradwatch_wire.limits import MAX_MANIFESTS
from gradwatch_wire.session.send_buffer import BufferedRecord
from gradwatch_wire.session.session import SessionPhase
from gradwatch_wire.session.session_lock import SessionLock
from gradwatch_wire.session.spill_format import SpillError, pack_header, pack_record, read_records
from gradwatch_wire.session.spill_source import RecordCursor, resumed_session
from gradwatch_wire.session.spilled_session import (
    SpilledSession,
    find_sessions,
    segment_name,
    stem_of,
)

SPILL_BYTES: Final = 256 << 20
MIN_SPILL_BYTES: Final = 1 << 20

_SEGMENTS: Final = 8
_BUFFER_BYTES: Final = 1 << 18


def find_directory(spill: str | os.PathLike[str] | None) -> Path | None:
    """Return the spill directory, made if missing: the argument, else `GRADWATCH_SPILL`.

    Raises:
        TypeError: If the argument is no path.
        ValueError: If it cannot be made or written.
    """
    given = spill if spill is not None else os.environ.get("GRADWATCH_SPILL")
    if not isinstance(given, (str, os.PathLike, type(None))):
        msg = f"spill: a directory, got {type(given).__name__}"
        raise TypeError(msg)
    if not given:
        return None
    directory = Path(given)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        msg = f"spill: cannot make the directory {str(given)!r}: {error}"
        raise ValueError(msg) from error
    if not os.access(directory, os.W_OK | os.X_OK):
        msg = f"spill: the directory {str(given)!r} cannot be written"
        raise ValueError(msg)
    return directory


@dataclass(slots=True)
class _Segment:
    path: Path
    last: int
    num_records: int = 0
    size_bytes: int = 0


class Spill:
    """The files of this process's own session, bounded in bytes: the oldest segment is deleted."""

    def __init__(
        self, directory: Path, session: bytes, hello: Hello, max_bytes: int, faults: Faults
    ) -> None:
        self.directory = directory
        self.hello = hello
        self.num_written = 0
        self.num_dropped = 0  # records deleted before they were acknowledged
        self._session = session
        self._max_bytes = max_bytes
        self._faults = faults
        self._stem = stem_of(hello.run, hello.rank, session)
        self._header = pack_header(session, hello)
        self._manifests: deque[BufferedRecord] = deque(maxlen=MAX_MANIFESTS)
        self._segments: deque[_Segment] = deque()
        self._num_made = 0
        self._descriptor = -1
        self._lock: SessionLock | None = None
        self._is_broken = False
        self._buffer: list[BufferedRecord] = []
        self._buffered_bytes = 0
        self._acked = 0
        self._cursor = RecordCursor(self._read_from, is_growing=True)

    def add(self, record: BufferedRecord) -> None:
        """Take a record; it is on disk after the next `flush`."""
        if self._is_broken:
            return
        self._buffer.append(record)
        self._buffered_bytes += len(record.body)
        if self._buffered_bytes > _BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was taken. If that fails, go on without spill files."""
        records, self._buffer, self._buffered_bytes = self._buffer, [], 0
        if not records or self._is_broken:
            return
        try:
            for record in records:
                self._write(record)
        except OSError as error:
            self._is_broken = True
            self._faults.note("spill", f"{error}; going on without spill files")

    def _write(self, record: BufferedRecord) -> None:
        if not self._segments or self._segments[-1].size_bytes > self._max_bytes // _SEGMENTS:
            self._roll()
        segment, frame = self._segments[-1], pack_record(record)
        _write_all(self._descriptor, frame, segment.size_bytes)
        segment.last = record.seq
        segment.num_records += 1
        segment.size_bytes += len(frame)
        self.num_written += 1
        if record.kind == Kind.MANIFEST:
            self._manifests.append(record)

    def _roll(self) -> None:
        """Begin a segment; delete the oldest if there are as many as there may be."""
        if self._lock is None:
            self._lock = SessionLock.acquire(self.directory, self._session)
        while len(self._segments) >= _SEGMENTS:
            oldest = self._segments.popleft()
            # Numbers are nearly without gaps, so this is right unless half of it is acknowledged.
            self.num_dropped += min(oldest.num_records, max(0, oldest.last - self._acked))
            remove_file(oldest.path)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        path = self.directory / segment_name(self._stem, self._num_made)
        self._num_made += 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        segment = _Segment(path, self._segments[-1].last if self._segments else 0)
        self._segments.append(segment)
        start = self._header + b"".join(map(pack_record, self._manifests))
        _write_all(self._descriptor, start, 0)
        segment.size_bytes = len(start)

    def find(self, seq: int) -> BufferedRecord | None:
        """Return the first record on disk from number *seq* on, None if there is none."""
        return self._cursor.find(seq)

    def _read_from(self, seq: int) -> Iterator[BufferedRecord]:
        self.flush()
        paths = [segment.path for segment in self._segments if segment.last >= seq]
        return read_records(paths, seq)

    def release(self, acked: int) -> None:
        """Delete the segments that hold nothing else than what is acknowledged."""
        self._acked = max(self._acked, acked)
        while len(self._segments) > 1 and self._segments[0].last <= self._acked:
            remove_file(self._segments.popleft().path)

    def close(self, *, finished: bool) -> None:
        """Stop; *finished*: everything is acknowledged, and nothing has to stay on disk."""
        self.flush()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if finished:
            for segment in self._segments:
                remove_file(segment.path)
        if self._lock is not None:
            self._lock.release(remove=finished)


def remove_file(path: Path) -> None:
    """Delete a file if possible: one that stays takes space, and is found to be stored later."""
    with contextlib.suppress(OSError):
        path.unlink()


def _write_all(descriptor: int, content: bytes, offset: int) -> None:
    """Write at *offset*, all or nothing.

    Raises:
        OSError: If the disk is full or fails.
    """
    written = 0
    try:
        while written < len(content):
            written += os.pwrite(descriptor, content[written:], offset + written)
    except OSError:
        os.ftruncate(descriptor, offset)
        raise


class OrphanFiles:
    """A session on disk and the lock on it; its files are deleted once everything is stored."""

    def __init__(self, spilled: SpilledSession, lock: SessionLock, faults: Faults) -> None:
        self.session = resumed_session(spilled)
        self._spilled = spilled
        self._lock = lock
        self._faults = faults

    def finish(self) -> None:
        """Delete the files; if the aggregator refused the session, tell and keep them."""
        is_stored = self.session.phase is not SessionPhase.REFUSED
        if is_stored:
            for path in self._spilled.paths:
                remove_file(path)
        else:
            why = f"the aggregator refuses a session on disk: {self.session.refused!a}"
            self._faults.note("spill", why)
        self._lock.release(remove=is_stored)

    def leave(self) -> None:
        self._lock.release(remove=False)


def claim_orphans(directory: Path, hello: Hello, faults: Faults) -> Iterator[OrphanFiles]:
    """Lock the sessions of this run and rank whose process is gone; the oldest first."""
    try:
        paths = find_sessions(directory, hello.run, hello.rank)
    except OSError as error:
        faults.note("spill", error)
        return
    for path in paths:
        try:
            spilled = SpilledSession.open(path)
            lock = SessionLock.acquire(directory, spilled.session)
        except (SpillError, OSError) as error:
            faults.note("spill", error)
            continue
        if lock is not None:  # else its process is alive
            yield OrphanFiles(spilled, lock, faults)
