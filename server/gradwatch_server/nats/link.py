"""One client of the library after the other, so that there is a connection as long as can be.

All of it is of the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from nats import errors as library
from nats.aio.client import Client

from gradwatch_server.errors import GradwatchError
from gradwatch_server.nats.better_server import find_better, netloc_of
from gradwatch_server.nats.errors import is_refusal, reason, says_more
from gradwatch_server.nats.reach import Wanted
from gradwatch_server.nats.servers import Servers
from gradwatch_server.nats.subscription import Subscription

logger = logging.getLogger(__name__)

PING_S: Final = 1.0
"""How often the server is asked for a sign of life; three missed ones end the connection."""

RECONNECT_S: Final = 0.5
"""Pause before a server is tried again."""

LOOK_S: Final = 1.0
"""How often it is looked whether the client comes back."""

REFUSED_S: Final = 1.0
"""How long others are tried after a server did not take who we are, when it connects at first."""

STUCK_S: Final = 15.0
"""How long a client may take to come back before another one is tried."""

TRIED: Final = 4
"""So many other servers at most are tried at a time where a better one is looked for."""

LINGER_S: Final = 0.5
"""How long what was asked of a server that is left may take to be answered."""


class Link:
    """The client of the moment, and what is told when it is cut off and back.

    Args:
        servers: Where it connects.
        name: What the servers call it.
    """

    def __init__(self, servers: Servers, name: str) -> None:
        self._servers = servers
        self._name = name
        self.client = Client()
        self.ended: asyncio.Future[None]
        """Done once the client of the moment is replaced: nothing it was asked for is answered."""
        self.subscriptions: list[Subscription] = []
        self.listeners: list[Callable[[bool], None]] = []
        self._last_error: BaseException | None = None
        self._is_up = False
        self._limit: asyncio.Timeout | None = None  # of the first attempt
        self._leaving: set[asyncio.Task[None]] = set()  # ends of clients that were replaced

    async def open(self, patience_s: float) -> None:
        """Connect to one of the servers.

        Raises:
            GradwatchError: If none lets us in in time.
        """
        try:
            async with asyncio.timeout(patience_s) as self._limit:
                await self._connect()
        except (library.Error, OSError) as error:
            await self.client.close()
            self._last_error = self._last_error or error
            raise GradwatchError(self.fault or "") from error
        finally:
            self._limit = None
        self._is_up = True

    @property
    def fault(self) -> str | None:
        """Why it is not connected, None if it is."""
        if self.client.is_connected:
            return None
        why = "no sign of life" if self._last_error is None else reason(self._last_error)
        return f"no NATS server lets us in at {self._servers}: {why}"

    async def keep_up(self, stop: asyncio.Event) -> None:
        """Begin anew where the library's client does not come back, until it is to stop.

        Some errors that a server sends end a client for good, and a server that dies while a
        client comes back to it may leave it in between.
        """
        loop = asyncio.get_running_loop()
        connected_s = loop.time()
        while not stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOOK_S)
            if self.client.is_connected:
                connected_s = loop.time()
            elif self.client.is_closed or loop.time() - connected_s > STUCK_S:
                await self._begin_anew()
                connected_s = loop.time()

    async def close(self) -> None:
        """Disconnect; nobody is told."""
        self.listeners.clear()
        self._is_up = False
        await self.client.close()
        await asyncio.gather(*self._leaving)

    async def move(self, wanted: Wanted, missing: frozenset[str]) -> tuple[str, str] | None:
        """Go on with a server that reaches more, if there is one; return the one before and it.

        Args:
            wanted: What is to be reached.
            missing: What of it was not reached for some time.
        """
        current, at = self.client, self.client.connected_url
        if at is None:
            return None
        urls = dict.fromkeys([*self._servers.urls, *(own.geturl() for own in current.servers)])
        others = [url for url in urls if netloc_of(url) != at.netloc]
        tried = random.sample(others, min(len(others), TRIED))
        better = await find_better(current, tried, self._connect_to, wanted, missing)
        if better is None:
            return None
        is_same = self.client is current and current.connected_url == at
        if not is_same or better.connected_url is None:  # one of the two was lost meanwhile
            await better.close()
            return None
        for subscription in list(self.subscriptions):
            await subscription.begin(better)
        leaving = asyncio.create_task(_close_later(current, self.ended))
        self.client, self.ended = better, asyncio.get_running_loop().create_future()
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        self._tell(is_connected=True)
        return at.netloc, better.connected_url.netloc

    async def _connect(self) -> None:
        """Connect with a new client; it goes on trying until it is cancelled."""
        self.client, self.ended = Client(), asyncio.get_running_loop().create_future()
        urls = self._servers.urls
        await self._connect_with(self.client, random.sample(urls, len(urls)))

    async def _connect_to(self, client: Client, url: str) -> None:
        """Connect a client to a server, and have it know the others."""
        urls = self._servers.urls
        others = random.sample(urls, len(urls))
        await self._connect_with(client, [url, *(own for own in others if own != url)])

    async def _connect_with(self, client: Client, urls: Sequence[str]) -> None:
        await client.connect(
            list(urls),
            name=self._name,
            error_cb=partial(self._on_error, client),
            disconnected_cb=partial(self._on_cut, client),
            reconnected_cb=partial(self._on_back, client),
            reconnect_time_wait=RECONNECT_S,  # type: ignore[arg-type] # seconds, also parts of one
            max_reconnect_attempts=-1,
            ping_interval=PING_S,  # type: ignore[arg-type] # likewise
            dont_randomize=True,  # the order is random, but for the server that is wanted first
            **self._servers.credentials,
        )

    async def _begin_anew(self) -> None:
        await self.client.close()
        self.ended.set_result(None)
        try:
            async with asyncio.timeout(STUCK_S):
                await self._connect()
                for subscription in self.subscriptions:
                    await subscription.begin(self.client)
        except (library.Error, OSError) as error:
            self._note(error)
        else:
            await self._on_back(self.client)

    def _note(self, error: Exception) -> None:
        if says_more(error, self._last_error):
            self._last_error = error
        if is_refusal(error) and self._limit is not None:
            soon_s = asyncio.get_running_loop().time() + REFUSED_S
            self._limit.reschedule(min(self._limit.when() or soon_s, soon_s))

    async def _on_error(self, client: Client, error: Exception) -> None:
        if client is self.client:
            self._note(error)
        if isinstance(error, library.SlowConsumerError):
            logger.warning("NATS: a message on %s was dropped: too many wait", error.subject)
        else:
            logger.debug("NATS: %s", reason(error))

    async def _on_cut(self, client: Client) -> None:
        if self._is_up and client is self.client:
            self._is_up = False
            why = "no sign of life" if self._last_error is None else reason(self._last_error)
            logger.warning("NATS: cut off from %s (%s); trying again", self._servers, why)
            self._tell(is_connected=False)

    async def _on_back(self, client: Client) -> None:
        url = client.connected_url
        if url is not None and not self._is_up and client is self.client:
            self._is_up = True
            self._last_error = None
            logger.warning("NATS: connected again, to %s:%s", url.hostname, url.port)
            self._tell(is_connected=True)

    def _tell(self, *, is_connected: bool) -> None:
        for told in self.listeners:
            try:
                told(is_connected)
            except Exception:
                logger.exception("NATS: who was to be told of the connection failed")


async def _close_later(client: Client, ended: asyncio.Future[None]) -> None:
    await asyncio.sleep(LINGER_S)
    await client.close()
    ended.set_result(None)
