"""A stand-in for the log over JetStream, until there is the real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgpack

from gradwatch_server.core.entries import Entry, Opened
from gradwatch_server.storage.encoding import EncodedEntry, decode_entry, encode_entry
from gradwatch_server.storage.store import EntrySize, Line, StorageError, StorageFault
from simulation.nodes.stream import Append, Stored


class Stream(Protocol):
    def append(self, append: Append) -> int | None: ...
    def last(self, subject: str) -> Stored | None: ...
    def read(self, subject: str, after: int = 0) -> Sequence[Stored]: ...


def subject_of(partition: int) -> str:
    return f"log.{partition}"


def entries_in(stored: Stored) -> list[tuple[int, Entry]]:
    rows = msgpack.unpackb(stored.message.payload)
    first = int(stored.message.headers["first"])
    return [(n, decode_entry(EncodedEntry(*row))) for n, row in enumerate(rows, first)]


def epoch_of(stored: Stored) -> int:
    return int(stored.message.headers["epoch"])


class PartitionLog:
    def __init__(self, stream: Stream, partition: int, epoch: int) -> None:
        self._stream, self._epoch = stream, epoch
        self._subject = subject_of(partition)
        self.last_offset = 0
        self._last_seq = 0
        while True:
            last = stream.last(self._subject)
            if last is not None:
                if epoch_of(last) > epoch:
                    raise StorageError("another epoch wrote", StorageFault.GONE)
                headers = last.message.headers
                self.last_offset = int(headers["first"]) + int(headers["count"]) - 1
                self._last_seq = last.seq
            if self._write([]):
                return

    def _write(self, rows: list[object]) -> bool:
        headers = {
            "epoch": str(self._epoch),
            "first": str(self.last_offset + 1),
            "count": str(len(rows)),
        }
        message_id = f"{self._subject}/{self._epoch}/{self.last_offset + 1}/{len(rows) > 0}"
        seq = self._stream.append(
            Append(self._subject, msgpack.packb(rows), headers, message_id, self._last_seq)
        )
        if seq is None:
            return False
        self._last_seq = seq
        self.last_offset += len(rows)
        return True

    def append(self, lines: Sequence[Line]) -> None:
        rows = [
            (own.received_ns, own.kind, own.session, own.payload)
            for own in map(encode_entry, lines)
        ]
        if not self._write(list(rows)):
            raise StorageError("another owner writes the log", StorageFault.GONE)

    def skip_to(self, offset: int) -> None:
        self.last_offset = max(self.last_offset, offset)

    def entries(self, after: int = 0) -> Iterator[tuple[int, Entry]]:
        for stored in self._stream.read(self._subject):
            yield from ((offset, entry) for offset, entry in entries_in(stored) if offset > after)

    def runs(self) -> set[str]:
        bodies = [entry.body for _, entry in self.entries()]
        return {body.hello.run for body in bodies if isinstance(body, Opened)}

    def sizes(self, after: int, upto: int, most: int) -> Iterator[EntrySize]:
        return iter(())

    def delete(self, offsets: Sequence[int]) -> None: ...
    def trim(self, after: int, upto: int) -> None: ...
    def trim_sessions(self, sessions: Sequence[bytes], upto: int) -> None: ...


NewLog = Callable[[Stream, int, int], PartitionLog]
