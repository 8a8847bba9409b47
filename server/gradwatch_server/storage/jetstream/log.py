"""The log of one partition, in a replicated stream."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Final, cast

from gradwatch_server.core.entries import Entry, Opened
from gradwatch_server.nats.stream import Stream
from gradwatch_server.storage.encoding import (
    HEAD_KINDS,
    SESSION_HEAD_KINDS,
    EncodedEntry,
    decode_entry,
    encode_entry,
)
from gradwatch_server.storage.jetstream.contents import Contents
from gradwatch_server.storage.jetstream.places import Places
from gradwatch_server.storage.jetstream.removal import remove
from gradwatch_server.storage.jetstream.subject import Subject
from gradwatch_server.storage.store import EntrySize, Line, StorageError, StorageFault
from gradwatch_wire import Kind

logger = logging.getLogger(__name__)

ENTRY_BYTES: Final = 40
"""About what an entry takes beside its payload."""


class JetStreamLog:
    """The entries of a partition, as its owner writes them.

    A batch is one message, or several that count together. The messages of an owner that another
    one follows are refused, so that each entry has one place for good.
    """

    def __init__(self, stream: Stream, namespace: str, partition: int, epoch: int) -> None:
        """Take the log over; no owner of a lower epoch writes to it from here on.

        Args:
            stream: Where it is.
            namespace: Begins the names of its subjects.
            partition: Number of the partition.
            epoch: Of the owner, higher than that of any owner before.

        Raises:
            StorageError: If a later owner wrote (`GONE`), there is no room for as much as a note
                (`FULL`), or it cannot be read (`FAILED`).
        """
        log = Subject(stream, f"{namespace}.log.{partition}", epoch)
        kept = Subject(stream, f"{namespace}.heads.{partition}", epoch)
        log.open()
        kept.open()
        self._last_offset = log.next_offset - 1
        self._log = log
        self.contents = Contents(log, kept, _deleted(log))

    @property
    def last_offset(self) -> int:
        """Place of the newest entry, also if it was trimmed; 0 for an empty log."""
        return self._last_offset

    def skip_to(self, offset: int) -> None:
        """Give no entry a place up to *offset*."""
        self._last_offset = max(self._last_offset, offset)
        self._log.next_offset = self._last_offset + 1

    def append(self, lines: Sequence[Line]) -> None:
        """Write lines and commit them, all or none; `last_offset` is the last one's then."""
        encoded = list(enumerate(map(encode_entry, lines), self._last_offset + 1))
        if encoded:
            self._log.append(encoded, are_next=True)
            self.skip_to(encoded[-1][0])

    def entries(self, after: int = 0) -> Iterator[tuple[int, Entry]]:
        """Yield the entries after an offset with theirs, oldest first.

        An entry that cannot be read is logged and passed over.
        """
        for offset, encoded in self.contents.read(after, self._last_offset):
            try:
                entry = decode_entry(encoded)
            except Exception as error:  # noqa: BLE001 - it must not cost the next ones
                logger.warning("log line %d cannot be read: %s", offset, error)
            else:
                yield offset, entry

    def runs(self) -> set[str]:
        """Return the names of the runs of which there is a HELLO."""
        places = [own[0] for own in self.contents.heads(0, self._last_offset)]
        names = set()
        for offset in places:
            for _, encoded in self.contents.read(offset - 1, offset):
                if encoded.kind == Kind.HELLO:
                    with contextlib.suppress(Exception):  # `entries` tells of it
                        names.add(cast("Opened", decode_entry(encoded).body).hello.run)
        return names

    def sizes(self, after: int, upto: int, most: int) -> Iterator[EntrySize]:
        """Yield the sizes of the entries in `(after, upto]`, oldest first, at most *most*."""
        for number, (offset, own) in enumerate(self.contents.read(after, upto), 1):
            yield _size(offset, own)
            if number == most:
                return

    def delete(self, offsets: Sequence[int]) -> None:
        """Delete the entries at these places, whatever they are."""
        remove(self.contents, Places.of(own for own in offsets if 0 < own <= self._last_offset))

    def trim(self, after: int, upto: int) -> None:
        """Delete the entries in `(after, upto]`, but not those that the rest is read with."""
        first, last = max(after, 0) + 1, min(upto, self._last_offset)
        heads = Places.of(own[0] for own in self.contents.heads(first - 1, last))
        copied = [
            (offset, offset)
            for offset, own in self.contents.copies().items()
            if first <= offset <= last and own.kind not in HEAD_KINDS
        ]
        written = heads.gaps(max(first, self.contents.first_offset), last)
        remove(self.contents, Places([*copied, *written]))

    def trim_sessions(self, sessions: Sequence[bytes], upto: int) -> None:
        """Delete HELLOs and manifests of sessions up to an offset."""
        gone = set(sessions)
        found = [
            offset
            for offset, kind, session in self.contents.heads(0, min(upto, self._last_offset))
            if kind in SESSION_HEAD_KINDS and session in gone
        ]
        remove(self.contents, Places.of(found))

    def used_bytes(self) -> int:
        """Return about how many bytes the entries take, once for all copies of the stream."""
        return self.contents.used_bytes()


def _size(offset: int, own: EncodedEntry) -> EntrySize:
    num_bytes = len(own.payload or b"") + ENTRY_BYTES
    return EntrySize(offset, own.received_ns, num_bytes, own.session, own.kind in HEAD_KINDS)


def _deleted(log: Subject) -> Places:
    """Return the places of the entries that are deleted, though messages have them."""
    if log.deleted is None:
        return Places()
    payload = log.payload_of(log.deleted.sequence)
    try:
        return Places.decode(payload or b"")
    except ValueError as error:
        msg = f"the message {log.deleted.sequence} of {log.name} is damaged: {error}"
        raise StorageError(msg, StorageFault.DAMAGED) from error
