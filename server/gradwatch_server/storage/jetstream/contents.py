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
    """

    kind: int
    session: bytes | None
    batch: Batch


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
        self.deleted = deleted
        self._copies: dict[int, Copied] | None = None
        self._lock = threading.Lock()

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
            if copies[offset].batch is batch:  # not one that was copied once more
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
        return sum(
            alive_bytes(batch, self.deleted)
            for subject in (self.log, self.kept)
            for batch in subject.batches.all()
        )


def _copied(batch: Batch, entries: Sequence[Placed]) -> Iterator[tuple[int, Copied]]:
    for offset, entry in entries:
        yield offset, Copied(entry.kind, entry.session, batch)


def alive_bytes(batch: Batch, deleted: Places) -> int:
    """Return about how many bytes those entries of a batch take that are not deleted."""
    num_deleted = min(deleted.count(batch.first, batch.last), batch.count)
    return batch.num_bytes * (batch.count - num_deleted) // batch.count
