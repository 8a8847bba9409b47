"""What the routes of one app share: what they read, and what they hand out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from fastapi import Depends, HTTPException, Request

from gradwatch_server.api.alert_stream import AlertStream
from gradwatch_server.api.metrics import Metrics
from gradwatch_server.api.security.stream_limit import StreamLimit
from gradwatch_server.api.security.stream_tokens import StreamTokens
from gradwatch_server.core.views.health import health
from gradwatch_server.core.views.ranks import LastSeen
from gradwatch_server.core.views.runs import summarize_run
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.engine.commands import Command, CommandError
from gradwatch_server.engine.engine import Engine
from gradwatch_server.engine.published import PublishedState
from gradwatch_server.storage.store import AlertEventReader

MAX_NAMES: Final = 5
"""Names of runs in an error about one that is not there."""

COMMAND_TIMEOUT_S: Final = 10.0
"""Time that the engine has to do what it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiState:
    """Snapshots and the alert store, never the engine's own state.

    Args:
        engine: Publishes the snapshots.
        alert_events: The stored alert events.
        alert_stream: Follows them.
        metrics: What the engine counts, for Prometheus.
        stream_tokens: Makes the tokens that open a stream.
        stream_limit: Counts the open streams.
    """

    engine: Engine
    alert_events: AlertEventReader
    alert_stream: AlertStream
    metrics: Metrics
    stream_tokens: StreamTokens
    stream_limit: StreamLimit = field(default_factory=StreamLimit)

    @property
    def published(self) -> PublishedState:
        """What the engine published last."""
        return self.engine.published

    @property
    def last_seen(self) -> LastSeen:
        """When each session last gave a sign of life."""
        return self.published.last_seen

    def now_ns(self) -> int:
        """Return the engine's time, nanoseconds since the epoch."""
        return self.engine.clock.now_ns()

    async def command(self, command: Command) -> Any:
        """Have the engine do something; return what it answers once that is in the log.

        Raises:
            HTTPException: As the command says; 503 if the engine cannot write, or is too slow.
        """
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

    def run(self, name: str, attempt: int | None = None) -> RunView:
        """Return a run at its current attempt, or at another one.

        Raises:
            HTTPException: 404, if there is none of this name, or no such attempt is kept.
        """
        runs = self.published.runs
        view = runs.get(name)
        if view is None:
            raise HTTPException(404, f"no run {name[:80]!a}; known runs: {_known(runs)}")
        if attempt is None:
            return view
        found = view.of_attempt(attempt)
        if found is None:
            kept = ", ".join(str(own.attempt) for own in (*view.others, view))
            raise HTTPException(404, f"no attempt {attempt} of run {name[:80]!a}; kept are {kept}")
        return found

    def newest_runs(self) -> list[RunView]:
        """Return all runs, the last active one first."""
        runs = self.published.runs.values()
        return sorted(runs, key=lambda view: view.updated_ns, reverse=True)

    def health(self, view: RunView) -> dict[str, Any]:
        """Return the health of a run at this moment."""
        return health(view, self.last_seen, self.now_ns(), self.published.fault)

    def summary(self, view: RunView) -> dict[str, Any]:
        """Return a run in short at this moment."""
        return summarize_run(view, self.last_seen, self.now_ns(), self.published.fault)


def _known(runs: Mapping[str, RunView]) -> str:
    """Return some names, and how many more there are."""
    shown = ", ".join(sorted(runs)[:MAX_NAMES]) or "none yet"
    return shown if len(runs) <= MAX_NAMES else f"{shown}, and {len(runs) - MAX_NAMES} more"


async def _state(request: Request) -> ApiState:
    state: ApiState = request.app.state.shared
    return state


Api = Annotated[ApiState, Depends(_state)]
"""The type of the parameter by which a route gets it."""
