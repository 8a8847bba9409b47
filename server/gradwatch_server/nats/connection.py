"""A connection to a cluster of NATS servers, for any thread.

The library runs on an asyncio loop in a thread of its own; calls from other threads wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, TypeVar

from nats import errors as library
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as LibrarySubscription

from gradwatch_server.errors import GradwatchError
from gradwatch_server.nats.errors import (
    NATSError,
    UnreachableError,
    reason,
    require_connected,
    translated,
)
from gradwatch_server.nats.message import Message
from gradwatch_server.nats.outbox import Outbox
from gradwatch_server.nats.servers import parse_servers

logger = logging.getLogger(__name__)

T = TypeVar("T")

PING_S: Final = 2.0
"""How often the server is asked for a sign of life; three missed ones end the connection."""

RECONNECT_S: Final = 0.5
"""Pause before a server is tried again."""

LOOK_S: Final = 1.0
"""How often it is looked whether the client comes back."""

STUCK_S: Final = 15.0
"""How long a client may take to come back before another one is tried."""

CALL_S: Final = 5.0
"""How long a call waits for its answer unless it says otherwise."""

MARGIN_S: Final = 5.0
"""How much longer a thread waits for the loop than the loop for the answer."""


OnMessage: TypeAlias = Callable[[Message], None]
"""Takes a message, in the loop's thread: it must be quick, and must not wait for a call."""


class Subscription:
    """What is called for the messages of a subject, until it is closed."""

    def __init__(self, connection: Connection, subject: str, queue: str, take: OnMessage) -> None:
        self._connection = connection
        self.subject = subject
        self._queue = queue
        self._take = take
        self._current: LibrarySubscription | None = None

    def close(self) -> None:
        """Take no more messages."""
        self._connection.unsubscribe(self)

    async def begin(self, client: Client) -> None:
        """Subscribe with a client, in place of the one before."""
        self._current = await client.subscribe(self.subject, queue=self._queue, cb=self._on_message)

    async def end(self) -> None:
        """Subscribe no more."""
        if self._current is not None:
            await self._current.unsubscribe()

    async def _on_message(self, message: Msg) -> None:
        headers = message.headers or {}
        try:
            self._take(Message(message.subject, message.data, headers, message.reply))
        except Exception:
            logger.exception("NATS: a message on %s could not be taken", message.subject)


class Connection:
    """A connection that is kept up until it is closed. All methods are for any thread."""

    def __init__(
        self, addresses: Sequence[str], name: str = "gradwatch", patience_s: float = 10.0
    ) -> None:
        """Connect to one of the servers.

        Args:
            addresses: Where they are, such as `nats://user:password@host:4222`; `tls://` likewise.
            name: What the servers call this client.
            patience_s: How long they are tried.

        Raises:
            GradwatchError: If one is no address, or none lets us in in time.
        """
        self._servers = parse_servers(addresses)
        self._name = name
        self._patience_s = patience_s
        self._client = Client()
        self._subscriptions: list[Subscription] = []
        self._listeners: list[Callable[[bool], None]] = []
        self._last_error: BaseException | None = None
        self._is_cut = False
        self._is_closing = False
        self._opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=f"{name}-nats", daemon=True)
        self._thread.start()
        self._opened.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def is_connected(self) -> bool:
        """Whether a server answered not long ago."""
        return not self._is_closing and self._client.is_connected

    def on_change(self, told: Callable[[bool], None]) -> None:
        """Have *told* called when it is cut off (False) and when it is back (True).

        In the loop's thread: it must be quick, and must not wait for a call.
        """
        self._listeners.append(told)

    def publish(
        self,
        subject: str,
        payload: bytes = b"",
        headers: Mapping[str, str] | None = None,
        reply: str = "",
    ) -> None:
        """Send a message after those that were sent before, without waiting; also in a callback.

        It may be lost, and nobody is told.

        Raises:
            UnreachableError: If no server is connected, or too much waits to be sent.
            NATSError: If it is larger than the server takes.
        """
        if not self.is_connected:
            msg = f"to {subject}: no NATS server is connected"
            raise UnreachableError(msg)
        if len(payload) > self._client.max_payload:
            most = self._client.max_payload
            msg = f"to {subject}: {len(payload)} bytes, and the server takes at most {most}"
            raise NATSError(msg)
        self._outbox.put(Message(subject, payload, headers or {}, reply))

    def request(
        self,
        subject: str,
        payload: bytes = b"",
        headers: Mapping[str, str] | None = None,
        timeout_s: float = CALL_S,
    ) -> Message:
        """Send a message and wait for the answer.

        Raises:
            NoRespondersError: If nobody listens there.
            UnreachableError: If no answer came in time.
        """

        async def ask(client: Client) -> Message:
            require_connected(client)
            wanted = dict(headers) if headers else None
            answer = await client.request(subject, payload, timeout=timeout_s, headers=wanted)
            return Message(answer.subject, answer.data, answer.headers or {}, answer.reply)

        return self.call(ask, f"request to {subject}", timeout_s)

    def subscribe(self, subject: str, take: OnMessage, queue: str = "") -> Subscription:
        """Have *take* called for each message of a subject, in order, also after reconnects.

        Args:
            subject: It may have wildcards.
            take: Takes a message.
            queue: Of those that subscribe with the same one, each message goes to one.

        Raises:
            NATSError: If it is no subject.
        """
        subscription = Subscription(self, subject, queue, take)

        async def begin(client: Client) -> None:
            await subscription.begin(client)
            self._subscriptions.append(subscription)

        self.call(begin, f"subscription to {subject}")
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription; one that ended stays so."""

        async def end(_client: Client) -> None:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)
                await subscription.end()

        if not self._is_closing:
            self.call(end, f"end of the subscription to {subscription.subject}")

    def flush(self, timeout_s: float = CALL_S) -> None:
        """Wait until the server has what was sent and subscribed to.

        Raises:
            UnreachableError: If that does not happen in time.
        """

        async def flush(client: Client) -> None:
            await self._outbox.send_all(client)
            await client.flush()

        self.call(flush, "flush", timeout_s)

    def call(
        self,
        make: Callable[[Client], Coroutine[Any, Any, T]],
        what: str,
        timeout_s: float = CALL_S,
    ) -> T:
        """Run a coroutine with the library's client and wait; for the modules of this package.

        Raises:
            NATSError: As `translated` says; *what* is what was tried.
        """
        if threading.current_thread() is self._thread:
            msg = "a callback of a connection waits for the connection"
            raise AssertionError(msg)

        async def run() -> T:
            with translated(what):
                async with asyncio.timeout(timeout_s):
                    return await make(self._client)

        if self._is_closing:
            msg = f"{what}: the connection was closed"
            raise UnreachableError(msg)
        answer = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return answer.result(timeout_s + MARGIN_S)
        except (TimeoutError, CancelledError) as error:
            answer.cancel()
            raise UnreachableError(f"{what}: no answer in time") from error

    def close(self) -> None:
        """Send what waits, end the connection and its thread; once closed it stays so."""
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            async with asyncio.timeout(self._patience_s):
                await self._connect()
        except (library.Error, OSError) as error:
            await self._client.close()
            why = reason(self._last_error or error)
            msg = f"no NATS server lets us in at {self._servers}: {why}"
            self._opened.set_exception(GradwatchError(msg))
            return
        self._outbox = Outbox(self._loop, lambda: self._client)
        self._opened.set_result(None)
        await self._keep_up()
        await self._outbox.send_all(self._client)
        await self._client.close()

    async def _connect(self) -> None:
        """Connect with a new client; it goes on trying until it is cancelled."""
        self._client = Client()
        await self._client.connect(
            list(self._servers.urls),
            name=self._name,
            error_cb=self._on_error,
            disconnected_cb=self._on_cut,
            reconnected_cb=self._on_back,
            reconnect_time_wait=RECONNECT_S,  # type: ignore[arg-type] # seconds, also parts of one
            max_reconnect_attempts=-1,
            ping_interval=PING_S,  # type: ignore[arg-type] # likewise
            **self._servers.credentials,
        )

    async def _keep_up(self) -> None:
        """Wait for the end; meanwhile begin anew where the library's client does not come back.

        Some errors that a server sends end a client for good, and a server that dies while a
        client comes back to it may leave it in between.
        """
        connected_s = self._loop.time()
        while not self._stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), LOOK_S)
            if self._client.is_connected:
                connected_s = self._loop.time()
            elif self._client.is_closed or self._loop.time() - connected_s > STUCK_S:
                await self._begin_anew()
                connected_s = self._loop.time()

    async def _begin_anew(self) -> None:
        await self._client.close()
        try:
            async with asyncio.timeout(STUCK_S):
                await self._connect()
                for subscription in self._subscriptions:
                    await subscription.begin(self._client)
        except (library.Error, OSError) as error:
            self._last_error = error
        else:
            await self._on_back()

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        if isinstance(error, library.SlowConsumerError):
            logger.warning("NATS: a message on %s was dropped: too many wait", error.subject)
        else:
            logger.debug("NATS: %s", reason(error))

    async def _on_cut(self) -> None:
        if not self._is_closing and self._opened.done() and not self._is_cut:
            self._is_cut = True
            why = reason(self._last_error or UnreachableError("no sign of life"))
            logger.warning("NATS: cut off from %s (%s); trying again", self._servers, why)
            self._tell(is_connected=False)

    async def _on_back(self) -> None:
        url = self._client.connected_url
        if url is not None and self._is_cut:
            self._is_cut = False
            self._last_error = None
            logger.warning("NATS: connected again, to %s:%s", url.hostname, url.port)
            self._tell(is_connected=True)

    def _tell(self, *, is_connected: bool) -> None:
        for told in self._listeners:
            try:
                told(is_connected)
            except Exception:
                logger.exception("NATS: who was to be told of the connection failed")
