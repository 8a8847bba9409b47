"""A connection to a cluster of NATS servers, for any thread.

The library runs on an asyncio loop in a thread of its own; calls from other threads wait for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from nats import errors as library
from nats.aio.client import Client

from gradwatch_server.nats.errors import (
    NATSError,
    UnreachableError,
    require_connected,
    translated,
)
from gradwatch_server.nats.link import Link
from gradwatch_server.nats.message import Message
from gradwatch_server.nats.outbox import Outbox
from gradwatch_server.nats.reach import (
    Leader,
    Wanted,
    ask_leaders,
    find_alive,
    hand_over,
)
from gradwatch_server.nats.servers import parse_servers
from gradwatch_server.nats.subscription import OnMessage, Subscription

T = TypeVar("T")

CALL_S: Final = 5.0
"""How long a call waits for its answer unless it says otherwise."""

MARGIN_S: Final = 5.0
"""How much longer a thread waits for the loop than the loop for the answer."""


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
        self._link = Link(parse_servers(addresses), name)
        self._patience_s = patience_s
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
        return not self._is_closing and self._link.client.is_connected

    @property
    def fault(self) -> str | None:
        """Why no server is connected, None if one is."""
        return "the connection was closed" if self._is_closing else self._link.fault

    def on_change(self, told: Callable[[bool], None]) -> None:
        """Have *told* called when it is cut off (False) and when it is back (True).

        Also where it went on with another server, as what came meanwhile may not have reached it.
        In the loop's thread: it must be quick, and must not wait for a call.
        """
        self._link.listeners.append(told)

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
        if len(payload) > self._link.client.max_payload:
            most = self._link.client.max_payload
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
        subscription = Subscription(subject, queue, take)

        async def begin(client: Client) -> None:
            if subscription not in self._link.subscriptions:  # first, lest another server misses it
                self._link.subscriptions.append(subscription)
            await subscription.begin(client)

        try:
            self.call(begin, f"subscription to {subject}")
        except NATSError:
            self.unsubscribe(subscription)
            raise
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription; one that ended stays so."""

        async def end(_client: Client) -> None:
            if subscription in self._link.subscriptions:
                self._link.subscriptions.remove(subscription)
                await subscription.end()

        if not self._is_closing:
            self.call(end, f"end of the subscription to {subscription.subject}")

    def move(self, wanted: Wanted, missing: frozenset[str]) -> tuple[str, str] | None:
        """Go on with a server that reaches more, if there is one; return the one before and it.

        Nobody is cut off meanwhile; who listens is told as if the connection was back.

        Args:
            wanted: What is to be reached.
            missing: What of it was not reached for some time.

        Raises:
            UnreachableError: If no server is connected.
        """
        what = "a look for another server"
        return self._wait_for(lambda: self._link.move(wanted, missing), what, CALL_S)

    def ask_leaders(self, streams: Sequence[str]) -> dict[str, Leader]:
        """Return what the leader of each stream says, without those that do not answer."""
        return self.call(lambda client: ask_leaders(client, streams), "the leaders of streams")

    def find_alive(self, names: frozenset[str]) -> frozenset[str]:
        """Return those of the servers of some names that answer."""
        return self.call(lambda client: find_alive(client, names), "who of the servers is there")

    def hand_over(self, leaders: Mapping[str, Leader]) -> frozenset[str]:
        """Have leaders let one lead that follows them; return the streams whose were asked."""
        return self.call(lambda client: hand_over(client, leaders), "other leaders of streams")

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
        return self._wait_for(lambda: self._with_client(make), what, timeout_s)

    def _wait_for(
        self, make: Callable[[], Coroutine[Any, Any, T]], what: str, timeout_s: float
    ) -> T:
        """Run a coroutine in the loop and wait for it."""

        async def run() -> T:
            with translated(what):
                async with asyncio.timeout(timeout_s):
                    return await make()

        if self._is_closing:
            msg = f"{what}: the connection was closed"
            raise UnreachableError(msg)
        answer = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return answer.result(timeout_s + MARGIN_S)
        except (TimeoutError, CancelledError) as error:
            answer.cancel()
            raise UnreachableError(f"{what}: no answer in time") from error

    async def _with_client(self, make: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine with the client of the moment, anew if another one takes its place."""
        while True:
            client, ended = self._link.client, self._link.ended
            work = asyncio.ensure_future(make(client))
            try:
                await asyncio.wait((work, ended), return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    return work.result()
            except library.ConnectionClosedError:
                if client is self._link.client:
                    raise
            finally:
                if not work.done():
                    work.cancel()
                    await asyncio.gather(work, return_exceptions=True)

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
        self._outbox = Outbox(self._loop, lambda: self._link.client)
        try:
            await self._link.open(self._patience_s)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for it
            self._opened.set_exception(error)
            return
        self._opened.set_result(None)
        await self._link.keep_up(self._stop)
        await self._outbox.send_all(self._link.client)
        await self._link.close()
