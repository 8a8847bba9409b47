"""Spill files without the files: segments of records, of which the oldest is deleted."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from gradwatch_wire import Hello
from gradwatch_wire.session.replayed import as_replayed
from gradwatch_wire.session.send_buffer import BufferedRecord
from gradwatch_wire.session.session import Phase, Session
from gradwatch_wire.session.spill_source import SpillSource

SEGMENT_RECORDS: Final = 6


class SimulatedSpill:
    """Keeps records until their whole segment is acknowledged, as the client's do."""

    def __init__(self, max_segments: int) -> None:
        self._max_segments = max_segments
        self._segments: deque[list[BufferedRecord]] = deque()

    def add(self, item: BufferedRecord) -> None:
        """Keep a record."""
        if not self._segments or len(self._segments[-1]) == SEGMENT_RECORDS:
            if len(self._segments) == self._max_segments:
                self._segments.popleft()
            self._segments.append([])
        self._segments[-1].append(item)

    def find(self, seq: int) -> BufferedRecord | None:
        """Return the first record from number *seq* on, None if there is none."""
        found = (item for segment in self._segments for item in segment if item.seq >= seq)
        return next(found, None)

    def read_from(self, seq: int) -> Iterator[BufferedRecord]:
        """Yield the records from number *seq* on, in order."""
        while (item := self.find(seq)) is not None:
            yield item
            seq = item.seq + 1

    def release(self, acked: int) -> None:
        """Forget the segments that hold nothing else than what is acknowledged."""
        while len(self._segments) > 1 and self._segments[0][-1].seq <= acked:
            self._segments.popleft()


class SimulatedOrphan:
    """The spill files of a killed worker, and the lock on them."""

    def __init__(self, session_id: bytes, hello: Hello, spill: SimulatedSpill) -> None:
        self.rank = hello.rank
        self.is_locked = False
        self.is_over = False
        self._session_id = session_id
        self._hello = hello
        self._spill = spill
        self.session = self._resume()

    @property
    def is_stored(self) -> bool:
        """Whether everything that is in the files is stored."""
        return self.is_over and self.session.phase is not Phase.REFUSED

    def claim(self) -> SimulatedOrphan:
        """Lock it for a process, which knows nothing of how far another one came."""
        self.is_locked = True
        self.session = self._resume()
        return self

    def finish(self) -> None:
        """End it; its files are kept, since they are looked at in the end."""
        self.is_over = True

    def leave(self) -> None:
        """Leave it to the next process."""
        self.is_locked = False

    def _resume(self) -> Session[SpillSource]:
        source = SpillSource(self._spill.read_from)
        return Session(self._session_id, as_replayed(self._hello), source)
