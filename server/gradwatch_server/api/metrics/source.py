"""Where snapshots come from that metrics are read from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from gradwatch_server.api.metrics.snapshot import NodeNumbers, Snapshot, choose_labelled
from gradwatch_server.api.summaries import Summaries
from gradwatch_server.engine.view import EngineView
from gradwatch_server.notify.notifications import Notifications


class Source:
    """Takes snapshots of an engine.

    Args:
        engine: Publishes what metrics are made of.
        summaries: Its runs in short.
        refused: Kind to the number of requests that were none.
        data: The data directory, None where there is none.
        notifications: What tells the targets of alerts.
        node: Returns what is counted of a node of a cluster; None for a single process.
    """

    def __init__(
        self,
        engine: EngineView,
        summaries: Summaries,
        refused: Mapping[str, int],
        data: Path | None,
        notifications: Notifications,
        node: Callable[[], NodeNumbers] | None = None,
    ) -> None:
        self._engine = engine
        self._summaries = summaries
        self._refused = refused
        self._data = data
        self._notifications = notifications
        self._node = node

    async def look(self) -> Snapshot:
        """Return how all is, in the event loop of the summaries."""
        runs = await self._summaries.all()
        use = self._engine.budget_use
        labelled = choose_labelled(runs, use.limits.metric_runs)
        use["metric_runs"].used = len(labelled)
        targets = self._notifications.statuses()
        node = None if self._node is None else self._node()
        return Snapshot(self._engine, self._refused, self._data, runs, labelled, targets, node)
