"""Publishes the runs of a node in the ledger, each so often at most, whatever engines do."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from gradwatch_server.cluster.catalogue.summary import encode_run
from gradwatch_server.cluster.partitions.partition import Partition, Running
from gradwatch_server.cluster.repeating import Repeating
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.engine.engine import Engine
from gradwatch_server.storage.ledger import PartitionRuns
from gradwatch_server.storage.store import StorageError, StorageFault

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""How often it is looked what changed."""

EVERY_S: Final = 5.0
"""How often a run is published at most; less often where there are too many for `WORK_S`."""

WORK_S: Final = 0.1
"""How long the runs of one look may take to be worked out: engines need the processor too."""

RETRY_S: Final = 5.0
"""Pause after the ledger failed."""

STOP_S: Final = 1.0
"""How long the end waits for what is being written."""


class CataloguePublisher:
    """A thread that publishes what changed.

    Args:
        owned: Returns the partitions of the node.
    """

    def __init__(self, owned: Callable[[], Mapping[int, Partition]]) -> None:
        self._owned = owned
        self._publishers: dict[int, PartitionPublisher] = {}
        self._next = 0
        self._retry_at_s = float("-inf")
        self._looks = Repeating("catalogue", self._look, LOOK_S, STOP_S)
        self.start, self.stop = self._looks.start, self._looks.stop

    def _look(self) -> None:
        """Publish what is due, beginning where the last look came to."""
        now_s = time.monotonic()
        running = {
            number: own.running for number, own in self._owned().items() if own.running is not None
        }
        self._publishers = {
            number: self._publisher(number, own) for number, own in sorted(running.items())
        }
        if now_s < self._retry_at_s:
            return
        ahead = [number for number in self._publishers if number >= self._next]
        left_s = WORK_S
        for number in (*ahead, *(own for own in self._publishers if own < self._next)):
            self._next = number
            if left_s <= 0 or self._looks.is_stopping:
                return
            try:
                left_s -= self._publishers[number].publish(now_s, left_s)
            except StorageError as error:
                logger.debug("the runs of partition %d are not published: %s", number, error)
                if error.fault is not StorageFault.GONE:  # which is of that partition alone
                    self._retry_at_s = time.monotonic() + RETRY_S
                    return

    def _publisher(self, number: int, running: Running) -> PartitionPublisher:
        known = self._publishers.get(number)
        if known is not None and known.engine is running.engine:
            return known
        return PartitionPublisher(running.engine, running.store.runs)


class PartitionPublisher:
    """What is published of one partition.

    Args:
        engine: What evaluates it.
        runs: Where it is published.
    """

    def __init__(self, engine: Engine, runs: PartitionRuns) -> None:
        self.engine = engine
        self._runs = runs
        # Run -> the view that is published, and when: the one that waited longest first.
        self._published: dict[str, tuple[RunView, float]] = {}
        self._is_tidy = False

    def publish(self, now_s: float, work_s: float) -> float:
        """Publish what changed, as much as can be worked out in *work_s*; return what it took.

        Raises:
            StorageError: If it cannot be stored; it is due again.
        """
        views = self.engine.published.runs
        self._withdraw(views)
        began_s = time.monotonic()
        due: dict[str, RunView] = {}
        summaries: dict[str, str] = {}
        for run in self._in_order(views):
            if not self._is_due(run, views[run], now_s):
                continue
            due[run], summaries[run] = views[run], self._encode(views[run])
            if time.monotonic() - began_s > work_s:
                break
        took_s = time.monotonic() - began_s
        if summaries:
            self._runs.publish(summaries, self.engine.clock.now_ns())
        for run, view in due.items():
            self._published.pop(run, None)
            self._published[run] = view, now_s
        return took_s

    def _in_order(self, views: Mapping[str, RunView]) -> list[str]:
        new = [run for run in views if run not in self._published]
        return [*new, *(run for run in self._published if run in views)]

    def _is_due(self, run: str, view: RunView, now_s: float) -> bool:
        published, at_s = self._published.get(run, (None, float("-inf")))
        return view is not published and now_s - at_s >= EVERY_S

    def _encode(self, view: RunView) -> str:
        published = self.engine.published
        last_seen = published.last_seen.copy()  # the engine's thread writes it
        return encode_run(view, last_seen, self.engine.clock.now_ns(), published.fault)

    def _withdraw(self, views: Mapping[str, RunView]) -> None:
        """Take back the runs that are not there any more; at first those of an earlier owner."""
        before = self._published.keys() if self._is_tidy else self._runs.names()
        gone = [run for run in before if run not in views]
        if gone:
            self._runs.withdraw(gone)
        for run in gone:
            self._published.pop(run, None)
        self._is_tidy = True
