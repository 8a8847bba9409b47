"""Shared state of the routes of one app."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

from fastapi import Depends, HTTPException, Query, Request

from gradwatch_server.addresses import endpoint_host, is_wildcard
from gradwatch_server.api.alert_stream import AlertStream
from gradwatch_server.api.curve_reads import CurveReads
from gradwatch_server.api.listing import RunListing
from gradwatch_server.api.questions import show_alert, show_attempt
from gradwatch_server.api.security.stream_limit import StreamLimit
from gradwatch_server.api.security.stream_tokens import StreamTokens
from gradwatch_server.api.views import Views
from gradwatch_server.budgets import Budgets
from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.views.health import health
from gradwatch_server.core.views.ranks import LastSeen
from gradwatch_server.core.views.runs import summarize
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.curves.reader import History
from gradwatch_server.engine.commands import Command, CommandError
from gradwatch_server.engine.engine import Engine
from gradwatch_server.engine.publishing import PublishedState
from gradwatch_server.notify.notifications import Notifications
from gradwatch_server.storage.alert_events import AlertEvents
from gradwatch_server.storage.rows import AlertEvent

MAX_NAMES: Final = 5
"""Names of runs in an error about one that is not there."""

COMMAND_TIMEOUT_S: Final = 10.0
"""Time that the engine has to do what it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiState:
    """Snapshots and the alert store, never the engine's own state."""

    engine: Engine
    alert_events: AlertEvents
    alert_stream: AlertStream
    views: Views
    listing: RunListing
    metrics: Callable[[], Awaitable[bytes]]
    notifications: Notifications
    curve_reads: CurveReads
    stream_tokens: StreamTokens
    stream_limit: StreamLimit
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def limits(self) -> Budgets:
        return self.engine.budget_use.limits

    @property
    def published(self) -> PublishedState:
        return self.engine.published

    @property
    def last_seen(self) -> LastSeen:
        return self.published.last_seen

    @property
    def ingest(self) -> str | None:
        """The endpoint that clients attach to, None where it listens on all addresses.

        Which of these a client reaches is not known here.
        """
        endpoint = self.engine.ingest_endpoint
        host = endpoint_host(endpoint)
        return None if host is not None and is_wildcard(host) else endpoint

    def now_ns(self) -> int:
        """Return the engine's time, nanoseconds since the epoch."""
        return self.engine.clock.now_ns()

    async def command(self, command: Command) -> Any:
        """Have the engine do something; return what it answers once that is in the log."""
        if self.published.fault is not None:
            raise HTTPException(503, self.published.fault)
        try:
            future = asyncio.wrap_future(self.engine.commands.submit(command))
            return await asyncio.wait_for(future, COMMAND_TIMEOUT_S)
        except CommandError as error:
            raise HTTPException(error.status, error.detail) from error
        except TimeoutError as error:
            detail = "the engine did not answer in time; it is not known whether this was done"
            raise HTTPException(503, self.published.fault or detail) from error

    def check_run(self, name: str) -> None:
        """Check that there is a run."""
        if name not in self.published.revisions:
            known = _known(self.views.names)
            raise HTTPException(404, f"no run {name[:80]!a}; known runs: {known}")

    async def run(self, name: str) -> RunView:
        """Return a run at its current attempt."""
        view = await self.views.find(name)
        if view is None:
            known = _known(self.views.names)
            raise HTTPException(404, f"no run {name[:80]!a}; known runs: {known}")
        return view

    def check_attempt(self, view: RunView, number: int | None) -> None:
        """Check that a run has an attempt."""
        if number in (None, *(attempt.number for attempt in view.attempts)):
            return
        kept = f"{view.attempts[0].number} to {view.attempts[-1].number}"
        raise HTTPException(404, f"no attempt {number} of run {view.name!a}; kept are {kept}")

    async def attempt(self, name: str, number: int | None) -> RunView:
        """Return a run at one of its attempts, the current one if it is None."""
        view = await self.run(name)
        if number is None or number == view.attempt:
            return view
        self.check_attempt(view, number)
        attempt_view = view.of_attempt(number)
        if attempt_view is None:
            async with self._asking:  # one at a time: it takes the engine's time
                attempt_view = await self.command(show_attempt(name, number))
        if attempt_view is None:  # it was forgotten just now
            raise HTTPException(404, f"no attempt {number} of run {name[:80]!a} any more")
        # What is of the run as a whole, the current one has as it is now.
        return replace(
            attempt_view,
            attempts=view.attempts,
            alerts=view.alerts,
            stored=view.stored,
            lost=view.lost,
            run_revision=view.run_revision,
        )

    async def alert(self, alert_id: str) -> tuple[Alert | None, list[AlertEvent]]:
        """Return an alert as it stands, None if it is not in memory, and its stored events."""
        events = await self.curve_reads.run(lambda: self.alert_events.of_alert(alert_id))
        if events:
            await self.views.find(events[-1].run)  # brings the run into memory
        if self.published.fault is None:
            return await self.command(show_alert(alert_id)), events
        views = self.published.views.copy().values()
        standing = (alert for view in views for alert in view.alerts if alert.id == alert_id)
        return next(standing, None), events

    def history(self, view: RunView) -> AbstractContextManager[History]:
        """Open the curves of an attempt, in a thread: reading the store may wait for the disk."""
        return self.engine.curves.history(view.name, view.attempt)

    def health(self, view: RunView) -> dict[str, Any]:
        return health(view, self.last_seen, self.now_ns(), self.published.fault)

    def summary(self, view: RunView) -> dict[str, Any]:
        return summarize(view, self.last_seen, self.now_ns(), self.published.fault).row()


def _known(runs: Sequence[str]) -> str:
    """Return some names, and how many more there are."""
    shown = ", ".join(sorted(runs)[:MAX_NAMES]) or "none yet"
    return shown if len(runs) <= MAX_NAMES else f"{shown}, and {len(runs) - MAX_NAMES} more"


async def _state(request: Request) -> ApiState:
    state: ApiState = request.app.state.shared
    return state


Api = Annotated[ApiState, Depends(_state)]
"""The type of the parameter by which a route gets it."""

Attempt = Annotated[
    int | None,
    Query(ge=1, lt=1 << 53, description="Number of an attempt; the current one by default."),
]


async def _view(run: str, api: Api, attempt: Attempt = None) -> RunView:
    return await api.attempt(run, attempt)


View = Annotated[RunView, Depends(_view)]
"""The type of the parameter by which a route gets the attempt of a run that is asked for."""
