"""The HTTP server: uvicorn, with our limits of connections."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from gradwatch_server.addresses import is_wildcard, split_address
from gradwatch_server.api.alert_stream import AlertStream
from gradwatch_server.api.connection_limits import ConnectionLimits
from gradwatch_server.api.connections import Handshake, HttpConnection
from gradwatch_server.errors import GradwatchError
from gradwatch_server.settings import Settings

LATER_S: Final = 5
"""uvicorn ends an idle connection so much later than `HttpConnection`, which counts it."""

ACCEPTS: Final = 2
"""Connections that are accepted at once: they take files until those above the limit are closed."""

GRACE_S: Final = 1
"""Seconds that open requests may take at shutdown; the streams end by themselves."""


class HttpServer(uvicorn.Server):
    """Ends the alert streams first: uvicorn waits for open responses before anything else."""

    def __init__(
        self, config: uvicorn.Config, alert_stream: AlertStream, limits: ConnectionLimits
    ) -> None:
        super().__init__(config)
        self._alert_stream = alert_stream
        self._limits = limits

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, few before one of them is looked at: uvicorn cannot set how many."""
        await super().startup(sockets=[])
        for listening in sockets or ():
            loop = asyncio.get_running_loop()
            server = await loop.create_server(self._accept, sock=listening, backlog=ACCEPTS)
            listening.listen(self.config.backlog)
            self.servers.append(server)

    def _accept(self) -> asyncio.Protocol:
        context = self.config.ssl
        if context is None:
            return self._make_connection()
        return Handshake(context, self._limits, self._make_connection)

    def _make_connection(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]  # as uvicorn does
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End the streams, and then the rest."""
        self._alert_stream.close()
        super().handle_exit(sig, frame)


class ServerStop:
    """Ends the process when what it is for fails, from any thread."""

    def __init__(self, alert_stream: AlertStream) -> None:
        self.server: HttpServer | None = None
        self._alert_stream = alert_stream
        self._has_failed = False

    def fail(self) -> None:
        self._has_failed = True
        if self.server is not None:
            self.server.should_exit = True
        self._alert_stream.close()

    def check(self, reason: str) -> None:
        """Raise *why* if that is why it ended.

        Raises:
            GradwatchError: If it failed.
        """
        if self._has_failed:
            raise GradwatchError(reason)


def http_config(
    settings: Settings,
    app: ASGIApp,
    limits: ConnectionLimits,
    every_second: Callable[[], Awaitable[None]],
) -> uvicorn.Config:
    """Return how an app is served on limited connections, and what is done once a second."""
    return uvicorn.Config(
        app,
        loop="asyncio",
        http=HttpConnection.under(limits),
        ws="none",
        timeout_keep_alive=math.ceil(limits.use.limits.http_wait_s) + LATER_S,
        callback_notify=every_second,
        timeout_notify=0,
        ssl_certfile=settings.http_tls_cert,
        ssl_keyfile=settings.http_tls_key,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
    )


def http_url(settings: Settings, bound: socket.socket) -> str:
    """Return where the API answers: port 0 has become a number."""
    host, port = bound.getsockname()[:2]
    scheme = "http" if settings.http_tls_cert is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def page_url(settings: Settings, bound: socket.socket) -> str | None:
    """Return where people open the page, None if nobody said so and others cannot know."""
    if settings.public_url is not None:
        return settings.public_url.rstrip("/")
    return None if is_wildcard(bound.getsockname()[0]) else http_url(settings, bound)


def bind(address: str) -> socket.socket:
    """Listen on a host and port.

    Raises:
        GradwatchError: If that cannot be.
    """
    host, port = split_address(address)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:  # UnicodeError: no host name can look like that
        reason = getattr(error, "strerror", None) or error
        msg = f"cannot bind the HTTP address {address}: {reason}; give a free one with --http"
        raise GradwatchError(msg) from error


@contextlib.contextmanager
def quiet_signals(server: uvicorn.Server) -> Iterator[None]:
    """Make the signals harmless that uvicorn raises again once it has stopped."""

    def note(_signal: int, _frame: FrameType | None) -> None:
        """Stop: this one may have come before the server listens to signals."""
        server.should_exit = True

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
