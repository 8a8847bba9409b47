"""A stream of NATS JetStream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from uuid import uuid4

from nats.aio.client import Client
from nats.js import api
from nats.js.errors import NotFoundError

from gradwatch_server.nats import chain
from gradwatch_server.nats.appending import NewMessage, append, take_over
from gradwatch_server.nats.connection import CALL_S, Connection
from gradwatch_server.nats.errors import NATSError, require_connected
from gradwatch_server.nats.reading import SubjectReader
from gradwatch_server.nats.shape import check_shape, ensure_stream
from gradwatch_server.nats.stream import Stored

DUPLICATES_S: Final = 120.0
"""How long the servers know a message by its id; after that the chain tells."""


class JetStreamStream:
    """One stream, kept by one server or several: a `Stream`."""

    def __init__(self, connection: Connection, name: str, patience_s: float = CALL_S) -> None:
        """Use a stream that is there: `ensure` creates it.

        Args:
            connection: How it is reached.
            name: Its name.
            patience_s: How long an append is tried.
        """
        self._connection = connection
        self.name = name
        self._patience_s = patience_s
        self._wanted = api.StreamConfig(name=name)

    def ensure(self, subjects: Sequence[str], *, replicas: int, max_bytes: int | None) -> None:
        """Create the stream unless it is there.

        Args:
            subjects: Its subjects, with wildcards.
            replicas: How many servers keep it, 1 to 5.
            max_bytes: How many bytes its messages may take, on each server; None for no limit. It
                is changed where there is another limit.

        Raises:
            NATSError: If there is one of another shape, or it cannot be created.
        """
        self._wanted = config = api.StreamConfig(
            name=self.name,
            subjects=list(subjects),
            num_replicas=replicas,
            max_bytes=max_bytes,
            discard=api.DiscardPolicy.NEW,
            retention=api.RetentionPolicy.LIMITS,
            storage=api.StorageType.FILE,
            duplicate_window=DUPLICATES_S,
        )
        what = f"the stream {self.name}"
        self._connection.call(lambda client: ensure_stream(client, config), what, CALL_S * 2)

    def check(self) -> None:
        """Make sure that it is there, and as `ensure` was asked for.

        Raises:
            NATSError: If it is not, or nobody answers.
        """

        async def run(client: Client) -> None:
            require_connected(client)
            try:
                there = (await client.jetstream().stream_info(self.name)).config
            except NotFoundError:
                msg = (
                    f"the stream {self.name} is not there any more: put a backup of it back, or "
                    "restart a node, which makes a new one without what was in it"
                )
                raise NATSError(msg) from None
            check_shape(there, self._wanted)

        self._connection.call(run, f"the stream {self.name}")

    def append(
        self,
        subject: str,
        payload: bytes,
        *,
        message_id: str,
        after: int,
        epoch: int,
        headers: Mapping[str, str],
    ) -> int:
        """Append a message and return its sequence once most servers have it."""
        message = NewMessage(subject, payload, message_id, after, epoch, headers)

        async def run(client: Client) -> int:
            return await append(client, self.name, message, self._patience_s)

        return self._connection.call(run, f"append to {subject}", self._patience_s + CALL_S)

    def take_over(self, subject: str, epoch: int, headers: Mapping[str, str]) -> int:
        """Append a message of a new owner, whichever is the last one; return its sequence."""
        message = NewMessage(subject, b"", uuid4().hex, 0, epoch, headers)

        async def run(client: Client) -> int:
            return await take_over(client, self.name, message, self._patience_s)

        return self._connection.call(run, f"taking over {subject}", self._patience_s + CALL_S)

    def read(self, subject: str, after: int = 0, *, headers_only: bool = False) -> Iterator[Stored]:
        """Yield the messages of a subject after one of them, as many as there are."""
        reader = SubjectReader(
            self._connection, self.name, subject, after, headers_only=headers_only
        )
        return reader.read()

    def get(self, sequence: int) -> Stored | None:
        """Return a message, None if it was purged."""

        async def run(client: Client) -> api.RawStreamMsg | None:
            require_connected(client)
            try:
                return await client.jetstream(timeout=chain.GET_S).get_msg(self.name, sequence)
            except NotFoundError:
                return None

        found = self._connection.call(run, f"message {sequence} of {self.name}")
        return None if found is None else chain.stored_of(found)

    def purge(self, subject: str, before: int) -> None:
        """Delete the messages of a subject before one of them, which stays."""
        self._connection.call(
            lambda client: chain.purge(client, self.name, subject, before), f"purge of {subject}"
        )

    def used_bytes(self) -> int:
        """Return how many bytes all messages take, on one server."""

        async def run(client: Client) -> int:
            require_connected(client)
            return (await client.jetstream().stream_info(self.name)).state.bytes

        return self._connection.call(run, f"size of {self.name}")
