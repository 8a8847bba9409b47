"""All messages of a subject, in pages, reliably up to those that were there when it began."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext, api
from nats.js.errors import NotFoundError

from gradwatch_server.nats.chain import GET_S, Chain, epoch_of, sequence_of, stored_of, walk
from gradwatch_server.nats.connection import Connection
from gradwatch_server.nats.errors import UNREACHABLE, NATSError, is_unreachable, require_connected
from gradwatch_server.nats.stream import MissingError, Stored

PAGE_MESSAGES: Final = 16
"""Messages read at once: up to 8 MiB."""

PAGE_HEADERS: Final = 512
"""The same where payloads are left out."""

PAUSE_S: Final = 0.1

PAGE_S: Final = 15.0
"""How long a page, or what the last message is, is asked for."""

IDLE_S: Final = 30.0
"""After this time without a question a server forgets what was read of a subject."""

_SIZE: Final = "Nats-Msg-Size"

T = TypeVar("T")


class SubjectReader:
    """Reads one subject once.

    A consumer of JetStream goes with the server that has it, and that server may lack the newest
    messages, or with 2.9 even have others, after it stood still. So where what it says is not a
    chain up to the message that the stream's leader calls the last one, the leader is asked for
    each message instead.

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
        self._chain = Chain()
        self._after = after
        self._next = max(after, 1)  # the one after which it begins says who wrote it
        self._headers_only = headers_only
        self._most = PAGE_HEADERS if headers_only else PAGE_MESSAGES
        self._consumer: JetStreamContext.PullSubscription | None = None
        self._asks_leader = False
        self._delivered = 0  # messages that the consumer gave out
        self._pending = 0  # and those that it has for us
        self._end = 0
        self._has_begun = False

    def read(self) -> Iterator[Stored]:
        """Yield the messages that count."""
        what = f"the messages of {self._subject}"
        self._end = self._connection.call(self._last_sequence, what, PAGE_S * 2)
        try:
            while self._next <= self._end:
                try:
                    yield from self._counted(self._connection.call(self._page, what, PAGE_S * 2))
                except MissingError:
                    if self._asks_leader:
                        raise
                    self._asks_leader = True
        finally:
            with suppress(NATSError):
                self._connection.call(self._forget, what)

    def _counted(self, page: Sequence[Stored]) -> Iterator[Stored]:
        """Yield those messages of a page that count, and note how far it is read."""
        for stored in page:
            if stored.sequence > self._end:
                self._next = self._end + 1
                return
            begin = self._begin(stored.sequence)
            counts = self._chain.take(stored.sequence, dict(stored.headers))
            self._next = stored.sequence + 1
            if counts and stored.sequence > begin:
                yield stored

    def _begin(self, sequence: int) -> int:
        """Return the message after which it begins, given one that came."""
        if not self._has_begun and self._after and sequence != self._after:
            msg = f"the message {self._after} of {self._subject} is missing"
            raise MissingError(msg)
        self._has_begun = True
        return self._after

    async def _last_sequence(self, client: Client) -> int:
        """Return the sequence of the last message, as the leader has it; 0 without any."""

        async def ask() -> int:
            try:
                context = client.jetstream(timeout=GET_S)
                last = await context.get_msg(self._stream, subject=self._subject)
            except NotFoundError:
                return await self._forgotten(client)
            return sequence_of(last)

        return await self._insist(client, ask)

    async def _forgotten(self, client: Client) -> int:
        """Return up to where to read what 2.9 knows no last message of; 0 without any.

        It forgets which one that is when it takes one back that was more than the account may have.
        """
        context = client.jetstream(timeout=GET_S)
        try:
            await context.get_msg(self._stream, self._next, self._subject, next=True)
        except NotFoundError:
            return 0
        self._asks_leader = True
        return (await context.stream_info(self._stream)).state.last_seq

    async def _page(self, client: Client) -> list[Stored]:
        """Return the next messages, none if all that is left was purged meanwhile."""

        async def page() -> list[Stored]:
            if self._asks_leader:
                return await self._ask(client)
            try:
                return await self._fetch(client)
            except UNREACHABLE:
                self._asks_leader = True
                raise

        return await self._insist(client, page)

    async def _insist(self, client: Client, question: Callable[[], Awaitable[T]]) -> T:
        """Return the answer to a question, asked again for `PAGE_S` while there is none."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + PAGE_S
        while True:
            try:
                require_connected(client)
                return await question()
            except UNREACHABLE as error:
                if not is_unreachable(error) or loop.time() + PAUSE_S >= end_s:
                    raise
            await asyncio.sleep(PAUSE_S)

    async def _ask(self, client: Client) -> list[Stored]:
        page: list[Stored] = []
        async for message in walk(client, self._stream, self._subject, self._next):
            page.append(stored_of(message))
            if len(page) == PAGE_MESSAGES:
                return page
        if not page:
            self._next = self._end + 1
        return page

    async def _fetch(self, client: Client) -> list[Stored]:
        if self._consumer is None:
            self._consumer = await self._consume(client)
            self._pending = 1
        page = await self._consumer.fetch(min(self._most, self._pending or 1), timeout=GET_S)
        for message in page:
            self._delivered += 1
            if message.metadata.sequence.consumer != self._delivered:
                raise TimeoutError  # one before it was lost on its way
        self._pending = page[-1].metadata.num_pending if page else 0
        return [_stored(message) for message in page]

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


def _stored(message: Msg) -> Stored:
    headers = message.headers or {}
    num_bytes = int(headers.get(_SIZE, len(message.data)))
    sequence = message.metadata.sequence.stream
    return Stored(sequence, headers, message.data, num_bytes, epoch_of(headers))
