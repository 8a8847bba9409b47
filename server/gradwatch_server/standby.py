"""Wait for the lease of a PostgreSQL database while another node has it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from http import HTTPStatus
from socket import socket
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import uvicorn
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gradwatch_server.api.connection_limits import ConnectionLimits
from gradwatch_server.api.problems import Json, Problem
from gradwatch_server.core.alerting.alert import isotime
from gradwatch_server.errors import GradwatchError
from gradwatch_server.http_server import http_config, quiet_signals
from gradwatch_server.settings import Settings
from gradwatch_wire import __version__

if TYPE_CHECKING:
    from gradwatch_server.stores import Lease, Node

logger = logging.getLogger(__name__)

RETRY_AFTER_S: Final = 3
"""Seconds after which whoever was refused may ask again: a lease."""

_OF_THIS_NODE: Final = frozenset({"/readyz", "/metrics"})
"""Paths that are asked of each node: the numbers of another one would be taken for its own."""

_IN_A_URL: Final = ":/%#?=@[]!$&'()*+,;"


class Standby:
    """A node without the lease: it answers HTTP only, and asks once a second."""

    def __init__(self, lease: Lease, holder: Node) -> None:
        self._lease = lease
        self._holder: Node | None = holder
        self._fault = ""

    def wait(self, settings: Settings, limits: ConnectionLimits, listening: socket) -> bool:
        """Return True once this node has the lease, False if it was told to stop."""

        async def ask() -> None:
            if not server.should_exit:
                await asyncio.to_thread(self._ask)
                server.should_exit = self._holder is None

        server = uvicorn.Server(http_config(settings, self, limits, ask))
        with quiet_signals(server):
            server.run(sockets=[listening.dup()])  # it closes what it is given
        return self._holder is None

    def _ask(self) -> None:
        try:
            self._holder = self._lease.acquire()
        except GradwatchError as error:
            if not self._fault:
                logger.error("cannot ask %s for the lease: %s", self._lease.name, error)
            self._fault = str(error)
        else:
            self._fault = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer `/healthz`, and say of all else which node has it."""
        if scope["type"] == "http":
            await self._answer(scope["path"], scope["query_string"])(scope, receive, send)

    def _answer(self, path: str, query: bytes) -> Response:
        if path == "/healthz":
            now = isotime(time.time_ns())
            boot = self._lease.node
            return Json({"status": "waiting", "version": __version__, "boot": boot, "now": now})
        http = "" if self._holder is None else self._holder.http
        who = f"the node at {http} has the lease" if http else "another node has the lease"
        # Whoever asks need not know where the database is; the log says why.
        reason = (
            "; the database cannot be asked now" if self._fault else f"; ask {http or 'that one'}"
        )
        problem = Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"this node waits: {who}{reason}")
        problem.headers["Retry-After"] = str(RETRY_AFTER_S)
        if http and path not in _OF_THIS_NODE:
            problem.status_code = HTTPStatus.TEMPORARY_REDIRECT
            problem.headers["Location"] = quote(f"{http}{path}", safe=_IN_A_URL)
            if query:
                problem.headers["Location"] += f"?{query.decode('latin-1')}"
        return problem


def wait_for_lease(
    lease: Lease,
    settings: Settings,
    limits: ConnectionLimits,
    listening: socket,
    on_wait: Callable[[], None],
) -> bool:
    """Return True once this node has the lease, False if it was told to stop before.

    Raises:
        StorageError: If the database cannot be reached, or refuses.
    """
    holder = lease.acquire()
    if holder is None:
        return True
    logger.info("waiting: another node has the lease of %s", lease.name)
    on_wait()
    return Standby(lease, holder).wait(settings, limits, listening)
