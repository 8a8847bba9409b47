"""One subject of the stream, as the owner of its partition writes it, and any thread reads it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Final

from gradwatch_server.nats.stream import Stored, Stream
from gradwatch_server.storage.jetstream.batch import (
    Batch,
    Batches,
    Placed,
    decode_entries,
    encode_entries,
    has_heads,
)
from gradwatch_server.storage.jetstream.faults import storage_errors
from gradwatch_server.storage.jetstream.label import Label, MessageKind
from gradwatch_server.storage.store import StorageError, StorageFault

CACHE_BATCHES: Final = 16
"""Batches kept decoded: what was read is often read again at once, to be deleted."""

TRIES: Final = 3
"""How often a subject is read from its beginning before something of it counts as lost."""

FEW: Final = 4
"""So many batches are read one by one; more are read as pages."""


class Subject:
    """A chain of messages that one owner writes.

    Args:
        stream: Where it is.
        name: Its name.
        epoch: Of the owner: it writes nothing once there is a message of a higher one.
    """

    def __init__(self, stream: Stream, name: str, epoch: int) -> None:
        self._stream = stream
        self.name = name
        self._epoch = epoch
        self.batches = Batches()
        self.last_sequence = 0
        self.next_offset = 1
        self.deleted: Stored | None = None  # the newest message about what is deleted
        self._unfinished: tuple[bytes, list[Stored]] = b"", []
        self._cache: OrderedDict[int, list[Placed]] = OrderedDict()
        self._lock = threading.Lock()

    def open(self) -> None:
        """Let no earlier owner write any more, and find out what is there.

        Raises:
            StorageError: If a later owner wrote, or it cannot be read.
        """
        label = Label(kind=MessageKind.OWNER, first=0)
        with storage_errors():
            begin = self._stream.take_over(self.name, self._epoch, label.headers())
        for left in reversed(range(TRIES)):
            try:
                self._read_labels()
            except StorageError as error:
                if error.fault is not StorageFault.DAMAGED or left == 0:
                    raise
                # The owner before may have purged what was just to be read.
            else:
                if self.last_sequence >= begin:
                    return
        msg = f"{self.name} cannot be read up to message {begin}, which was written just now"
        raise StorageError(msg)

    def _read_labels(self) -> None:
        self.batches, self.last_sequence = Batches(), 0
        for stored in self._messages(0, headers_only=True):
            self._take(stored)

    def _take(self, stored: Stored) -> None:
        try:
            label = Label.of(stored.headers)
        except ValueError as error:
            msg = f"the message {stored.sequence} of {self.name} is not of a log: {error}"
            raise StorageError(msg, StorageFault.DAMAGED) from error
        if stored.epoch > self._epoch:
            msg = f"another node has taken over {self.name}: epoch {stored.epoch} wrote to it"
            raise StorageError(msg, StorageFault.GONE)
        batch = self.batches.take(label, stored)
        self.last_sequence = stored.sequence
        self.next_offset = max(self.next_offset, label.first, batch.last + 1 if batch else 0)
        if label.kind is MessageKind.DELETED:
            self.deleted = stored

    def append(self, entries: Sequence[Placed]) -> None:
        """Write entries, all or none.

        Raises:
            StorageError: If they are not written; the same call goes on where it was.
        """
        payloads = encode_entries(entries)
        label = Label(
            kind=MessageKind.ENTRIES,
            first=entries[0][0],
            count=len(entries),
            parts=len(payloads),
            has_heads=has_heads(entries),
        )
        # What is one message is written or not: there is nothing to go on with.
        digest = _digest(label, *payloads) if len(payloads) > 1 else b""
        begun = self._unfinished[1] if digest and self._unfinished[0] == digest else []
        self._unfinished = digest, begun
        for part, payload in enumerate(payloads[len(begun) :], len(begun) + 1):
            sequence = self._write(replace(label, part=part), payload)
            begun.append(Stored(sequence, num_bytes=len(payload)))
        self._unfinished = b"", []
        for part, stored in enumerate(begun, 1):
            self.batches.take(replace(label, part=part), stored)

    def append_deleted(self, payload: bytes, next_offset: int, kept_from: int) -> int:
        """Write which entries are deleted, and from which message on others are read.

        Returns:
            The sequence of the message.
        """
        label = Label(kind=MessageKind.DELETED, first=next_offset, kept_from=kept_from)
        return self._write(label, payload)

    def append_nothing(self) -> int:
        """Write a message without entries; return its sequence."""
        label = Label(kind=MessageKind.OWNER, first=self.next_offset)
        return self._write(label, b"")

    def _write(self, label: Label, payload: bytes) -> int:
        after = self.last_sequence
        with storage_errors():
            self.last_sequence = self._stream.append(
                self.name,
                payload,
                message_id=_digest(label, payload, f"{self.name} {after}".encode()).hex(),
                after=after,
                epoch=self._epoch,
                headers=label.headers(),
            )
        return self.last_sequence

    def drop_before(self, sequence: int) -> None:
        """Forget the messages before one that stays, and purge them.

        Whoever reads those that cannot be purged knows from a later message that they do not count.
        """
        self.batches.drop_before(sequence)
        self.purge(sequence)

    def purge(self, before: int) -> None:
        """Delete the messages before one that stays."""
        with storage_errors():
            self._stream.purge(self.name, before)

    def payload_of(self, sequence: int) -> bytes | None:
        """Return what is in a message, None if it was purged."""
        with storage_errors():
            stored = self._stream.get(sequence)
        return None if stored is None else stored.payload

    def entries_of(self, batch: Batch) -> list[Placed]:
        """Return the entries of a batch, none if it was purged.

        Raises:
            StorageError: If they cannot be read.
        """
        with self._lock:
            known = self._cache.get(batch.sequences[0])
        if known is not None:
            return known
        payloads = [self.payload_of(sequence) for sequence in batch.sequences]
        if None in payloads:
            self._check_dropped(batch)
            return []
        return self._decoded(batch, [own for own in payloads if own is not None])

    def all_entries(self, batches: Sequence[Batch]) -> Iterator[tuple[Batch, list[Placed]]]:
        """Yield batches that follow each other with their entries, but for those that were purged.

        Raises:
            StorageError: If they cannot be read.
        """
        left = {own.sequences[0]: own for own in batches}
        if len(batches) > FEW:
            try:
                for batch, entries in self._pages(batches):
                    del left[batch.sequences[0]]
                    yield batch, entries
            except StorageError as error:
                if error.fault is not StorageFault.DAMAGED:
                    raise
        # Few, or what was being purged as it was read, or what is missing indeed.
        yield from ((own, self.entries_of(own)) for own in left.values())

    def _pages(self, batches: Sequence[Batch]) -> Iterator[tuple[Batch, list[Placed]]]:
        place = {sequence: own for own in batches for sequence in own.sequences}
        payloads: list[bytes] = []
        for stored in self._messages(self._before(batches[0]), headers_only=False):
            batch = place.get(stored.sequence)
            if batch is None:
                continue
            if stored.sequence == batch.sequences[0]:
                payloads = []
            payloads.append(stored.payload)
            if stored.sequence == batch.sequences[-1] and len(payloads) == len(batch.sequences):
                yield batch, self._decoded(batch, payloads)
            if stored.sequence >= batches[-1].sequences[-1]:
                return

    def _check_dropped(self, batch: Batch) -> None:
        """Make sure that a batch which is not there was purged by us."""
        if batch in self.batches.between(batch.first - 1, batch.first):
            msg = f"the message {batch.sequences[0]} of {self.name} is missing"
            raise StorageError(msg, StorageFault.DAMAGED)

    def _before(self, batch: Batch) -> int:
        """Return a message before a batch, to read from there on; 0 for the oldest one."""
        before = self.batches.between(batch.first - 2, batch.first - 1)
        return before[-1].sequences[-1] if before else 0

    def _decoded(self, batch: Batch, payloads: Sequence[bytes]) -> list[Placed]:
        try:
            entries = decode_entries(payloads)
        except ValueError as error:
            msg = f"the message {batch.sequences[0]} of {self.name} is damaged: {error}"
            raise StorageError(msg, StorageFault.DAMAGED) from error
        with self._lock:
            self._cache[batch.sequences[0]] = entries
            while len(self._cache) > CACHE_BATCHES:
                self._cache.popitem(last=False)
        return entries

    def _messages(self, after: int, *, headers_only: bool) -> Iterator[Stored]:
        with storage_errors():
            messages = self._stream.read(self.name, after, headers_only=headers_only)
        while True:
            with storage_errors():
                stored = next(messages, None)
            if stored is None:
                return
            yield stored


def _digest(label: Label, *parts: bytes) -> bytes:
    """Return what is the same for the same message, and for no other one."""
    digest = blake2b(repr(label.headers()).encode(), digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.digest()
