"""A stand-in for the log over JetStream, until there is the real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgpack

from gradwatch_server.core.entries import Entry, Opened
from gradwatch_server.nats.errors import NATSError
from gradwatch_server.nats.stream import LastSequenceError, Stored, Stream
from gradwatch_server.storage.encoding import EncodedEntry, decode_entry, encode_entry
from gradwatch_server.storage.store import EntrySize, Line, StorageError, StorageFault


def subject_of(partition: int) -> str:
    return f"log.{partition}"


def entries_in(stored: Stored) -> list[tuple[int, Entry]]:
    rows = msgpack.unpackb(stored.payload)
    first = int(stored.headers["first"])
    return [(n, decode_entry(EncodedEntry(*row))) for n, row in enumerate(rows, first)]


def epoch_of(stored: Stored) -> int:
    return int(stored.headers["epoch"])


class PartitionLog:
    def __init__(self, stream: Stream, partition: int, epoch: int) -> None:
        self._stream, self._epoch = stream, epoch
        self._subject = subject_of(partition)
        self.last_offset = 0
        self._last_seq = 0
        while True:
            for last in stream.read(self._subject, headers_only=True):
                if epoch_of(last) > epoch:
                    raise StorageError("another epoch wrote", StorageFault.GONE)
                self.last_offset = int(last.headers["first"]) + int(last.headers["count"]) - 1
                self._last_seq = last.sequence
            if self._write([]):
                return

    def _write(self, rows: list[object]) -> bool:
        headers = {
            "epoch": str(self._epoch),
            "first": str(self.last_offset + 1),
            "count": str(len(rows)),
        }
        message_id = f"{self._subject}/{self._epoch}/{self.last_offset + 1}/{len(rows) > 0}"
        try:
            self._last_seq = self._stream.append(
                self._subject,
                msgpack.packb(rows),
                message_id=message_id,
                after=self._last_seq,
                headers=headers,
            )
        except LastSequenceError:
            return False
        except NATSError as error:
            raise StorageError(str(error)) from error
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
