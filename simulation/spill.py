"""Spill files without the files: segments of records, of which the oldest is deleted.

Each begins with the manifests so far, as the client's do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from gradwatch_wire import Hello, Kind
from gradwatch_wire.session.replayed import as_replayed
from gradwatch_wire.session.send_buffer import BufferedRecord
from gradwatch_wire.session.session import Session, SessionPhase
from gradwatch_wire.session.spill_source import SpillSource

SEGMENT_RECORDS: Final = 6


@dataclass(frozen=True, slots=True)
class _Segment:
    manifests: tuple[BufferedRecord, ...]
    records: list[BufferedRecord] = field(default_factory=list)

    def __iter__(self) -> Iterator[BufferedRecord]:
        yield from self.manifests
        yield from self.records


class SimulatedSpill:
    """Keeps records until their whole segment is acknowledged, as the client's do."""

    def __init__(self, max_segments: int) -> None:
        self._max_segments = max_segments
        self._segments: deque[_Segment] = deque()
        self._manifests: list[BufferedRecord] = []

    def add(self, item: BufferedRecord) -> None:
        if not self._segments or len(self._segments[-1].records) == SEGMENT_RECORDS:
            if len(self._segments) == self._max_segments:
                self._segments.popleft()
            self._segments.append(_Segment(tuple(self._manifests)))
        self._segments[-1].records.append(item)
        if item.kind is Kind.MANIFEST:
            self._manifests.append(item)

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
        while len(self._segments) > 1 and self._segments[0].records[-1].seq <= acked:
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
        return self.is_over and self.session.phase is not SessionPhase.REFUSED

    def claim(self) -> SimulatedOrphan:
        """Lock it for a process, which knows nothing of how far another one came."""
        self.is_locked = True
        self.session = self._resume()
        return self

    def finish(self) -> None:
        """End it; its files are kept, since they are looked at in the end."""
        self.is_over = True

    def leave(self) -> None:
        self.is_locked = False

    def _resume(self) -> Session[SpillSource]:
        source = SpillSource(self._spill.read_from)
        return Session(self._session_id, as_replayed(self._hello), source)
