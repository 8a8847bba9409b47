"""The owner records of all partitions, as one node knows them, and how it writes them.

They are read every now and then, and taken from whoever says what he wrote. What was lost in the
bucket, or is older there than what is known, is believed once it is read again and again.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from gradwatch_server.cluster.ownership.plan import Owner
from gradwatch_server.nats.key_value import KeyEntry, KeyValue

logger = logging.getLogger(__name__)

OLDER_READS: Final = 3
"""So many times a record has to be read as an older one until it is believed."""


class Change(NamedTuple):
    """What is written of a record.

    Args:
        revision: That of the record before, 0 without any.
        base: As `Owner` says.
    """

    revision: int
    base: int


class OwnerRecords:
    """Those of one cluster. Only `owner_of` and what is told by others are of any thread.

    Args:
        bucket: Where they are.
        partitions: How many there are.
        on_told: Called when another node said what it wrote.
    """

    def __init__(self, bucket: KeyValue, partitions: int, on_told: Callable[[], None]) -> None:
        self._bucket = bucket
        self._on_told = on_told
        self._known = {partition: Owner(None, 0) for partition in range(partitions)}
        self._lock = threading.Lock()
        self._num_older: dict[int, int] = {}
        bucket.watch(self._take)

    def owner_of(self, partition: int) -> Owner:
        """Return the record of a partition; (None, 0) if there never was one."""
        return self._known[partition]

    def all(self) -> dict[int, Owner]:
        """Return all of them, at one moment."""
        with self._lock:
            return dict(self._known)

    def read(self) -> list[int]:
        """Read all of them; return the partitions whose newer records turn out to be lost.

        A copy may lag behind once; what is older each time is all there is. So is another record of
        the same revision: it was written after an older copy was put in place of the bucket.

        Raises:
            NATSError: If they cannot be read.
        """
        entries = self._bucket.entries()
        for entry in entries.values():
            self._note(entry)
        anew = []
        for partition, owner in self.all().items():
            entry = entries.get(str(partition), KeyEntry(str(partition), None, 0))
            if entry.revision > owner.revision or _owner_of(entry) == owner:
                self._num_older.pop(partition, None)
                continue
            self._num_older[partition] = self._num_older.get(partition, 0) + 1
            if self._num_older[partition] >= OLDER_READS:
                self._begin_anew(partition, entry)
                anew.append(partition)
        return anew

    def write(self, node: str | None, changes: Mapping[int, Change]) -> dict[int, int | None]:
        """Write records by compare and swap; return their revisions, None of one that changed.

        Args:
            node: The owner of all these partitions, None if they are released.
            changes: What is changed of each.

        Raises:
            NATSError: If one of them may not be written.
        """
        writes = {
            str(partition): (json.dumps({"node": node, "base": own.base}).encode(), own.revision)
            for partition, own in changes.items()
        }
        written = self._bucket.update_all(writes)
        for key, revision in written.items():
            if revision is not None:
                self._note(KeyEntry(key, writes[key][0], revision))
        return {int(key): revision for key, revision in written.items()}

    def _take(self, entry: KeyEntry) -> None:
        """Note a record that was written just now."""
        self._note(entry)
        self._on_told()

    def _note(self, entry: KeyEntry) -> None:
        if not entry.key.isdecimal() or int(entry.key) not in self._known:
            return
        with self._lock:
            partition = int(entry.key)
            if entry.revision > self._known[partition].revision:
                self._known[partition] = _owner_of(entry)

    def _begin_anew(self, partition: int, entry: KeyEntry) -> None:
        logger.warning("the owner record of partition %d is of an older time, or lost", partition)
        self._num_older.pop(partition)
        with self._lock:
            self._known[partition] = _owner_of(entry)


def _owner_of(entry: KeyEntry) -> Owner:
    """Return what an owner record says, of this or another version."""
    try:
        plain = json.loads(entry.value or b"{}")
        node, base = plain.get("node"), int(plain.get("base", 0))
    except (ValueError, TypeError, AttributeError):
        return Owner(None, entry.revision)
    return Owner(node if isinstance(node, str) else None, entry.revision, base)
