"""The messages of one subject as a chain: who appends says after which one, and the first one wins.

JetStream refuses a message that expects another last one. But a server that has copies decides so
before the messages that it took just now are written: of those that come at the same moment and
expect the same one, 2.9 writes all. What is written is the same for everybody, though, and in one
order. So each message says after which one it comes, and of several only the first one counts;
whoever reads passes over the others, and whoever wrote one of those finds out before it goes on.

A new owner of a subject need not know the last message: its first one counts wherever it is, unless
there is a later owner.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from nats.aio.client import Client
from nats.js import api
from nats.js.errors import APIError, NotFoundError

from gradwatch_server.nats.errors import require_connected
from gradwatch_server.nats.stream import MissingError, Stored

AFTER: Final = "Gradwatch-After"
"""Header: sequence of the message before, 0 for the first one of a subject."""

EPOCH: Final = "Gradwatch-Epoch"
"""Header: epoch of the owner that wrote the message."""

TAKES_OVER: Final = "Gradwatch-Takes-Over"
"""Header, if there is one: the message is the first one of an owner."""

GET_S: Final = 2.0
"""How long one question to the leader of a stream waits."""


def after_of(headers: dict[str, str] | None) -> int:
    """Return the sequence of the message before."""
    return int((headers or {}).get(AFTER, "0"))


def epoch_of(headers: dict[str, str] | None) -> int:
    """Return the epoch of the owner that wrote a message."""
    return int((headers or {}).get(EPOCH, "0"))


def takes_over(headers: dict[str, str] | None) -> bool:
    """Return whether a message is the first one of an owner."""
    return TAKES_OVER in (headers or {})


def id_of(message: api.RawStreamMsg) -> str | None:
    """Return the id of a message."""
    return (message.headers or {}).get(api.Header.MSG_ID.value)


def sequence_of(message: api.RawStreamMsg) -> int:
    """Return the sequence of a message."""
    return message.seq or 0


def stored_of(message: api.RawStreamMsg) -> Stored:
    """Return a message as the leader of the stream gave it."""
    payload, headers = message.data or b"", message.headers or {}
    return Stored(sequence_of(message), headers, payload, len(payload), epoch_of(headers))


class Chain:
    """Tells which messages of a subject count, given all of them in order, from one that does.

    The oldest one that is kept counts: nothing is purged but up to one that does.
    """

    def __init__(self) -> None:
        self._counted: set[int] = set()
        self._first = 0
        self._last: int | None = None
        self._epoch = 0

    def take(self, sequence: int, headers: dict[str, str] | None) -> bool:
        """Return whether the next message counts.

        Raises:
            MissingError: If it comes after one that did not come, or never was.
        """
        after, epoch = after_of(headers), epoch_of(headers)
        if takes_over(headers):
            counts = epoch >= self._epoch
        else:
            counts = self._last is None or after == self._last
            if self._last is not None and after >= self._first and after not in self._counted:
                msg = f"the message {after} before message {sequence} is missing"
                raise MissingError(msg)
        if counts:
            self._first = self._first or sequence
            self._last, self._epoch = sequence, epoch
            self._counted.add(sequence)
        return counts


@dataclass(frozen=True, slots=True)
class Successor:
    """What comes after a message.

    Args:
        message: The one that counts, None if there is none.
        last: Sequence of the last of all, those that do not count and the message itself included.
        is_past: Whether the message is not the last any more, whatever came after it.
    """

    message: api.RawStreamMsg | None
    last: int | None
    is_past: bool


async def find_successor(
    client: Client, stream: str, subject: str, after: int, epoch: int
) -> Successor:
    """Look for what comes after a message of the owner of an epoch, 0 for the first one."""
    last = 0 if after == 0 else None
    async for message in walk(client, stream, subject, after):
        last, headers = sequence_of(message), message.headers
        if last <= after or (takes_over(headers) and epoch_of(headers) < epoch):
            continue
        if epoch_of(headers) > epoch or takes_over(headers) or after_of(headers) > after:
            return Successor(None, last, is_past=True)
        if after_of(headers) == after:
            return Successor(message, last, is_past=True)
    return Successor(None, last, is_past=last is None)


async def next_after(client: Client, stream: str, subject: str, after: int) -> int | None:
    """Return the sequence of the message that follows one of a subject, None without any.

    Of all that the server answers only that is read: the library would decode the whole message.

    Raises:
        APIError: If the server cannot tell: the library's error.
    """
    require_connected(client)
    wanted = json.dumps({"seq": after + 1, "next_by_subj": subject}).encode()
    subject = f"{api.DEFAULT_PREFIX}.STREAM.MSG.GET.{stream}"
    answer = await client.request(subject, wanted, timeout=GET_S)
    found = json.loads(answer.data)
    if "error" in found:
        with suppress(NotFoundError):
            APIError.from_error(found["error"])
        return None
    return int(found["message"]["seq"])


async def walk(
    client: Client, stream: str, subject: str, first: int = 0
) -> AsyncIterator[api.RawStreamMsg]:
    """Yield all messages of a subject from a sequence on, as the leader of the stream has them."""
    sequence = max(first, 1)
    while True:
        require_connected(client)
        manager = client.jetstream(timeout=GET_S)
        try:
            message = await manager.get_msg(stream, sequence, subject, next=True)
        except NotFoundError:
            return
        yield message
        sequence = sequence_of(message) + 1


async def last_of(client: Client, stream: str, subject: str) -> api.RawStreamMsg | None:
    """Return the last message of a subject that counts, None without any; it reads all.

    Where one before it is missing the chain begins anew: after kills of servers of 2.9 the same
    message may have another sequence on the next leader, and what names the old one is the newest.
    """
    chain, last = Chain(), None
    async for message in walk(client, stream, subject):
        try:
            counts = chain.take(sequence_of(message), message.headers)
        except MissingError:
            chain = Chain()
            counts = chain.take(sequence_of(message), message.headers)
        if counts:
            last = message
    return last


async def purge(client: Client, stream: str, subject: str, before: int) -> None:
    """Delete the messages of a subject before one that counts, which stays.

    Each by itself: a server of 2.9 that is killed and started again repeats what was purged of one
    subject, and takes it for a purge of all of them. The stream's leader is asked for each just
    before, although its answer has the payload: a consumer can leave payloads out, but may be of
    another server, which after kills (2.9) may know a message by the sequence of another one, and
    then that one would be deleted.
    """
    sequence = await next_after(client, stream, subject, 0)
    while sequence is not None and sequence < before:
        await client.jetstream(timeout=GET_S).delete_msg(stream, sequence)
        sequence = await next_after(client, stream, subject, sequence)
