"""What is called for the messages of a subject."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from nats import errors as library
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as LibrarySubscription

from gradwatch_server.nats.message import Message

logger = logging.getLogger(__name__)

OnMessage: TypeAlias = Callable[[Message], None]
"""Takes a message, in the loop's thread: it must be quick, and must not wait for a call."""


class Subscription:
    """One subject, whichever client of the library it is subscribed to with.

    Args:
        subject: It may have wildcards.
        queue: Of those that subscribe with the same one, each message goes to one.
        take: Takes a message.
    """

    def __init__(self, subject: str, queue: str, take: OnMessage) -> None:
        self.subject = subject
        self._queue = queue
        self._take = take
        self._changing = asyncio.Lock()
        self._client: Client | None = None
        self._current: LibrarySubscription | None = None

    async def begin(self, client: Client) -> None:
        """Subscribe with a client, in place of the one before; nothing is missed between them."""
        async with self._changing:
            if self._client is client:
                return
            before = self._current
            self._current = await client.subscribe(
                self.subject, queue=self._queue, cb=self._on_message
            )
            self._client = client
            if before is not None:
                with suppress(library.Error):  # the client before may be closed
                    await before.unsubscribe()

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
