"""All messages of a subject, in pages, reliably up to those that were there when it began."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext, api
from nats.js.errors import NotFoundError

from gradwatch_server.nats.chain import GET_S, Chain, sequence_of, walk
from gradwatch_server.nats.connection import Connection
from gradwatch_server.nats.errors import UNREACHABLE, NATSError, is_unreachable, require_connected
from gradwatch_server.nats.stream import Stored

PAGE_MESSAGES: Final = 16
"""Messages read at once: up to 8 MiB."""

PAGE_HEADERS: Final = 512
"""The same where payloads are left out."""

PAUSE_S: Final = 0.1

PAGE_S: Final = 15.0
"""How long a page is tried."""

IDLE_S: Final = 30.0
"""After this time without a question a server forgets what was read of a subject."""

_SIZE: Final = "Nats-Msg-Size"


class SubjectReader:
    """Reads one subject once.

    A consumer of JetStream goes with the server that has it, and that server may lack the newest
    messages for a moment. So another one takes its place, and it is read until what the stream's
    leader called the last message has come.

    Args:
        connection: How the stream is reached.
        stream: Its name.
        subject: The subject.
        after: Sequence of a message of it, 0 to begin with the oldest one.
        headers_only: Whether payloads are left out.
    """

    def __init__(
        self, connection: Connection, stream: str, subject: str, after: int, *, headers_only: bool
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._subject = subject
        self._chain = Chain(after or None)
        self._next = after + 1
        self._headers_only = headers_only
        self._most = PAGE_HEADERS if headers_only else PAGE_MESSAGES
        self._consumer: JetStreamContext.PullSubscription | None = None
        self._delivered = 0  # messages that the consumer gave out
        self._pending = 0  # and those that it has for us
        self._end = 0

    def read(self) -> Iterator[Stored]:
        """Yield the messages that count."""
        what = f"the messages of {self._subject}"
        self._end = self._connection.call(self._last_sequence, what, PAGE_S)
        try:
            while self._next <= self._end:
                for message in self._connection.call(self._page, what, PAGE_S * 2):
                    sequence = message.metadata.sequence.stream
                    self._next = sequence + 1
                    if sequence <= self._end and self._chain.take(sequence, message.headers):
                        yield _stored(message, sequence)
        finally:
            with suppress(NATSError):
                self._connection.call(self._forget, what)

    async def _last_sequence(self, client: Client) -> int:
        """Return the sequence of the last message, as the leader has it; 0 without any."""
        require_connected(client)
        try:
            last = await client.jetstream(timeout=GET_S).get_msg(
                self._stream, subject=self._subject
            )
        except NotFoundError:
            return 0
        return sequence_of(last)

    async def _page(self, client: Client) -> list[Msg]:
        """Return the next messages, none if all that is left was purged meanwhile."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + PAGE_S
        while True:
            try:
                return await self._fetch(client)
            except UNREACHABLE as error:
                await self._forget(client)
                if not is_unreachable(error) or loop.time() + PAUSE_S >= end_s:
                    raise
            await asyncio.sleep(PAUSE_S)

    async def _fetch(self, client: Client) -> list[Msg]:
        require_connected(client)
        if self._consumer is None:
            following = await anext(walk(client, self._stream, self._subject, self._next), None)
            if following is None or sequence_of(following) > self._end:
                self._next = self._end + 1
                return []
            self._consumer = await self._consume(client)
            self._delivered, self._pending = 0, 1
        page = await self._consumer.fetch(min(self._most, self._pending or 1), timeout=GET_S)
        for message in page:
            self._delivered += 1
            if message.metadata.sequence.consumer != self._delivered:
                raise TimeoutError  # one before it was lost on its way
        self._pending = page[-1].metadata.num_pending if page else 0
        return page

    async def _consume(self, client: Client) -> JetStreamContext.PullSubscription:
        context = client.jetstream(timeout=GET_S)
        config = api.ConsumerConfig(
            filter_subject=self._subject,
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self._next,
            ack_policy=api.AckPolicy.NONE,
            headers_only=self._headers_only,
            inactive_threshold=IDLE_S,
            mem_storage=True,
            num_replicas=1,
        )
        info = await context.add_consumer(self._stream, config)
        return await context.pull_subscribe_bind(info.name, self._stream)

    async def _forget(self, client: Client) -> None:
        """Let the consumer go; a server that does not hear of it forgets it by itself."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None and client.is_connected:
            await consumer.unsubscribe()


def _stored(message: Msg, sequence: int) -> Stored:
    headers = message.headers or {}
    num_bytes = int(headers.get(_SIZE, len(message.data)))
    return Stored(sequence, headers, message.data, num_bytes)
