"""The HTTP side, put together: it reads snapshots and the alert store, never the engine's state."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI

from gradwatch_server.api import problems
from gradwatch_server.api.alert_stream import AlertStream
from gradwatch_server.api.metrics import Metrics
from gradwatch_server.api.parameters import refuse_unknown
from gradwatch_server.api.routes import ROUTERS
from gradwatch_server.api.security.stream_tokens import StreamTokens
from gradwatch_server.api.state import ApiState
from gradwatch_server.engine.engine import Engine
from gradwatch_server.storage.store import AlertEventReader
from gradwatch_wire import __version__


def make_app(
    engine: Engine,
    alert_events: AlertEventReader,
    alert_stream: AlertStream,
    stream_tokens: StreamTokens | None = None,
) -> FastAPI:
    """Build the app over a running engine."""

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
        docs_url=None,  # its page loads scripts from a CDN; /openapi.json has it all
        redoc_url=None,
    )
    app.state.shared = ApiState(
        engine=engine,
        alert_events=alert_events,
        alert_stream=alert_stream,
        metrics=Metrics(engine),
        stream_tokens=stream_tokens or StreamTokens(),
    )
    problems.install(app)
    for router in ROUTERS:
        app.include_router(router)
    return app
