"""Publishing: what readers see of the engine, and views of runs, which are built when one asks.

A view is built between two rounds, of committed state alone. It stays until its run has changed and
somebody asks again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Final

from gradwatch_server.clock import Clock
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.silences import Silence
from gradwatch_server.core.run import Run
from gradwatch_server.core.state import State
from gradwatch_server.core.views.snapshot import RunView, view_run
from gradwatch_server.engine.commands import CommandError
from gradwatch_server.storage.rows import Loss, StorageError

SLICE_RUNS: Final = 16
"""Views that are built in one round: each takes some 0.3 ms, and records wait for it."""

SHARE: Final = 0.2
"""Share of the engine's time that views may take."""

MAX_PAUSE_NS: Final = 2_000_000_000
"""Longest pause after views were built, whatever they cost."""

LOSS_TOLD_NS: Final = 3_600_000_000_000
"""Time for which readers are told of what the start found missing."""


@dataclass(slots=True)
class PublishedState:
    """State that readers see. Only the engine's thread writes it.

    Args:
        revisions: Run to a number that grows whenever an entry of the run is committed.
        revision: The newest of these numbers; it grows as well when a run leaves memory.
        summaries: Run to its encoded summary, of those that ended and are not in memory yet.
        views: Run to its newest view; those that nobody asked for have none.
        last_seen: Session to the time of its last sign of life, nanoseconds since the epoch.
        fault: Reason why nothing is taken in just now, None if all is well.
        loss: Loss of the store that the start found, None if nothing was lost.
    """

    revisions: dict[str, int] = field(default_factory=dict)
    revision: int = 0
    summaries: dict[str, bytes] = field(default_factory=dict)
    views: dict[str, RunView] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)
    last_seen: dict[bytes, int] = field(default_factory=dict)
    silences: tuple[Silence, ...] = ()
    fault: str | None = None
    loss: Loss | None = None
    started_ns: int = 0
    cursor: int = 0
    num_away: int = 0
    num_duplicates: int = 0
    num_apply_errors: int = 0

    def newest(self, run: str) -> RunView | None:
        """Return the view of a run if nothing was committed since it was built, else None."""
        view = self.views.get(run)
        is_newest = view is not None and view.run_revision == self.revisions.get(run)
        return view if is_newest else None

    def recent_loss(self, now_ns: int) -> Loss | None:
        """Return what the start found lost, for an hour."""
        return self.loss if now_ns - self.started_ns < LOSS_TOLD_NS else None


class Publishing:
    """Revisions of runs, and views for those who ask.

    Args:
        wake: Lets the engine begin a round; for any thread.
    """

    def __init__(
        self, state: State, published: PublishedState, clock: Clock, wake: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._state = state
        self._published = published
        self._wake = wake
        self._lock = threading.Lock()
        self._requests: dict[str, Future[RunView | None]] = {}
        self._is_closed = False
        self._changed: dict[str, None] = {}
        self._rest_until_ns = 0

    @property
    def are_waiting(self) -> bool:
        """True while a reader waits for a view."""
        return bool(self._requests)

    def request(self, run: str) -> Future[RunView | None]:
        """Return the future view of a run, from any thread; None if there is no such run.

        Several readers share one future. It fails with a `CommandError` if the engine stops, or
        the store cannot be read.
        """
        with self._lock:
            future = self._requests.get(run)
            if future is None:
                future = Future()
                future.set_running_or_notify_cancel()  # one reader cannot cancel it for all
                if self._is_closed:
                    future.set_exception(CommandError(503, "the aggregator stops"))
                    return future
                self._requests[run] = future
        self._wake()
        return future

    def find_wanted(self) -> list[str]:
        """Return the runs whose views this round builds."""
        if not self._requests or self._clock.now_ns() < self._rest_until_ns:
            return []
        with self._lock:
            return list(self._requests)[:SLICE_RUNS]

    def mark_changed(self, run: str) -> None:
        """Record that a run is not any more what readers see."""
        self._changed[run] = None

    def publish(self) -> None:
        published, runs = self._published, self._state.runs
        published.rules = self._state.rules
        published.silences = tuple(self._state.silences)
        for name in self._changed:
            published.revision += 1
            if name in runs:
                published.revisions[name] = published.revision
            else:
                published.revisions.pop(name, None)
                published.views.pop(name, None)
        self._changed.clear()

    def build(self, wanted: list[str], find: Callable[[str], Run | None]) -> None:
        """Build the views of runs, and answer those who wait for them.

        Args:
            find: Returns a run with all that is committed of it and nothing more, None if there is
                no such run; raises `StorageError` if it cannot be read.
        """
        if not wanted:
            return  # a pause goes on
        began_ns = self._clock.now_ns()
        for name in wanted:
            with self._lock:
                future = self._requests.pop(name, None)
            if future is None:  # a commit failed meanwhile, and its reader was answered then
                continue
            try:
                future.set_result(self._build(name, find))
            except StorageError as error:
                future.set_exception(CommandError(503, str(error)))
        now_ns = self._clock.now_ns()
        self._rest_until_ns = now_ns + round(min((now_ns - began_ns) / SHARE, MAX_PAUSE_NS))

    def _build(self, name: str, find: Callable[[str], Run | None]) -> RunView | None:
        view = self._published.newest(name)
        if view is None and (run := find(name)) is not None:
            view = view_run(run, run.rules, self._published.views.get(name))
            revision, now_ns = self._published.revisions[name], self._clock.now_ns()
            view = replace(view, run_revision=revision, built_ns=now_ns)
            self._published.views[name] = view
        return view

    def close(self) -> None:
        """Fail all who wait, and who comes later."""
        with self._lock:
            self._is_closed = True
            requests, self._requests = self._requests, {}
        for future in requests.values():
            future.set_exception(CommandError(503, "the aggregator stops"))
