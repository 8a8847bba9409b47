"""`/mcp` of the app. Its package is imported with the first request: that takes a second."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from gradwatch_server.api.problems import Problem

logger = logging.getLogger(__name__)

MISSING: Final = "here are no tools for assistants: pip install 'gradwatch[mcp]'; else see the log"


class AssistantsEndpoint:
    """ASGI app that answers assistants with what another app answers over HTTP."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._is_asked = asyncio.Event()
        self._is_ready = asyncio.Event()
        self._tools: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or say what is not installed."""
        self._is_asked.set()
        await self._is_ready.wait()
        app = self._tools or Problem(501, MISSING)
        await app(scope, receive, send)

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
            module = await run_in_threadpool(import_module, f"{__package__}.tools")
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
