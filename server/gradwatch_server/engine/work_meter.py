"""Cost of messages after they were taken: writing and applying them, and their alerts.

The port is told, so that who costs much waits and others do not. It knows no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from gradwatch_server.core.entries import Entry, Gap, Opened, Received
from gradwatch_server.ingest.inbox import WORK_S, Inbox
from gradwatch_server.ingest.message import IngestMessage

MOST_WORK_S: Final = 0.04
"""Largest expected cost of the messages of one batch."""

WORK_PER_WRITE: Final = 4.0
"""Work for each second of writing: a batch takes a write, however little is in it."""

SMOOTHING: Final = 0.1
"""Weight of the newest write in the usual one."""

WRITE_BYTES: Final = 1 << 20
"""A batch below it takes as long to write as an empty one."""


class WorkMeter:
    """Charges peers for what their messages cost, and says how much a batch may cost."""

    def __init__(self, ingest: Inbox, peers: Mapping[bytes, bytes]) -> None:
        self.work_s = WORK_S
        """Expected cost up to which the next batch takes messages."""
        self._ingest = ingest
        self._peers = peers
        self._bytes: Counter[bytes] = Counter()  # of the batch, by peer
        self._write_s = 0.0  # what one usually takes

    def add(self, message: IngestMessage) -> None:
        self._bytes[message.peer] += len(message.raw)

    def write(self, seconds: float) -> None:
        """Charge for the write of the batch, each by his bytes."""
        self._write_s += (seconds - self._write_s) * SMOOTHING
        self.work_s = min(max(WORK_S, WORK_PER_WRITE * self._write_s), MOST_WORK_S)
        sum_bytes = max(self._bytes.total(), WRITE_BYTES)
        for peer, num_bytes in self._bytes.items():
            self._ingest.charge(peer, seconds * num_bytes / sum_bytes)
        self._bytes.clear()

    def apply(self, entries: Sequence[Entry], seconds: float) -> None:
        """Charge for entries of one run, with the alerts that came of them.

        Peers of a run pay what their messages cost on average: any of them stands for all.
        """
        for entry in entries:
            match entry.body:
                case Received(envelope):
                    session = envelope.session
                case Opened(session, _) | Gap(session, _, _):
                    pass
                case _:
                    continue
            if (peer := self._peers.get(session)) is not None:
                self._ingest.charge(peer, seconds, len(entries))
                return

    def share(self, peers: Sequence[bytes], seconds: float) -> None:
        """Charge several peers for what was done for all of them."""
        for peer in peers:
            self._ingest.charge(peer, seconds / len(peers))
