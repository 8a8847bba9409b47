"""The HTTP side, put together: it reads snapshots and the alert store, never the engine's state."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI
from starlette.concurrency import run_in_threadpool

from gradwatch_server.api import problems
from gradwatch_server.api.alert_stream import AlertStream
from gradwatch_server.api.connection_limits import ConnectionLimits
from gradwatch_server.api.curve_reads import CurveReads
from gradwatch_server.api.metrics import Metrics
from gradwatch_server.api.notification_metrics import NotificationCollector
from gradwatch_server.api.parameters import refuse_unknown
from gradwatch_server.api.routes import ROUTERS
from gradwatch_server.api.security.stream_limit import StreamLimit
from gradwatch_server.api.security.stream_tokens import StreamTokens
from gradwatch_server.api.shared_answer import SharedAnswer
from gradwatch_server.api.state import ApiState
from gradwatch_server.api.summaries import Summaries
from gradwatch_server.engine.engine import Engine
from gradwatch_server.notify.notifications import Notifications
from gradwatch_server.page.routes import make_routes
from gradwatch_server.storage.store import AlertEventReader
from gradwatch_wire import __version__


def make_app(
    engine: Engine,
    alert_events: AlertEventReader,
    alert_stream: AlertStream,
    stream_tokens: StreamTokens | None = None,
    connection_limits: ConnectionLimits | None = None,
    notifications: Notifications | None = None,
) -> FastAPI:
    """Build the app over a running engine.

    Args:
        engine: Publishes the snapshots.
        alert_events: The stored alert events.
        alert_stream: Follows them.
        stream_tokens: Makes the tokens that open a stream.
        connection_limits: Those of the connections that it is served on.
        notifications: What tells the targets of alerts.
    """
    notifications = notifications or Notifications()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        alert_stream.start()
        yield

    app = FastAPI(
        title="gradwatch",
        version=__version__,
        summary="Which layer on which rank went wrong at which step.",
        lifespan=lifespan,
        dependencies=[Depends(refuse_unknown)],
        default_response_class=problems.Json,
        openapi_url=None,  # a route of ours gives it, which refuses what it does not know
        docs_url=None,  # its page loads scripts from a CDN; /openapi.json has it all
        redoc_url=None,
        redirect_slashes=False,  # what is not there is a problem document, whatever it ends with
    )
    summaries = Summaries(engine)
    app.state.shared = ApiState(
        engine=engine,
        alert_events=alert_events,
        alert_stream=alert_stream,
        summaries=summaries,
        metrics=share_metrics(engine, summaries, connection_limits, notifications),
        notifications=notifications,
        curve_reads=CurveReads(engine.budget_use),
        stream_tokens=stream_tokens or StreamTokens(),
        stream_limit=StreamLimit(
            engine.budget_use, None if connection_limits is None else connection_limits.most
        ),
    )
    problems.install(app)
    for router in ROUTERS:
        app.include_router(router)
    app.router.routes.extend(make_routes())
    return app


def share_metrics(
    engine: Engine,
    summaries: Summaries,
    limits: ConnectionLimits | None,
    notifications: Notifications,
) -> SharedAnswer[bytes]:
    """Return what renders `/metrics`, once for all who ask meanwhile."""
    refused = limits.refused if limits is not None else {}
    metrics = Metrics(engine, summaries, refused, [NotificationCollector(notifications)])

    async def render() -> bytes:
        await summaries.all()
        return await run_in_threadpool(metrics.render)

    return SharedAnswer(render, lambda: engine.budget_use.limits.answers_share)
