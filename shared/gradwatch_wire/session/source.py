"""Where a session has its records from: those of this process, or those of spill files."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from gradwatch_wire.records import Welcome
from gradwatch_wire.session.send_buffer import BufferedRecord


class RecordSource(Protocol):
    """Numbered records, oldest first, some of which may be gone for ever."""

    counters: Counter[str]
    """What became of the records, for `BEAT` and for people. The session counts those `sent`."""

    def get(self, seq: int) -> BufferedRecord | None:
        """Return the record of a number, None if it is gone or was not made yet."""

    def first_from(self, seq: int) -> BufferedRecord | None:
        """Return the first record from number *seq* on, where all before it is released."""

    def release(self, acked: int) -> int:
        """Forget all up to *acked*.

        Return *acked*, or the last number there is if the aggregator claims to have more.
        """

    def resume(self, welcome: Welcome) -> int:
        """Go on after what the aggregator has stored, which may be less than it once had.

        Return the number up to which nothing has to be sent.
        """
