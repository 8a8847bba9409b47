"""The lease of a node: a key that goes unless it is renewed, with what the node says of itself.

It also tells for how long leases could be renewed: one that is gone says that its node is, if the
others could renew theirs all the time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

from gradwatch_server.cluster.ownership.clocks import Clocks
from gradwatch_server.cluster.ownership.node_record import (
    NodeRecord,
    decode_lease_s,
    decode_node,
    decode_now_ns,
)
from gradwatch_server.cluster.ownership.renewals import Renewals
from gradwatch_server.nats.key_value import KeyEntry, KeyValue

RENEWALS: Final = 4
"""How often a lease is renewed within its time, and tried to be renewed: it outlives two tries in a
row that get no answer."""

PROMPT: Final = 2
"""An answer that takes longer than this part of a lease is as much of a sign as none: that of
another node, which was about to be renewed as well, may have run out in that time."""


class Lease:
    """That of one node. `holds`, `steady_s` and `begun_s` are for any thread.

    Args:
        record: What the node says of itself.
        bucket: The leases of all; keys go after *duration_s*, or later.
        duration_s: The time of a lease.
        clocks: What is told of the time, None if nothing.
    """

    def __init__(
        self, record: NodeRecord, bucket: KeyValue, duration_s: float, clocks: Clocks | None = None
    ) -> None:
        self._record = record
        self._bucket = bucket
        self._duration_s = duration_s
        self._clocks = clocks
        self._renewals = Renewals()
        self._revision = 0
        self._renewed_s = self._disturbed_s = float("-inf")
        self.begun_s = float("-inf")
        """Since when it holds without a gap, by the monotonic clock."""

    def holds(self) -> bool:
        """Tell whether it has not run out."""
        return time.monotonic() - self._renewed_s < self._duration_s

    def steady_s(self) -> float:
        """Return for how many seconds leases could be renewed without a gap, as far as is known."""
        if not self.holds():
            return 0.0
        return time.monotonic() - max(self.begun_s, self._disturbed_s)

    def renew(self) -> None:
        """Renew it if it is time; again if the answer came so late that it is time anew.

        Raises:
            NATSError: If that fails.
        """
        for _ in range(2):
            if time.monotonic() - self._renewed_s >= self._duration_s / RENEWALS:
                with self._asking():
                    self._write()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Note if no answer comes, or a late one."""
        asked_s, is_prompt = time.monotonic(), False
        try:
            yield
            is_prompt = time.monotonic() - asked_s < self._duration_s / PROMPT
        finally:
            if not is_prompt:
                self._disturbed_s = time.monotonic()

    def _write(self) -> None:
        """Write it; it counts from before that is asked for."""
        now_s = time.monotonic()
        now_ns = None if self._clocks is None else self._clocks.now_ns()
        value, key = self._record.encode(self._duration_s, now_ns), self._record.id
        revision = None
        if self._revision:
            revision = self._bucket.update(key, value, self._revision)
        goes_on = revision is not None and self.holds()
        if revision is None:  # the first one, or it ran out
            revision = self._bucket.create(key, value)
        if revision is None:  # an answer was lost
            entry = self._bucket.get(key)
            self._revision = 0 if entry is None else entry.revision
            return
        if not goes_on:
            self.begun_s = now_s
        self._revision, self._renewed_s = revision, now_s

    def read_all(self) -> Mapping[str, NodeRecord]:
        """Return the nodes that have a lease, by their ids.

        Raises:
            NATSError: If they cannot be read.
        """
        with self._asking():
            entries = self._bucket.entries()
        self._renewals.keep(entries)
        records = (self._take(entry) for entry in entries.values())
        found = {record.id: record for record in records if record is not None}
        if self._clocks is not None:
            self._clocks.keep(found)
        return MappingProxyType(found)

    def _take(self, entry: KeyEntry) -> NodeRecord | None:
        """Return who has the lease of an entry, None if it cannot be read or has run out."""
        value = entry.value or b""
        record = decode_node(value)
        if record is None:
            return None
        told_ns = decode_now_ns(value)
        if told_ns is not None and self._clocks is not None:
            self._clocks.note(record.id, entry.revision, told_ns)
        lease_s = decode_lease_s(value)
        return None if self._renewals.has_run_out(entry.key, entry.revision, lease_s) else record

    def give_back(self) -> None:
        """Give it back, so that others need not wait for its end.

        Raises:
            NATSError: If that fails.
        """
        self._renewed_s = float("-inf")
        if self._revision:
            self._bucket.delete(self._record.id, self._revision)
