"""The HTTP side: reads what the engine publishes and the alert events, never the engine's state.

Routes return `Json` themselves: what FastAPI makes of a returned dict has null for NaN.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Query
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from gradwatch_server.api import problems
from gradwatch_server.api.alert_stream import AlertStream
from gradwatch_server.api.metrics import CONTENT_TYPE, Metrics
from gradwatch_server.api.security import (
    MAX_STREAMS,
    STREAM_TOKEN,
    STREAM_TOKEN_S,
    StreamLimit,
    StreamTokens,
)
from gradwatch_server.clock import Clock
from gradwatch_server.core.alerting.alert import isotime
from gradwatch_server.core.frames.gains import describe_gains
from gradwatch_server.core.views.groups import describe_groups
from gradwatch_server.core.views.health import health
from gradwatch_server.core.views.ranks import describe_ranks
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.engine.engine import Engine
from gradwatch_server.engine.published import PublishedState
from gradwatch_server.storage.store import AlertEvent, AlertEventReader
from gradwatch_wire import __version__
from gradwatch_wire.health import AlertState

Cursor = Annotated[int, Query(ge=0, lt=1 << 63, description="Cursor of the last event seen.")]
LastEventId = Annotated[
    int | None,
    Header(ge=0, lt=1 << 63, description="Cursor of the last event seen; 0 gives everything kept."),
]


UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class EventStream(StreamingResponse):
    """Server-sent events. FastAPI's own log a traceback for each subscriber that goes away."""

    media_type = "text/event-stream"

    # FastAPI reads the status off the signature when it describes the API.
    def __init__(
        self, events: AsyncIterator[str], slots: StreamLimit, status_code: int = 200
    ) -> None:
        super().__init__(events, status_code, headers=UNBUFFERED)
        self._slots = slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream, if there is a place."""
        if not self._slots.take():
            problem = problems.Problem(503, f"all {MAX_STREAMS} alert streams are taken")
            await problem(scope, receive, send)
            return
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._slots.free()


def make_app(
    engine: Engine,
    alert_events: AlertEventReader,
    feed: AlertStream,
    stream_tokens: StreamTokens | None = None,
) -> FastAPI:
    """Build the app over a running engine."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        feed.start()
        yield

    app = FastAPI(
        title="gradwatch",
        version=__version__,
        summary="Which layer on which rank went wrong at which step.",
        lifespan=lifespan,
        default_response_class=problems.Json,
        docs_url=None,  # its page loads scripts from a CDN; /openapi.json has it all
        redoc_url=None,
    )
    problems.install(app)
    _add_service_routes(app, engine)
    _add_run_routes(app, engine.published, alert_events, engine.clock)
    _add_streams(app, engine.published, feed)
    _add_stream_tokens(app, stream_tokens or StreamTokens())
    return app


def _add_service_routes(app: FastAPI, engine: Engine) -> None:
    published = engine.published

    @app.get("/healthz", summary="The process answers")
    async def healthz() -> dict[str, str | int]:
        return {"status": "ok", "version": __version__, "cursor": published.cursor}

    @app.get("/readyz", summary="Records are taken in and stored", response_model=None)
    async def readyz() -> dict[str, str] | problems.Problem:
        if published.fault is not None:
            return problems.Problem(503, published.fault)
        if not engine.is_alive():
            return problems.Problem(503, "the engine is not running")
        return {"status": "ready"}

    metrics = Metrics(engine)

    @app.get("/metrics", response_class=Response, summary="The same in numbers, for Prometheus")
    def metrics_() -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE)


def _add_run_routes(
    app: FastAPI, published: PublishedState, alert_events: AlertEventReader, clock: Clock
) -> None:
    @app.get("/runs", summary="All runs, the last one heard of first")
    async def runs() -> problems.Json:
        now = clock.now_ns()
        views = sorted(published.runs.values(), key=lambda view: view.updated_ns, reverse=True)
        return problems.Json([_summary(view, published, now) for view in views])

    @app.get("/runs/{run}", summary="One run: its attempts, ranks and layers")
    async def run_(run: str) -> problems.Json:
        view = _view(published, run)
        return problems.Json(_summary(view, published, clock.now_ns()) | _details(view))

    @app.get("/runs/{run}/health", summary="How a run is, and where it went wrong")
    async def run_health(run: str) -> problems.Json:
        return problems.Json(_health(_view(published, run), published, clock.now_ns()))

    @app.get("/runs/{run}/ranks", summary="Each rank: its state, and what was stored and lost")
    async def run_ranks(run: str) -> problems.Json:
        view = _view(published, run)
        return problems.Json(
            _named(view) | describe_ranks(view, published.last_seen, clock.now_ns())
        )

    @app.get("/runs/{run}/gains", summary="How the gradient grows from block to block")
    async def run_gains(run: str) -> problems.Json:
        view = _view(published, run)
        return problems.Json(_named(view) | describe_gains(view.gains))

    @app.get("/runs/{run}/groups", summary="Norms of the named groups, and their ratios")
    async def run_groups(run: str) -> problems.Json:
        view = _view(published, run)
        return problems.Json(_named(view) | describe_groups(view))

    @app.get("/runs/{run}/alerts", summary="Alerts of a run as they stand, newest first")
    async def run_alerts(run: str, state: AlertState | None = None) -> problems.Json:
        alerts = _view(published, run).alerts
        return problems.Json([a.to_dict() for a in alerts if state in (None, a.state)])

    @app.get("/alerts", summary="Alert events of all runs, oldest first, by cursor")
    def alerts(
        after: Cursor = 0, limit: Annotated[int, Query(ge=1, le=1000)] = 200
    ) -> problems.Json:
        return problems.Json([_event(event) for event in alert_events.after(after, most=limit)])


def _add_streams(app: FastAPI, published: PublishedState, feed: AlertStream) -> None:
    slots = StreamLimit(MAX_STREAMS)

    @app.get(
        "/alerts/stream",
        response_class=EventStream,
        summary="Alert events as they happen; Last-Event-ID resumes with none missed or doubled",
    )
    async def stream(run: str | None = None, last_event_id: LastEventId = None) -> EventStream:
        return EventStream(_follow(published, feed, last_event_id, run), slots)

    @app.get(
        "/runs/{run}/alerts/stream", response_class=EventStream, summary="The same for one run"
    )
    async def run_stream(run: str, last_event_id: LastEventId = None) -> EventStream:
        _view(published, run)
        return EventStream(_follow(published, feed, last_event_id, run), slots)


def _add_stream_tokens(app: FastAPI, stream_tokens: StreamTokens) -> None:
    @app.post(STREAM_TOKEN, summary="A token that opens a stream, for its URL; soon worthless")
    async def stream_token() -> problems.Json:
        return problems.Json({"token": stream_tokens.issue(), "expires_in_s": STREAM_TOKEN_S})


async def _follow(
    published: PublishedState, feed: AlertStream, last_event_id: int | None, run: str | None
) -> AsyncIterator[str]:
    cursor = published.cursor if last_event_id is None else await feed.resume(last_event_id)
    # Said at once, so that a subscriber knows from when on it misses nothing.
    yield f": gradwatch alerts after {cursor}\n\n"
    async for event in feed.follow(cursor, run):
        if event is None:
            yield ": ping\n\n"
        else:
            yield f"id: {event.cursor}\ndata: {json.dumps(_event(event))}\n\n"


def _view(published: PublishedState, run: str) -> RunView:
    view = published.runs.get(run)
    if view is None:
        known = ", ".join(sorted(published.runs)[:5]) or "none yet"
        raise HTTPException(404, f"no run {run[:80]!a}; known runs: {known}")
    return view


def _named(view: RunView) -> dict[str, Any]:
    return {"run": view.name, "attempt": view.attempt}


def _health(view: RunView, published: PublishedState, now: int) -> dict[str, Any]:
    return health(view, published.last_seen, now, published.fault)


def _summary(view: RunView, published: PublishedState, now: int) -> dict[str, Any]:
    report = _health(view, published, now)
    keys = ("run", "status", "attempt", "step", "updated_at", "world", "records")
    return {key: report[key] for key in keys} | {
        "score": report["score"]["last"],
        "ranks": len(view.ranks),
        "firing": report["alerts"]["firing"],
    }


def _details(view: RunView) -> dict[str, Any]:
    return {
        "created_at": isotime(view.created_ns),
        "frames": view.frames,
        "events": dict(view.events),
        "skipped_steps": view.skipped_steps,
        "attempts": [
            {
                "attempt": attempt.number,
                "started_at": isotime(attempt.started_ns),
                "world": attempt.world,
                "frames": attempt.frames,
            }
            for attempt in view.attempts
        ],
        "layers": [
            {"name": name, "numel": numel}
            for name, numel in zip(view.names, view.numel, strict=True)
        ],
    }


def _event(event: AlertEvent) -> dict[str, Any]:
    return {"cursor": event.cursor, **event.alert}
