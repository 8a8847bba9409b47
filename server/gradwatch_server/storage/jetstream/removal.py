"""Deleting entries of a log whose messages can only be purged from the oldest one on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from gradwatch_server.storage.jetstream.batch import Batch, Placed
from gradwatch_server.storage.jetstream.contents import Contents
from gradwatch_server.storage.jetstream.places import Places
from gradwatch_server.storage.store import StorageError, StorageFault

logger = logging.getLogger(__name__)

MOST_COPIED: Final = 0.25
"""Messages are purged as soon as no more than this part of their bytes has to be copied."""

SPARE_BYTES: Final = 1 << 20
"""So much that is deleted may stay among the copies."""


def remove(contents: Contents, places: Places) -> None:
    """Delete entries, all or none.

    A message at the end of the log says which ones are deleted. The oldest messages of which
    little is left are purged, after that little was copied.

    Raises:
        StorageError: If nothing is deleted.
    """
    deleted = contents.deleted | places
    if len(deleted) == len(contents.deleted):
        return
    try:
        _write(contents, deleted, MOST_COPIED)
    except StorageError as error:
        if error.fault is not StorageFault.FULL:
            raise
        # What is wholly deleted makes room. It goes whether or not the rest succeeds then, and is
        # not missed: until it is purged nothing else can be deleted.
        _purge_whole(contents, deleted)
        _write(contents, deleted, 0.0)
    _rewrite_copies(contents)


def _write(contents: Contents, deleted: Places, most_copied: float) -> None:
    log = contents.log
    old = _worth_purging(log.batches.all(), deleted, most_copied)
    left = log.batches.all()[len(old) :]
    copies = contents.copies()
    new = [own for own in _alive_in(contents, old, deleted) if own[0] not in copies]
    if new:
        contents.kept.append(new)
        contents.add_copies(new)
    first = left[0].first if left else log.next_offset
    kept = Places.of(offset for offset in copies if offset < first and offset in deleted)
    deleted = deleted.since(first) | kept
    kept_from = left[0].sequences[0] if left else 0
    sequence = log.append_deleted(deleted.encode(), log.next_offset, kept_from)
    try:
        log.drop_before(kept_from or sequence)
    except StorageError as error:  # they count no more, and go the next time
        logger.debug("messages of %s are purged later: %s", log.name, error)
    contents.delete(deleted)


def _worth_purging(batches: Sequence[Batch], deleted: Places, most_copied: float) -> list[Batch]:
    """Return the most of the oldest batches of which little enough is left."""
    total, alive, best = 0, 0.0, 0
    for number, batch in enumerate(batches, 1):
        part = 1.0 - deleted.count(batch.first, batch.last) / batch.count
        total += batch.num_bytes
        alive += batch.num_bytes * part
        if part <= most_copied and alive <= total * most_copied:
            best = number
    return list(batches[:best])


def _alive_in(contents: Contents, batches: Sequence[Batch], deleted: Places) -> list[Placed]:
    found: list[Placed] = []
    for batch in batches:
        if deleted.count(batch.first, batch.last) < batch.count:
            entries = contents.log.entries_of(batch)
            found += [own for own in entries if own[0] not in deleted]
    return found


def _purge_whole(contents: Contents, deleted: Places) -> None:
    log = contents.log
    batches = log.batches.all()
    whole = _worth_purging(batches[:-1], deleted, 0.0)  # the last one says how far the log is
    if whole:
        log.drop_before(batches[len(whole)].sequences[0])


def _rewrite_copies(contents: Contents) -> None:
    """Write the copies anew once most of them are deleted, and purge the old ones."""
    kept = contents.kept
    old = kept.batches.all()
    num_bytes = sum(batch.num_bytes for batch in old)
    if num_bytes <= SPARE_BYTES:
        return
    deleted, copies = contents.deleted, contents.copies()
    num_deleted = sum(offset in deleted for offset in copies)
    if num_deleted * 2 <= len(copies):
        return
    alive = list(contents.read(0, contents.first_offset - 1))
    try:
        if alive:
            kept.append(alive)
        begin = kept.batches.all()[-1].sequences[0] if alive else kept.append_nothing()
        kept.purge(begin)
    except StorageError as error:  # they are in the way of nobody
        logger.debug("copies of %s are written anew later: %s", kept.name, error)
        return
    contents.replace_copies(alive)
    kept.batches.drop_before(begin)
    contents.delete(contents.deleted)
