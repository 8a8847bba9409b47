"""All engines of a node as one, for the answers that are of no run: what it owns, in sum."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, NoReturn

from prometheus_client import Histogram

from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.clock import Clock
from gradwatch_server.cluster.alerts.silences import ClusterSilences
from gradwatch_server.cluster.messages.gateway import Gateway
from gradwatch_server.cluster.partitions.host import Host
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.engine.alert_commands import AddSilence, RemoveSilence
from gradwatch_server.engine.commands import Command, CommandError
from gradwatch_server.engine.engine import Engine
from gradwatch_server.engine.metrics import Timings
from gradwatch_server.engine.published import PublishedState
from gradwatch_server.engine.run_commands import Deletions
from gradwatch_server.series.history import History
from gradwatch_server.storage.series_store import Records
from gradwatch_wire.limits import BOOT_ID_BYTES


class NodeView:
    """An `EngineView` of the partitions that a node owns.

    Args:
        host: Owns them.
        has_lease: Tells whether it does for sure; if not, nothing is said of their runs.
        gateway: What clients of the node are attached to.
        rules: Those that were set.
        budget_use: What the node itself uses.
        timings: Those of all its engines.
        cursor: Returns that of the newest alert event that is known of.
        fault: Returns why the node takes nothing in, None if it does.
        pool: Runs what waits.
    """

    def __init__(
        self,
        host: Host,
        has_lease: Callable[[], bool],
        gateway: Gateway,
        rules: Rules,
        budget_use: BudgetUse,
        timings: Timings,
        cursor: Callable[[], int],
        fault: Callable[[], str | None],
        pool: Executor,
    ) -> None:
        self.boot_id = os.urandom(BOOT_ID_BYTES)
        self.clock = Clock()
        self.ingest_endpoint = gateway.endpoint
        self.rules = rules
        self._started_ns = self.clock.now_ns()
        self._host = host
        self._has_lease = has_lease
        self._gateway = gateway
        self._use = budget_use
        self._timings = timings
        self._cursor = cursor
        self._fault = fault
        self._pool = pool
        self.silences: ClusterSilences
        """Those of all partitions; put here before anybody asks."""

    def engines(self) -> Iterator[Engine]:
        """Yield those that run."""
        for partition in self._host.owned.values():
            if (running := partition.running) is not None:
                yield running.engine

    @property
    def published(self) -> PublishedState:
        """What all engines published last."""
        state = PublishedState(
            rules=self.rules,
            fault=self._fault(),
            started_ns=self._started_ns,
            cursor=self._cursor(),
            silences=self.silences.all,
        )
        runs: dict[str, Any] = {}
        has_lease = self._has_lease()
        for engine in self.engines():
            own = engine.published
            if has_lease:
                runs |= own.runs
                state.last_seen |= own.last_seen.copy()
            state.loss = state.loss or own.loss
            state.num_duplicates += own.num_duplicates
            state.num_apply_errors += own.num_apply_errors
        state.runs = MappingProxyType(runs)
        return state

    @property
    def stored(self) -> int:
        """Records that were stored."""
        return sum(engine.metrics.stored for engine in self.engines())

    @property
    def lost(self) -> int:
        """Records that were lost before."""
        return sum(engine.metrics.lost for engine in self.engines())

    @property
    def stored_bytes(self) -> int:
        """Bytes of those that were stored."""
        return sum(engine.metrics.stored_bytes for engine in self.engines())

    @property
    def log_write(self) -> Histogram:
        """How long writing took."""
        return self._timings.log_write

    @property
    def lag(self) -> Histogram:
        """How long an acknowledgement took."""
        return self._timings.lag

    @property
    def metrics(self) -> NodeView:
        """Itself: what was counted and timed."""
        return self

    @property
    def refused(self) -> Mapping[str, int]:
        """Kind to the number of messages that were not taken, by the gateway or an engine."""
        counts = Counter(self._gateway.refused)
        for engine in self.engines():
            counts.update(engine.refused)
        return counts

    @property
    def budget_use(self) -> BudgetUse:
        """What is used on the node: of what is counted by engine, the most; refusals in sum."""
        whole = BudgetUse(self._use.limits)
        every = [self._use, *(engine.budget_use for engine in self.engines())]
        for name in whole:
            uses = [own[name] for own in every]
            whole[name].used = max((own.used for own in uses if own.used is not None), default=None)
            whole[name].num_evicted = sum(own.num_evicted for own in uses)
            whole[name].num_refused = sum(own.num_refused for own in uses)
        return whole

    @property
    def commands(self) -> NodeView:
        """Itself: what is of no run is done without an engine."""
        return self

    def submit(self, command: Command) -> Future[Any]:
        """Do what is asked of all partitions: silences."""
        if isinstance(command, AddSilence):
            return self._pool.submit(self.silences.add, command)
        if isinstance(command, RemoveSilence):
            return self._pool.submit(self.silences.remove, command)
        future: Future[Any] = Future()
        future.set_exception(CommandError(404, "there is none in this cluster just now"))
        return future

    @property
    def series(self) -> NodeView:
        """Itself: the curves of its runs."""
        return self

    def place(self, run: str, attempt: int) -> tuple[int, int] | None:
        """Return epoch and step of the newest row of an attempt, None if it is not here."""
        return None if (engine := self._of(run)) is None else engine.series.place(run, attempt)

    def history(self, run: str, attempt: int) -> AbstractContextManager[History]:
        """Open what there is of an attempt.

        Raises:
            CommandError: If its partition is not here.
        """
        engine = self._of(run)
        if engine is None:
            raise CommandError(503, f"run {run[:80]!a} is not on this node")
        return engine.series.history(run, attempt)

    def _of(self, run: str) -> Engine | None:
        if not self._has_lease():
            return None
        return next((own for own in self.engines() if run in own.published.runs), None)

    @property
    def records(self) -> Records:
        """None of its own: the routes that ask for them are those of a partition."""
        return _none("records")

    @property
    def deletions(self) -> Deletions:
        """Likewise."""
        return _none("deletions")

    def is_alive(self) -> bool:
        """Tell whether clients are heard."""
        return self._gateway.is_alive()


def _none(what: str) -> NoReturn:
    msg = f"{what} are of a partition"
    raise AssertionError(msg)
