"""All targets of an aggregator, each with a thread of its own: one that hangs delays no other."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final, Self

from gradwatch_server.notify.alert_lookup import AlertLookup
from gradwatch_server.notify.notifiers.base import Notifier
from gradwatch_server.notify.settings import Targets
from gradwatch_server.notify.status import TargetStatus
from gradwatch_server.notify.worker import TargetWorker
from gradwatch_server.storage.alert_events import AlertEvents
from gradwatch_server.storage.deliveries import DeliveryLog

STOP_S: Final = 1.0
"""Seconds that the end waits for messages on their way; they are kept in the store."""


class Notifications:
    """Tells the targets of alert events, as they are stored. Threads of its own do the work."""

    def __init__(self, workers: Sequence[TargetWorker] = ()) -> None:
        self._workers = workers

    @classmethod
    def to(
        cls,
        targets: Targets,
        notifiers: Mapping[str, Notifier],
        events: AlertEvents,
        log: DeliveryLog,
        page_url: str | None,
    ) -> Self:
        """Return those of some targets, not started.

        Args:
            page_url: Where the page is, for links; None if nobody knows.
        """
        log.keep_only(targets.root)
        return cls(
            [
                TargetWorker(name, notifiers[name], target.policy(), events, log, page_url)
                for name, target in targets.root.items()
            ]
        )

    def start(self, standing: AlertLookup) -> None:
        """Begin; *standing* says how alerts are at this moment."""
        for worker in self._workers:
            worker.start(standing)

    def wake(self) -> None:
        """Say that events were stored; from any thread, and it never waits."""
        for worker in self._workers:
            worker.wake()

    def stop(self) -> None:
        """End it: what is not delivered goes out at the next start."""
        for worker in self._workers:
            worker.stop()
        until_s = time.monotonic() + STOP_S
        for worker in self._workers:
            worker.join(max(until_s - time.monotonic(), 0.0))

    def statuses(self) -> list[TargetStatus]:
        """Return how each target is, in the order in which they are set."""
        return [worker.status for worker in self._workers]


def make_notifiers(targets: Targets) -> dict[str, Notifier]:
    """Return what sends to each target, by its name.

    Raises:
        GradwatchError: If a URL is missing or wrong, or a library is.
    """
    return {name: target.notifier(name) for name, target in targets.root.items()}
