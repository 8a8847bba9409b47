"""Notifications of a cluster: the node that owns the first partition sends them for all."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gradwatch_server.cluster.catalogue.summary import decode_run
from gradwatch_server.cluster.repeating import Repeating
from gradwatch_server.notify.notifications import STOP_S, Notifications
from gradwatch_server.notify.notifiers.base import Notifier
from gradwatch_server.notify.settings import Targets
from gradwatch_server.notify.status import TargetStatus
from gradwatch_server.storage.deliveries import DeliveryLog
from gradwatch_server.storage.ledger import RunCatalogue
from gradwatch_server.storage.store import AlertEventReader, StorageError, StorageFault
from gradwatch_wire.health import AlertState

logger = logging.getLogger(__name__)

PARTITION: Final = 0
"""Whoever owns it sends notifications, with its epoch."""

LOOK_S: Final = 1.0
"""How often it is looked who is to send them."""


@dataclass(frozen=True, slots=True)
class LedgerAlert:
    """An alert as the ledger has it.

    Args:
        state: Whether it fires.
        silenced: What keeps it from being told, if anything.
        acknowledged: Who knows of it, if anybody.
        attempt: The attempt that it is of.
    """

    state: AlertState
    silenced: object
    acknowledged: object
    attempt: int


class LedgerStanding:
    """Alerts of all partitions, as the newest event of each says.

    Args:
        events: The alert events of all partitions.
        runs: What owners published of their runs.
    """

    def __init__(self, events: AlertEventReader, runs: RunCatalogue) -> None:
        self._events = events
        self._runs = runs

    def find(self, run: str, alert_id: str) -> LedgerAlert | None:  # noqa: ARG002 - ids are unique
        """Return an alert as it stands, None if that is not known."""
        try:
            events = self._events.of_alert(alert_id)
        except StorageError:
            return None
        if not events:
            return None
        plain = events[-1].alert
        return LedgerAlert(
            AlertState(plain["state"]),
            plain.get("silenced"),
            plain.get("acknowledged"),
            int(plain["attempt"]),
        )

    def is_repeated(self, run: str, alert_id: str, now_s: float) -> bool:
        """Tell whether an alert that was told fires on and is to be told again."""
        alert = self.find(run, alert_id)
        if alert is None or alert.state is not AlertState.FIRING:
            return False
        try:
            published = self._runs.get(run)
        except StorageError:
            return False
        known = None if published is None else decode_run(published)
        life = None if known is None else known.lives.get(alert.attempt)
        return life is not None and life.is_spoken_of(now_s)


class ClusterNotifications(Notifications):
    """Those of this node, as long as it sends them; a thread begins and ends them.

    Args:
        targets: As they are set.
        notifiers: What sends to each, by its name.
        events: The alert events of all partitions.
        runs: What owners published of their runs.
        open_log: Opens what is kept of notifications, with an epoch.
        page_url: As in `Notifications.to`.
        epoch: Returns that of the first partition, None if another node owns it.
        on_outranked: Told of an epoch that is in the way of that one.
    """

    def __init__(
        self,
        targets: Targets,
        notifiers: Mapping[str, Notifier],
        events: AlertEventReader,
        runs: RunCatalogue,
        open_log: Callable[[int], DeliveryLog],
        page_url: str | None,
        epoch: Callable[[], int | None],
        on_outranked: Callable[[int], None],
    ) -> None:
        super().__init__()
        self._on_outranked = on_outranked
        self._targets, self._notifiers = targets, notifiers
        self._events, self._runs = events, runs
        self._open_log, self._page_url = open_log, page_url
        self._epoch = epoch
        self._current = Notifications()
        self._current_epoch: int | None = None
        self._looks = Repeating("notifying", self._look, LOOK_S, STOP_S)  # PostgreSQL may hang

    def begin(self) -> None:
        """Begin to look whether it is on this node to send."""
        if self._notifiers:
            self._looks.start()

    def wake(self) -> None:
        """Say that events were stored."""
        self._current.wake()

    def stop(self) -> None:
        """End it."""
        self._looks.stop()
        self._current.stop()

    def statuses(self) -> list[TargetStatus]:
        """Return how each target is; none where another node sends."""
        return self._current.statuses()

    def _look(self) -> None:
        epoch = self._epoch()
        if epoch == self._current_epoch:
            return
        self._current.stop()
        self._current, self._current_epoch = Notifications(), None
        if epoch is not None:
            self._take_over(epoch)

    def _take_over(self, epoch: int) -> None:
        try:
            log = self._open_log(epoch)
            own = Notifications.to(
                self._targets, self._notifiers, self._events, log, self._page_url
            )
        except StorageError as error:
            if error.fault is not StorageFault.GONE:
                logger.error("notifications wait for the ledger: %s", error)
            elif error.epoch is not None:
                self._on_outranked(error.epoch)
            return
        own.start(LedgerStanding(self._events, self._runs))
        self._current, self._current_epoch = own, epoch
