"""What waits to be sent: any thread puts messages in, and the loop's thread sends them in order."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from nats import errors as library
from nats.aio.client import Client

from gradwatch_server.nats.errors import UnreachableError, reason
from gradwatch_server.nats.message import Message

logger = logging.getLogger(__name__)

MAX_BYTES: Final = 16 * 1024 * 1024
"""Payloads that may wait to be sent."""


class Outbox:
    """Messages on their way to the server."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: Callable[[], Client]) -> None:
        """Begin with none.

        Args:
            loop: Where they are sent.
            client: Returns what sends them.
        """
        self._loop = loop
        self._client = client
        self._lock = threading.Lock()
        self._messages: deque[Message] = deque()
        self._num_bytes = 0
        self._is_woken = False
        self._sending = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def put(self, message: Message) -> None:
        """Send a message after all that were put in before.

        Raises:
            UnreachableError: If too much waits.
        """
        with self._lock:
            if self._num_bytes + len(message.payload) > MAX_BYTES:
                msg = f"to {message.subject}: {self._num_bytes} bytes wait to be sent"
                raise UnreachableError(msg)
            self._messages.append(message)
            self._num_bytes += len(message.payload)
            must_wake, self._is_woken = not self._is_woken, True
        if must_wake:
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._task = self._loop.create_task(self.send_all(self._client()))

    async def send_all(self, client: Client) -> None:
        """Give the client all that waits."""
        async with self._sending:
            while (message := self._next()) is not None:
                try:
                    await client.publish(
                        message.subject,
                        message.payload,
                        reply=message.reply,
                        headers=dict(message.headers) or None,
                    )
                except (library.Error, OSError, ValueError) as error:
                    logger.warning("NATS: not sent to %s: %s", message.subject, reason(error))

    def _next(self) -> Message | None:
        with self._lock:
            if not self._messages:
                self._is_woken = False
                return None
            message = self._messages.popleft()
            self._num_bytes -= len(message.payload)
            return message
