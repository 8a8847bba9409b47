"""The deliveries of a data directory, in a SQLite file beside the log."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from gradwatch_server.storage.deliveries import DeliveryLog
from gradwatch_server.storage.rows import StorageError, StorageFault
from gradwatch_server.storage.schema import DELIVERY_TABLES
from gradwatch_server.storage.sqlite.database import SQLiteDatabase
from gradwatch_server.storage.sqlite.files import quarantine
from gradwatch_server.storage.sqlite.private_files import make_private

logger = logging.getLogger(__name__)

DELIVERIES_NAME: Final = "notifications.sqlite"

_ADVICE: Final = {
    StorageFault.UNUSABLE: "or move that file away: each target then begins at the newest alert "
    "event",
    StorageFault.FULL: "make room on its disk",
}


def open_deliveries(directory: Path) -> DeliveryLog:
    """Open or create the file of a data directory; one that is damaged is set aside.

    Raises:
        StorageError: If it cannot be used, or another version of gradwatch wrote it.
    """
    path = directory / DELIVERIES_NAME
    try:
        return DeliveryLog(_open(path))
    except (OSError, StorageError) as error:
        fault = error.fault if isinstance(error, StorageError) else StorageFault.FAILED
        advice = _ADVICE.get(fault, "look after its disk, or move it away")
        msg = f"cannot open the delivery log {path}: {error}; {advice}"
        raise StorageError(msg, fault) from error


def _open(path: Path) -> SQLiteDatabase:
    make_private([path])
    try:
        return SQLiteDatabase(path, tables=DELIVERY_TABLES)
    except StorageError as error:
        if error.fault is not StorageFault.DAMAGED:
            raise
        kept = quarantine(path)
        logger.error(
            "%s is damaged (%s) and kept as %s: each target begins at the newest alert event",
            *(path, error, kept.name),
        )
        return SQLiteDatabase(path, tables=DELIVERY_TABLES)
