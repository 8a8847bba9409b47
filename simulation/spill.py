"""Spill files without the files: segments of records, of which the oldest gives way."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from gradwatch_wire.session.send_buffer import BufferedRecord

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
        """Yield the records from number *seq* on, as a file that was left behind."""
        while (item := self.find(seq)) is not None:
            yield item
            seq = item.seq + 1

    def release(self, acked: int) -> None:
        """Forget the segments that hold nothing else than what is acknowledged."""
        while len(self._segments) > 1 and self._segments[0][-1].seq <= acked:
            self._segments.popleft()
