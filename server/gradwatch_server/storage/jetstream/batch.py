"""Batches of entries: how they are spelt in messages, and which messages have which entries."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgpack

from gradwatch_server.nats.stream import MAX_MESSAGE_BYTES, Stored
from gradwatch_server.storage.encoding import HEAD_KINDS, EncodedEntry
from gradwatch_server.storage.jetstream.label import Label, MessageKind

Placed: TypeAlias = tuple[int, EncodedEntry]
"""An entry with its place in the log."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Entries that were written together.

    Args:
        first: Place of the first one.
        count: How many they are; their places follow each other, but for those that were copied.
        sequences: The messages that have them together.
        num_bytes: What these take.
        has_heads: Whether there is an entry in it that others cannot be read without.
    """

    first: int
    count: int
    sequences: tuple[int, ...]
    num_bytes: int
    has_heads: bool

    @property
    def last(self) -> int:
        """Place of the last entry."""
        return self.first + self.count - 1


def encode_entries(entries: Sequence[Placed]) -> list[bytes]:
    """Return the payloads that have these entries together."""
    rows = [
        (offset, own.received_ns, own.kind, own.session, own.payload) for offset, own in entries
    ]
    body: bytes = msgpack.packb(rows)
    return [body[at : at + MAX_MESSAGE_BYTES] for at in range(0, len(body), MAX_MESSAGE_BYTES)]


def decode_entries(payloads: Sequence[bytes]) -> list[Placed]:
    """Return the entries that these payloads have together.

    Raises:
        ValueError: If they are not what was encoded.
    """
    try:
        rows = msgpack.unpackb(b"".join(payloads))
        return [(offset, EncodedEntry(*columns)) for offset, *columns in rows]
    except (TypeError, ValueError) as error:
        msg = f"entries cannot be decoded: {error}"
        raise ValueError(msg) from error


def has_heads(entries: Sequence[Placed]) -> bool:
    """Tell whether others cannot be read without one of these."""
    return any(own.kind in HEAD_KINDS for _, own in entries)


class Batches:
    """The batches of a subject, oldest first. One thread writes, any thread reads."""

    def __init__(self) -> None:
        self._all: list[Batch] = []
        self.num_bytes = 0
        self._parts: list[tuple[Label, Stored]] = []  # of a batch that is not complete

    def take(self, label: Label, stored: Stored) -> Batch | None:
        """Take the next message; return the batch if it completes one.

        One that stays incomplete was never committed.
        """
        if label.kept_from is not None:
            self.drop_before(label.kept_from or stored.sequence)
        if label.kind is not MessageKind.ENTRIES or label.part != len(self._parts) + 1:
            self._parts = []
        if label.kind is not MessageKind.ENTRIES or label.part != len(self._parts) + 1:
            return None
        self._parts.append((label, stored))
        if label.part < label.parts:
            return None
        sequences = tuple(own.sequence for _, own in self._parts)
        num_bytes = sum(own.num_bytes for _, own in self._parts)
        batch = Batch(label.first, label.count, sequences, num_bytes, label.has_heads)
        self._all.append(batch)
        self.num_bytes += num_bytes
        self._parts = []
        return batch

    def drop_before(self, sequence: int) -> None:
        """Forget the batches that begin before a message."""
        # Readers go on with the list that they have.
        self._all = [own for own in self._all if own.sequences[0] >= sequence]
        self.num_bytes = sum(own.num_bytes for own in self._all)

    def all(self) -> Sequence[Batch]:
        """Return all of them."""
        return self._all

    def between(self, after: int, upto: int) -> list[Batch]:
        """Return those that have entries in `(after, upto]`, oldest first."""
        own = self._all
        begin = max(bisect_right(own, after, key=lambda batch: batch.first) - 1, 0)
        end = bisect_right(own, upto, key=lambda batch: batch.first)
        return [batch for batch in own[begin:end] if batch.last > after]
