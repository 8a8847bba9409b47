"""The HTTP side, put together: it reads views and the alert store, never the engine's state."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradwatch_server.api import problems
from gradwatch_server.api.alert_stream import AlertStream
from gradwatch_server.api.connection_limits import ConnectionLimits
from gradwatch_server.api.curve_reads import CurveReads
from gradwatch_server.api.listing import RunListing
from gradwatch_server.api.metrics import exposition
from gradwatch_server.api.metrics.metric import Snapshot
from gradwatch_server.api.routes import ROUTERS
from gradwatch_server.api.security.access import MCP_PATH, STREAM_SUFFIX
from gradwatch_server.api.security.stream_limit import StreamLimit
from gradwatch_server.api.security.stream_tokens import StreamTokens
from gradwatch_server.api.state import ApiState
from gradwatch_server.api.views import Views
from gradwatch_server.engine.engine import Engine
from gradwatch_server.notify.notifications import Notifications
from gradwatch_server.page.routes import make_routes
from gradwatch_server.storage.alert_events import AlertEvents
from gradwatch_wire import __version__

logger = logging.getLogger(__name__)


async def refuse_unknown(request: Request) -> None:
    """Refuse a request with a query parameter that its route does not take."""
    route: Any = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return
    known = _names(route.dependant)
    if route.path.endswith(STREAM_SUFFIX):
        known.add("token")  # which was looked at before
    for name in request.query_params:
        if name not in known:
            allowed = ", ".join(sorted(known)) or "no parameter"
            raise HTTPException(422, f"query: {name[:80]!a} is not known here; allowed: {allowed}")


def _names(dependant: Dependant) -> set[str]:
    names = {field.alias for field in dependant.query_params}
    return names.union(*map(_names, dependant.dependencies)) if dependant.dependencies else names


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiParts:
    """Optional parts that the API uses beside the engine and the alert events."""

    stream_tokens: StreamTokens = field(default_factory=StreamTokens)
    connection_limits: ConnectionLimits | None = None
    notifications: Notifications = field(default_factory=Notifications)
    data: Path | None = None


def make_app(
    engine: Engine,
    alert_events: AlertEvents,
    alert_stream: AlertStream,
    parts: ApiParts | None = None,
) -> FastAPI:
    parts = parts or ApiParts()
    limits = parts.connection_limits
    views = Views(engine)
    listing, rendering = RunListing(engine, views), asyncio.Lock()
    refused = limits.refused if limits is not None else {}

    async def metrics() -> bytes:
        async with rendering:  # one at a time, for it takes a core
            runs, targets = await listing.all(), parts.notifications.statuses()
            snapshot = Snapshot(engine, refused, parts.data, runs, targets)
            return await run_in_threadpool(exposition.render, snapshot)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        alert_stream.start()
        async with assistants.running():
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
    app.state.shared = ApiState(
        engine=engine,
        alert_events=alert_events,
        alert_stream=alert_stream,
        views=views,
        listing=listing,
        metrics=metrics,
        notifications=parts.notifications,
        curve_reads=CurveReads(),
        stream_tokens=parts.stream_tokens,
        stream_limit=StreamLimit(engine.budget_use, None if limits is None else limits.most),
    )
    problems.install(app)
    for router in ROUTERS:
        app.include_router(router)
    assistants = AssistantsEndpoint(app)
    app.router.routes += [Route(MCP_PATH, assistants, methods=["POST"]), *make_routes()]
    return app


TOOLS: Final = "gradwatch_server.api.assistants.tools"
"""Module behind `/mcp`. Its package is imported with the first request: that takes a second."""

MISSING: Final = "here are no tools for assistants: pip install 'gradwatch[mcp]'; else see the log"


class AssistantsEndpoint:
    """`/mcp`: answers assistants with what the app answers over HTTP."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._is_asked = asyncio.Event()
        self._is_ready = asyncio.Event()
        self._tools: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or say what is not installed."""
        self._is_asked.set()
        await self._is_ready.wait()
        app = self._tools or problems.Problem(501, MISSING)
        with contextlib.suppress(ClientDisconnect):  # who asked has gone: nobody waits
            # Read before the library does, which logs a body that breaks off as an error.
            body = [{"type": "http.request", "body": await Request(scope, receive).body()}]

            async def received() -> Message:
                return body.pop() if body else await receive()

            await app(scope, received, send)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer requests within this context."""
        serving = asyncio.create_task(self._serve())
        yield
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving

    async def _serve(self) -> None:
        await self._is_asked.wait()
        try:
            module = await run_in_threadpool(import_module, TOOLS)
            async with module.serving(self._app) as self._tools:
                self._is_ready.set()
                await asyncio.Event().wait()  # until it is cancelled
        except ModuleNotFoundError as error:
            logger.warning("no tools for assistants: %s", error)
        except Exception:
            logger.exception("the tools for assistants failed")
        finally:
            self._tools = None
            self._is_ready.set()
