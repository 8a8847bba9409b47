"""The log of a data directory, read beside the aggregator that writes it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from gradwatch_server.storage.encoding import EncodedEntry
from gradwatch_server.storage.sqlite.checksums import is_good_entry
from gradwatch_server.storage.sqlite.read_only import ReadOnlyDatabase
from gradwatch_server.storage.sqlite.store import DATABASE_NAME

logger = logging.getLogger(__name__)

PAGE_ENTRIES: Final = 500
"""Entries read at once: the writer's WAL does not shrink during a read."""


def read_log(directory: Path) -> Iterator[EncodedEntry]:
    """Yield the entries, oldest first. A damaged one is logged and passed over.

    Raises:
        StorageError: If there is no log, or it cannot be read.
    """
    with closing(ReadOnlyDatabase(directory / DATABASE_NAME)) as db:
        after = 0
        while page := list(
            db.rows(
                "SELECT log_offset, received_ns, kind, session, payload, checksum FROM log"
                " WHERE log_offset > ? ORDER BY log_offset LIMIT ?",
                (after, PAGE_ENTRIES),
            )
        ):
            for offset, *columns, checksum in page:
                entry = EncodedEntry(*columns)
                if is_good_entry(entry, checksum):
                    yield entry
                else:
                    logger.warning("log line %d is damaged", offset)
            after = page[-1][0]
