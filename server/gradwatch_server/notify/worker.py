"""The thread of one target: it reads alert events by cursor, and sends what is due."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from dataclasses import replace
from enum import StrEnum
from typing import Final

from gradwatch_server.core.printable import printable
from gradwatch_server.notify.alert_lookup import AlertLookup
from gradwatch_server.notify.deadline import Deadline
from gradwatch_server.notify.notification import AlertBody, Notification
from gradwatch_server.notify.notifiers.base import DeliveryError, Notifier
from gradwatch_server.notify.plan import NotificationBatch, NotificationQueue
from gradwatch_server.notify.policy import Policy
from gradwatch_server.notify.status import TargetStatus
from gradwatch_server.storage.alert_events import AlertEvents
from gradwatch_server.storage.deliveries import (
    DeliveryLog,
    DeliveryProgress,
    DeliveryState,
    SavedTarget,
)
from gradwatch_server.storage.rows import PAGE_EVENTS, StorageError
from gradwatch_wire.health import AlertState

logger = logging.getLogger(__name__)

LOOK_S: Final = 60.0
"""Seconds between checks of a worker that nobody wakes: the clock may have been set."""

PAUSE_S: Final = 0.05
"""Least time between two reads: what comes at once is read at once."""

PATIENCE_S: Final = 86_400.0
"""Seconds of retries of a message. A target that fails for longer gets each message once."""


FIRST_RETRY_S: Final = 1.0
MOST_RETRY_S: Final = 300.0


class DeliveryResult(StrEnum):
    """Outcome of an attempt to send a message."""

    DELIVERED = "delivered"
    FAILED = "failed"  # and is tried again
    GIVEN_UP = "given_up"


class TargetWorker:
    """Delivers to one target."""

    def __init__(
        self,
        name: str,
        notifier: Notifier,
        policy: Policy,
        events: AlertEvents,
        log: DeliveryLog,
        page_url: str | None,
    ) -> None:
        """Find out how far the target is; a new one begins at the newest event."""
        self._name = name
        self._notifier = notifier
        self._events = events
        self._log = log
        self._page_url = page_url
        saved = _resumed(log.load(name), events.newest())
        self._progress = saved.progress
        self._plan = NotificationQueue(policy, saved.entries, saved.groups)
        log.save(name, self._plan.changes(self._progress, time.time()))
        self._deadline = Deadline(f"gradwatch-notify-{name}-send")
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._retry_s = 0.0  # nothing is sent before, seconds since the epoch
        self._messages: Counter[str] = Counter()
        self._has_told = False  # of the failure that lasts
        self._has_told_storage = False
        self._standing = AlertLookup(lambda _run: None)
        self._thread = threading.Thread(
            target=self._run, name=f"gradwatch-notify-{name}", daemon=True
        )
        self.status = TargetStatus(name, notifier.name)
        self._show(time.time())

    def start(self, standing: AlertLookup) -> None:
        """Begin; *standing* says how alerts are at this moment."""
        self._standing = standing
        self._thread.start()

    def wake(self) -> None:
        """Say that there may be new events; from any thread, and it never waits."""
        self._woken.set()

    def stop(self) -> None:
        """Begin no more messages."""
        self._stopping.set()
        self._woken.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the end; a receiver that hangs is not waited for."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._woken.clear()
            now_s = time.time()
            try:
                has_more = self._read(now_s)
                self._show(now_s)  # sending may take long
                has_more |= self._send_next()
            except Exception:
                # A fault that nobody thought of must not end what people rely on.
                logger.exception("notifications to %s: they go on after a pause", self._name)
                has_more = False
                self._stopping.wait(LOOK_S)
            self._show(time.time())
            if not has_more:
                self._wait()

    def _wait(self) -> None:
        now_s = time.time()
        next_s = self.status.next_s
        wait_s = LOOK_S if next_s is None else min(max(next_s - now_s, PAUSE_S), LOOK_S)
        self._stopping.wait(PAUSE_S)
        self._woken.wait(max(wait_s - PAUSE_S, 0.0))

    def _read(self, now_s: float) -> bool:
        """Take the next events; return whether there may be more."""
        if not self._plan.has_room():
            return False
        events = self._events.after(self._progress.cursor)
        cursor = self._progress.cursor
        for event in events:
            if not self._plan.has_room():
                break
            self._plan.accept(event, now_s)
            cursor = event.cursor
        if cursor == self._progress.cursor:
            return False
        self._progress = replace(self._progress, cursor=cursor)
        self._save(now_s)
        return len(events) == PAGE_EVENTS

    def _send_next(self) -> bool:
        """Send what is due first; return whether there may be more."""
        now_s = time.time()
        if now_s < self._retry_s <= now_s + LOOK_S * 10 or self._stopping.is_set():
            return False
        batch = self._plan.due(now_s, self._progress.sending)
        if batch is None:
            return False
        batch = self._still_wanted(batch, now_s)
        if not batch.entries:
            return True
        if not batch.is_resend:
            self._progress = replace(self._progress, sending=batch.group)
            self._save(now_s)
        try:
            notice = Notification(batch, self._find, self._page_url, now_s)
            self._deadline.run(lambda: self._notifier.send(notice))
        except DeliveryError as error:
            self._failed(batch, error)
            return False
        self._delivered(batch)
        return True

    def _still_wanted(self, batch: NotificationBatch, now_s: float) -> NotificationBatch:
        """Leave out what is silenced, known or over by now, as far as that is known."""
        if batch.is_resend:  # of an alert that is not in memory nobody knows that it fires
            is_resent = self._standing.is_resent
            wanted = [
                entry for entry in batch.entries if is_resent(entry.run, entry.alert_id, now_s)
            ]
            if not wanted:
                self._plan.settled(batch, now_s)
        else:
            wanted = [entry for entry in batch.entries if self._is_wanted(entry)]
            self._plan.drop([entry for entry in batch.entries if entry not in wanted])
        return replace(batch, entries=tuple(wanted))

    def _is_wanted(self, entry: DeliveryState) -> bool:
        alert = self._standing.find(entry.run, entry.alert_id)
        if alert is None or entry.state != AlertState.FIRING or entry.is_told:
            return True
        return not (alert.silenced or alert.acknowledged)

    def _find(self, entry: DeliveryState) -> AlertBody | None:
        events = self._events.after(entry.cursor - 1, limit=1)
        return events[0].alert if events and events[0].cursor == entry.cursor else None

    def _delivered(self, batch: NotificationBatch) -> None:
        now_s = time.time()
        self._plan.settled(batch, now_s)
        self._messages[DeliveryResult.DELIVERED] += 1
        if self._has_told:
            logger.info("notifications to %s are delivered again", self._name)
        self._has_told = False
        self._retry_s = 0.0
        self._progress = DeliveryProgress(self._progress.cursor, succeeded_s=now_s)
        self._save(now_s)

    def _failed(self, batch: NotificationBatch, error: DeliveryError) -> None:
        now_s = time.time()
        since_s = self._progress.failing_since_s or now_s
        num_attempts = self._progress.num_attempts + 1
        is_doubtful = not batch.is_resend and (batch.is_again or not error.is_refused)
        gives_up = error.is_final or now_s - since_s > PATIENCE_S
        self._progress = replace(
            self._progress,
            sending=batch.group if is_doubtful and not gives_up else None,
            failing_since_s=since_s,
            num_attempts=num_attempts,
            error=str(error),
        )
        if gives_up and batch.is_resend:
            self._plan.settled(batch, now_s)
        elif gives_up:
            self._plan.drop(batch.entries)
        self._messages[DeliveryResult.GIVEN_UP if gives_up else DeliveryResult.FAILED] += 1
        self._tell(error, gives_up=gives_up)
        # Also after a refusal: the next message is most likely refused, too.
        self._retry_s = now_s + _backoff_s(num_attempts)
        self._save(now_s)

    def _tell(self, error: DeliveryError, *, gives_up: bool) -> None:
        """Log the first failure of those in a row."""
        if self._has_told:
            return
        self._has_told = True
        then = "it is given up, the next ones are tried" if gives_up else "it is tried again"
        logger.warning(
            "notifications to %s fail (told once): %s; %s", self._name, printable(str(error)), then
        )

    def _save(self, now_s: float) -> None:
        """Keep how far it is. It goes on if that fails: told twice is better than never."""
        change = self._plan.changes(self._progress, now_s)
        try:
            self._log.save(self._name, change)
        except StorageError as error:
            self._plan.keep_changes(change)
            if not self._has_told_storage:
                text = "notifications to %s may come twice after a restart (told once): %s"
                logger.warning(text, self._name, error)
            self._has_told_storage = True

    def _show(self, now_s: float) -> None:
        next_s = self._plan.next_s(now_s)
        progress = self._progress
        self.status = replace(
            self.status,
            cursor=progress.cursor,
            num_pending=self._plan.num_pending,
            num_attempts=progress.num_attempts,
            error=progress.error,
            succeeded_s=progress.succeeded_s,
            next_s=None if next_s is None else max(next_s, self._retry_s),
            messages=dict(self._messages),
        )


def _backoff_s(num_failures: int) -> float:
    """Return a random time in the upper half of what doubles with each failure, seconds.

    Random, so that targets that failed together do not come back together.
    """
    longest_s = min(MOST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(num_failures - 1, 30))
    return random.uniform(longest_s / 2, longest_s)  # noqa: S311 - no secret


def _resumed(saved: SavedTarget | None, newest: int) -> SavedTarget:
    """Return where a target goes on, given the cursor of the newest event."""
    if saved is None:
        return SavedTarget(DeliveryProgress(newest))
    if saved.progress.cursor > newest:  # of another log: the events of this one are all new
        return SavedTarget(replace(saved.progress, cursor=0, sending=None))
    return saved
