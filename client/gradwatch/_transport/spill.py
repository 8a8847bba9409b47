"""Spill files: records on disk until they are acknowledged, and what an earlier process left there.

Only the sender thread comes here. What is written is the system's, and outlives a SIGKILL; nothing
waits for the disk itself.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gradwatch._faults import Faults
from gradwatch._transport.send_buffer import BufferedRecord
from gradwatch_wire import Envelope, Hello, Kind
from gradwatch_wire.limits import MAX_MANIFESTS
from gradwatch_wire.session.replay import Replay
from gradwatch_wire.session.spill import (
    SessionLock,
    Spilled,
    SpilledSession,
    SpillError,
    find_sessions,
    pack_header,
    pack_record,
    read_records,
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
    """The files of this process's own session, bounded in bytes: the oldest segment gives way."""

    def __init__(
        self, directory: Path, session: bytes, hello: Hello, max_bytes: int, faults: Faults
    ) -> None:
        self.directory = directory
        self.hello = hello
        self.num_written = 0
        self.num_dropped = 0  # records that gave way before they were acknowledged
        self._session = session
        self._max_bytes = max_bytes
        self._faults = faults
        self._stem = stem_of(hello.run, hello.rank, session)
        self._header = pack_header(session, hello)
        self._manifests: deque[Spilled] = deque(maxlen=MAX_MANIFESTS)
        self._segments: deque[_Segment] = deque()
        self._num_made = 0
        self._descriptor = -1
        self._claim: SessionLock | None = None
        self._broken = False
        self._buffer: list[Spilled] = []
        self._buffered_bytes = 0
        self._acked = 0
        self._reader: Iterator[Spilled] = iter(())
        self._asked = 0
        self._found: BufferedRecord | None = None

    def add(self, item: BufferedRecord) -> None:
        """Take a record; it is on disk after the next `flush`."""
        if self._broken:
            return
        record = Spilled(item.seq, item.kind, item.time_ns, item.body)
        self._buffer.append(record)
        self._buffered_bytes += len(item.body)
        if self._buffered_bytes > _BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand what was taken to the system. If the disk will not have it, go on without spill."""
        records, self._buffer, self._buffered_bytes = self._buffer, [], 0
        if not records or self._broken:
            return
        try:
            for record in records:
                self._write(record)
        except OSError as error:
            self._broken = True
            self._faults.note("spill", f"{error}; going on without spill files")

    def _write(self, record: Spilled) -> None:
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
        """Begin a segment; let the oldest go if there are as many as there may be."""
        if self._claim is None:
            self._claim = SessionLock.take(self.directory, self._session)
        while len(self._segments) >= _SEGMENTS:
            oldest = self._segments.popleft()
            # Numbers are nearly without gaps, so this is right unless half of it is acknowledged.
            self.num_dropped += min(oldest.num_records, max(0, oldest.last - self._acked))
            _remove(oldest.path)
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
        """Return the first record on disk from number *seq* on, None if there is none.

        It is quick for the same number again, and for ascending ones.
        """
        if seq < self._asked or self._found is None:
            self.flush()
            paths = [segment.path for segment in self._segments if segment.last >= seq]
            self._reader = read_records(paths, seq)
            self._found = self._read()
        while self._found is not None and self._found.seq < seq:
            self._found = self._read()
        self._asked = seq
        return self._found

    def _read(self) -> BufferedRecord | None:
        record = next(self._reader, None)
        if record is None:
            return None
        return BufferedRecord(record.seq, Kind(record.kind), record.time_ns, record.body)

    def release(self, acked: int) -> None:
        """Delete the segments that hold nothing else than what is acknowledged."""
        self._acked = max(self._acked, acked)
        while len(self._segments) > 1 and self._segments[0].last <= self._acked:
            _remove(self._segments.popleft().path)

    def close(self, *, finished: bool) -> None:
        """Stop; *finished*: everything is acknowledged, and nothing has to stay on disk."""
        self.flush()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if finished:
            for segment in self._segments:
                _remove(segment.path)
        if self._claim is not None:
            self._claim.release(remove=finished)


def _remove(path: Path) -> None:
    """Delete a file if the system lets us: one that stays costs space, and is refused later."""
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


class OrphanedSessions:
    """Sessions of this run and rank that a killed process left, sent one after the other."""

    def __init__(self, directory: Path, hello: Hello, faults: Faults) -> None:
        self.num_sent = 0
        self._faults = faults
        self._waiting: deque[tuple[SpilledSession, SessionLock]] = deque()
        self._current: tuple[Replay, SessionLock] | None = None
        try:
            paths = find_sessions(directory, hello.run, hello.rank)
        except OSError as error:
            faults.note("spill", error)
            paths = []
        for path in paths:
            try:
                found = SpilledSession.open(path)
                claim = SessionLock.take(directory, found.session)
            except (SpillError, OSError) as error:
                faults.note("spill", error)
                continue
            if claim is not None:  # else its process is alive
                self._waiting.append((found, claim))

    def send(self, send: Callable[[list[bytes]], bool], most: int, now_s: float) -> None:
        """Send up to so many messages that are due."""
        if self._current is None and self._waiting:
            source, claim = self._waiting.popleft()
            self._current = Replay(source), claim
        if self._current is None:
            return
        replay, _ = self._current
        for _ in range(most):
            frames = replay.due(now_s)
            if frames is None or not send(frames):
                break
            replay.sent(now_s)
        if replay.over:
            self._finish()

    def receive(self, envelope: Envelope, now_s: float) -> None:
        """Take in an answer; those for others are passed over."""
        if self._current is not None:
            self._current[0].receive(envelope, now_s)

    def close(self) -> None:
        """Leave what is not sent to the next process."""
        if self._current is not None:
            self._waiting.append((self._current[0].source, self._current[1]))
        for _, claim in self._waiting:
            claim.release(remove=False)
        self._waiting.clear()
        self._current = None

    def _finish(self) -> None:
        if self._current is None:
            return
        replay, claim = self._current
        self._current = None
        self.num_sent += replay.num_sent
        if replay.done:
            for path in replay.source.paths:
                _remove(path)
        else:
            why = f"the aggregator refuses a session on disk: {replay.refused!a}"
            self._faults.note("spill", why)
        claim.release(remove=replay.done)
