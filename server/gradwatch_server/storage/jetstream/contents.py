"""What a log has: entries in their messages, some copied from messages that went, some deleted."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradwatch_server.storage.encoding import HEAD_KINDS
from gradwatch_server.storage.jetstream.batch import Batch, Placed
from gradwatch_server.storage.jetstream.places import Places
from gradwatch_server.storage.jetstream.subject import Subject


@dataclass(frozen=True, slots=True)
class Copied:
    """An entry whose message went.

    Args:
        kind: What it is.
        session: The session that it is of, if any.
        batch: Where its copy is.
        num_bytes: About what it takes.
    """

    kind: int
    session: bytes | None
    batch: Batch
    num_bytes: int


class Contents:
    """The entries, for any thread to read; the owner's thread changes what is deleted.

    Args:
        log: The entries as they were written.
        kept: Those that are needed still though the messages of `log` that had them went.
        deleted: Places of entries that messages have, and that are deleted.
    """

    def __init__(self, log: Subject, kept: Subject, deleted: Places) -> None:
        self.log = log
        self.kept = kept
        self._copies: dict[int, Copied] | None = None
        self._lock = threading.Lock()
        self.delete(deleted)

    def delete(self, deleted: Places) -> None:
        """Have these entries deleted, and no others."""
        self.deleted = deleted
        written = sum(
            batch.num_bytes
            * deleted.count(max(first, batch.first), min(last, batch.last))
            // batch.count
            for first, last in deleted.ranges
            for batch in self.log.batches.between(first - 1, last)
        )
        copied = sum(
            own.num_bytes for offset, own in (self._copies or {}).items() if offset in deleted
        )
        self._deleted_bytes = written + copied

    @property
    def first_offset(self) -> int:
        """Place of the first entry in `log`; of the next one if it has none."""
        batches = self.log.batches.all()
        return batches[0].first if batches else self.log.next_offset

    def read(self, after: int, upto: int) -> Iterator[Placed]:
        """Yield the entries in `(after, upto]`, oldest first."""
        before_log = min(upto, self.first_offset - 1)
        batches = self.log.batches.between(after, upto)
        for batch in self._kept_batches(after, before_log):
            yield from self._of_copies(batch, after, before_log)
        for _, entries in self.log.all_entries(batches):
            yield from self._alive(entries, after, upto)

    def read_back(self, after: int, upto: int) -> Iterator[Placed]:
        """Yield the entries in `(after, upto]`, newest first."""
        before_log = min(upto, self.first_offset - 1)
        for batch in reversed(self.log.batches.between(after, upto)):
            yield from reversed(list(self._alive(self.log.entries_of(batch), after, upto)))
        for batch in reversed(self._kept_batches(after, before_log)):
            yield from reversed(list(self._of_copies(batch, after, before_log)))

    def _kept_batches(self, after: int, upto: int) -> list[Batch]:
        return list(self.kept.batches.all()) if after < upto else []

    def _of_copies(self, batch: Batch, after: int, upto: int) -> Iterator[Placed]:
        copies = self.copies()
        for offset, entry in self._alive(self.kept.entries_of(batch), after, upto):
            copy = copies.get(offset)
            if copy is not None and copy.batch is batch:  # or it was copied once more
                yield offset, entry

    def _alive(self, entries: Sequence[Placed], after: int, upto: int) -> Iterator[Placed]:
        deleted = self.deleted
        for offset, entry in entries:
            if after < offset <= upto and offset not in deleted:
                yield offset, entry

    def copies(self) -> dict[int, Copied]:
        """Return what was copied by its place, also what is deleted; read when it is needed."""
        with self._lock:
            if self._copies is None:
                copies = dict[int, Copied]()
                for batch in self.kept.batches.all():
                    copies.update(_copied(batch, self.kept.entries_of(batch)))
                self._copies = copies
            return self._copies

    def add_copies(self, entries: Sequence[Placed]) -> None:
        """Take what was just appended to `kept`, after which it was read."""
        copies, batch = self.copies(), self.kept.batches.all()[-1]
        with self._lock:
            copies.update(_copied(batch, entries))

    def replace_copies(self, entries: Sequence[Placed]) -> None:
        """Have no copies but those that were just appended to `kept`."""
        batches = self.kept.batches.all()
        with self._lock:
            self._copies = dict(_copied(batches[-1], entries)) if entries else {}

    def heads(self, after: int, upto: int) -> Iterator[tuple[int, int, bytes | None]]:
        """Yield place, kind and session of what others cannot be read without, oldest first."""
        first = self.first_offset
        for offset, own in self.copies().items() if after < first - 1 else ():
            is_wanted = after < offset <= upto and offset < first and offset not in self.deleted
            if is_wanted and own.kind in HEAD_KINDS:
                yield offset, own.kind, own.session
        for batch in self.log.batches.between(after, upto):
            if batch.has_heads:
                for offset, entry in self._alive(self.log.entries_of(batch), after, upto):
                    if entry.kind in HEAD_KINDS:
                        yield offset, entry.kind, entry.session

    def used_bytes(self) -> int:
        """Return about how many bytes the entries take that are not deleted."""
        written = self.log.batches.num_bytes + self.kept.batches.num_bytes
        return max(written - self._deleted_bytes, 0)


def _copied(batch: Batch, entries: Sequence[Placed]) -> Iterator[tuple[int, Copied]]:
    for offset, entry in entries:
        yield offset, Copied(entry.kind, entry.session, batch, len(entry.payload or b""))
