"""Sequence numbers: what is new, what is a duplicate, what must be sent again, what is lost.

The aggregator alone declares loss, and only when the client says (by `low`) that it can no longer
supply a record. The tracker is ahead of the state by the entries that are not committed yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from gradwatch_wire.value import value


class SequenceResult(Enum):
    """Decision about a record."""

    ACCEPT = "accept"
    DUPLICATE = "duplicate"
    REWIND = "rewind"
    UNKNOWN = "unknown"  # of a session that never said HELLO to this log


@value()
class SequenceCheck:
    """Decision about a record, and the range of sequence numbers that is lost, if any."""

    outcome: SequenceResult
    gap: tuple[int, int] | None = None


class SequenceTracker:
    """The next expected sequence number of each session."""

    def __init__(self, acked: Mapping[bytes, int] | None = None) -> None:
        self._expected: dict[bytes, int] = {}
        self.adopt(acked or {})
        self._going_on: set[bytes] = set()  # a record of theirs was taken since the start
        self._asked: set[bytes] = set()  # whose first gap since the start was doubted

    def adopt(self, acked: Mapping[bytes, int]) -> None:
        """Go on with sessions that the log knows, each after what was accepted."""
        self._expected |= {session: seq + 1 for session, seq in acked.items()}

    def open(self, session: bytes) -> None:
        """Note a HELLO: a session that is new begins at sequence number 1."""
        self._expected.setdefault(session, 1)
        if session in self._asked:
            self._asked.remove(session)
            self._going_on.add(session)

    def is_doubtful(self, session: bytes, seq: int, low: int) -> bool:
        """Tell whether a record is not to be checked before its session said HELLO once more.

        It is the first since the start and speaks of a gap. What was on its way while the log was
        lost says what the old log had, not what the client can supply: manifests among it.
        """
        expected = self._expected.get(session)
        if expected is None or session in self._going_on or min(low, seq) <= expected:
            return False
        self._asked.add(session)
        return True

    def forget(self, session: bytes) -> None:
        """Let a session go; if it comes back it is not known."""
        self._expected.pop(session, None)
        self._going_on.discard(session)
        self._asked.discard(session)

    def accepted(self, session: bytes) -> int:
        """Return the highest sequence number below which nothing is missing, 0 if unknown."""
        return self._expected.get(session, 1) - 1

    def __len__(self) -> int:
        return len(self._expected)

    def __contains__(self, session: bytes) -> bool:
        return session in self._expected

    def check(self, session: bytes, seq: int, low: int) -> SequenceCheck:
        """Say what to do with a sequenced record; move on if it is accepted, or past lost ones."""
        expected = self._expected.get(session)
        if expected is None:
            return SequenceCheck(SequenceResult.UNKNOWN)
        if seq < expected:
            return SequenceCheck(SequenceResult.DUPLICATE)
        gap = None
        suppliable = min(low, seq)
        if suppliable > expected:
            gap = (expected, suppliable - 1)
            expected = suppliable
        if seq > expected:
            self._expected[session] = expected
            return SequenceCheck(SequenceResult.REWIND, gap)
        self._expected[session] = seq + 1
        self._going_on.add(session)
        return SequenceCheck(SequenceResult.ACCEPT, gap)
