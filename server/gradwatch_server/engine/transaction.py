"""The transaction of a round: entries, alert events, curves and checkpoints, all or none."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from gradwatch_server.clock import Clock
from gradwatch_server.core.alerting.silences import Silences
from gradwatch_server.core.state import State
from gradwatch_server.core.state_codec import decode, encode
from gradwatch_server.engine.curve_recorder import CurveRecorder
from gradwatch_server.engine.publishing import PublishedState
from gradwatch_server.storage.checkpointer import Checkpointer
from gradwatch_server.storage.rows import (
    LogEntry,
    NewAlertEvent,
    RunSave,
    StorageError,
    StorageFault,
)
from gradwatch_server.storage.store import Store

logger = logging.getLogger(__name__)

RETRY_S: Final = 0.5

_SILENCES: Final = "silences"

T = TypeVar("T")


def read_silences(store: Store) -> Silences:
    """Return the silences that were in force when the store was used last."""
    body = store.state.part(_SILENCES)
    try:
        return Silences() if body is None else decode(body, Silences)
    except ValueError as error:
        logger.warning("the silences cannot be read: %s", error)
        return Silences()


def retry_write(
    write: Callable[[], T],
    published: PublishedState,
    stopping: threading.Event,
    wait: Callable[[float, threading.Event], object],
) -> T | None:
    """Write, and try again while the store cannot; return the result, None if stopped before.

    Args:
        wait: Called between attempts, with the seconds until the next and what ends the wait.

    Raises:
        StorageError: If the store is gone, which no waiting mends.
    """
    while True:
        try:
            written = write()
        except StorageError as error:
            if error.fault is StorageFault.GONE:
                raise
            if published.fault is None:
                logger.error("the log cannot be written, nothing is acknowledged: %s", error)
            published.fault = f"the log cannot be written: {error}"
            wait(RETRY_S, stopping)
            if stopping.is_set():
                return None
        else:
            if published.fault is not None:
                logger.warning("the log can be written again")
                published.fault = None
            return written


@dataclass(kw_only=True)
class Transaction:
    """Commits what rounds fold into the state."""

    store: Store
    state: State
    checkpointer: Checkpointer
    recorder: CurveRecorder
    published: PublishedState
    clock: Clock
    stopping: threading.Event
    wait: Callable[[float, threading.Event], object]
    _silences_version: int = 0

    def __post_init__(self) -> None:
        self._silences_version = self.state.silences.version

    @property
    def has_unsaved_silences(self) -> bool:
        """Presence of changed silences: one that fits no run yet is in no run's log."""
        return self.state.silences.version != self._silences_version

    def commit(
        self, lines: Sequence[LogEntry], events: Sequence[NewAlertEvent], saves: Sequence[RunSave]
    ) -> bool:
        """Commit entries, the alert events that come of them, and runs to be saved.

        Return False if the engine is stopped before.

        Raises:
            StorageError: If the store is gone.
        """
        self.recorder.save_open(save.run for save in saves)

        def write() -> int:
            nonlocal saves
            try:
                return self._write(lines, events, saves)
            except StorageError as error:
                if not saves or error.fault is StorageFault.GONE:
                    raise
                self.checkpointer.put_off(self.clock.now_ns(), error)
            saves = ()  # they can wait, and must not keep records from being written
            return self._write(lines, events, saves)

        cursor = retry_write(write, self.published, self.stopping, self.wait)
        if cursor is None:
            return False
        self.published.cursor = cursor
        self._silences_version = self.state.silences.version
        self.checkpointer.committed()
        self.checkpointer.saved(saves, self.state)
        self.recorder.committed()
        return True

    def _write(
        self, lines: Sequence[LogEntry], events: Sequence[NewAlertEvent], saves: Sequence[RunSave]
    ) -> int:
        """Write once; return the cursor of the newest alert event."""
        store = self.store
        silences = {_SILENCES: encode(self.state.silences)} if self.has_unsaved_silences else {}
        with store.transaction():
            store.log.append(lines)
            self.recorder.write()
            self.checkpointer.write_forgotten(self.clock.now_ns())
            store.state.save(silences, saves)
            return store.alert_events.add(events) if events else self.published.cursor
