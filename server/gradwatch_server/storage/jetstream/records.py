"""Records of the log near a place, for any thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from gradwatch_server.core.entries import Received
from gradwatch_server.storage.encoding import decode_entry
from gradwatch_server.storage.jetstream.batch import Placed
from gradwatch_server.storage.jetstream.contents import Contents
from gradwatch_server.storage.series_store import KeptRecord
from gradwatch_wire import Kind, Stats


class JetStreamRecords:
    """The statistics in the log, as the owner of the partition knows them."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    def before(self, offset: int, most: int) -> Iterator[KeptRecord]:
        """Yield the statistics up to an offset, the newest first, of the last *most* entries."""
        yield from _records(self._contents.read_back(offset - most, offset))

    def after(self, offset: int, most: int) -> Iterator[KeptRecord]:
        """Yield the statistics after an offset, oldest first, of the next *most* entries."""
        yield from _records(self._contents.read(offset, offset + most))

    def of_session(self, session: bytes, offset: int, most: int) -> Iterator[KeptRecord]:
        """Yield those of one session, the newest first, of the last *most* entries."""
        entries = self._contents.read_back(offset - most, offset)
        yield from _records(own for own in entries if own[1].session == session)


def _records(entries: Iterable[Placed]) -> Iterator[KeptRecord]:
    for offset, encoded in entries:
        if encoded.kind != Kind.STATS:
            continue
        with suppress(Exception):  # what cannot be read is told where the log is applied
            body = decode_entry(encoded).body
            if isinstance(body, Received) and isinstance(body.envelope.record, Stats):
                session, stats = body.envelope.session, body.envelope.record
                yield KeptRecord(offset, encoded.received_ns, session, stats)
