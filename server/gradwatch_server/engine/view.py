"""What readers see of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Protocol

from prometheus_client import Histogram

from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.clock import Clock
from gradwatch_server.engine.commands import Command
from gradwatch_server.engine.published import PublishedState
from gradwatch_server.engine.run_commands import Deletions
from gradwatch_server.series.history import History
from gradwatch_server.storage.series_store import Records


class MetricsView(Protocol):
    """What was counted and timed."""

    @property
    def stored(self) -> int:
        """Records that were stored."""

    @property
    def lost(self) -> int:
        """Records that were lost before."""

    @property
    def stored_bytes(self) -> int:
        """Bytes of those that were stored."""

    @property
    def log_write(self) -> Histogram:
        """How long writing took."""

    @property
    def lag(self) -> Histogram:
        """How long an acknowledgement took."""


class CommandsView(Protocol):
    """Takes commands."""

    def submit(self, command: Command) -> Future[Any]:
        """As `Commands.submit`."""


class SeriesView(Protocol):
    """The curves."""

    def history(self, run: str, attempt: int) -> AbstractContextManager[History]:
        """As `SeriesRecorder.history`."""


class EngineView(Protocol):
    """For any thread; `Engine` is one."""

    @property
    def boot_id(self) -> bytes:
        """Tells this start from others."""

    @property
    def clock(self) -> Clock:
        """Gives the time."""

    @property
    def published(self) -> PublishedState:
        """What was published last."""

    @property
    def commands(self) -> CommandsView:
        """Takes what people ask for."""

    @property
    def metrics(self) -> MetricsView:
        """What was counted and timed."""

    @property
    def budget_use(self) -> BudgetUse:
        """What peers may use, and do."""

    @property
    def refused(self) -> Mapping[str, int]:
        """Kind to the number of messages that were not taken."""

    @property
    def ingest_endpoint(self) -> str:
        """Where clients attach."""

    @property
    def records(self) -> Records:
        """The statistics in the log."""

    @property
    def deletions(self) -> Deletions:
        """Deletes runs."""

    @property
    def series(self) -> SeriesView:
        """The curves."""

    def is_alive(self) -> bool:
        """Tell whether it runs."""
