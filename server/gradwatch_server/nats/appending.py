"""Appends that are written once, however often they are tried, and after the one expected."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nats.aio.client import Client
from nats.js import api
from nats.js.errors import APIError

from gradwatch_server.nats.chain import (
    AFTER,
    EPOCH,
    TAKES_OVER,
    find_successor,
    id_of,
    next_after,
    sequence_of,
)
from gradwatch_server.nats.errors import (
    UNREACHABLE,
    WRONG_LAST_SEQUENCE,
    is_unreachable,
    require_connected,
)
from gradwatch_server.nats.stream import LastSequenceError

TRY_S: Final = 2.0
"""How long one try waits: a stream chooses a new leader in about that time."""

PAUSE_S: Final = 0.1
"""Pause before the next one."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message that is to be appended.

    Args:
        subject: Where it goes.
        payload: Its bytes.
        message_id: Of this message, and of no other one.
        after: Sequence of the last message of the subject, 0 if there is none.
        epoch: Of the owner that writes it.
        headers: Headers of its own.
    """

    subject: str
    payload: bytes
    message_id: str
    after: int
    epoch: int
    headers: Mapping[str, str]


async def append(
    client: Client,
    stream: str,
    message: NewMessage,
    patience_s: float,
    try_s: float | None = None,
) -> int:
    """Append a message; return its sequence.

    It is tried for *patience_s*, with the same id, which a server writes once; *try_s* is how long
    one try may take in all, None for as long as its questions do. What is refused may
    have been written by a try whose answer was lost, and what is written may have come too late:
    `chain` says how.

    Raises:
        LastSequenceError: If another message came after the one expected.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + patience_s
    expected = message.after
    while True:
        try:
            async with asyncio.timeout(try_s):
                sequence = await _publish(client, stream, message, expected)
                if sequence is not None and await _is_next(client, stream, message, sequence):
                    return sequence
                successor = await find_successor(
                    client, stream, message.subject, message.after, message.epoch
                )
        except UNREACHABLE as error:
            if not is_unreachable(error) or loop.time() + PAUSE_S >= end_s:
                raise
        else:
            own = successor.message
            if own is not None and id_of(own) == message.message_id:
                return sequence_of(own)
            if successor.is_past:
                msg = f"somebody else wrote to {message.subject} after {message.after}"
                raise LastSequenceError(msg)
            if loop.time() + PAUSE_S >= end_s:
                raise TimeoutError
            # One that does not count. Or 2.9 has forgotten it, as it took the one after it back
            # when that was more than the account may have: then it expects none.
            expected = 0 if successor.last == expected else successor.last or 0
        await asyncio.sleep(PAUSE_S)


async def take_over(client: Client, stream: str, message: NewMessage, patience_s: float) -> int:
    """Append the first message of an owner, whatever is before it; return its sequence."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + patience_s
    while True:
        try:
            return await _send(client, stream, message, {TAKES_OVER: "1"})
        except UNREACHABLE as error:
            if not is_unreachable(error) or loop.time() + PAUSE_S >= end_s:
                raise
        await asyncio.sleep(PAUSE_S)


async def _publish(client: Client, stream: str, message: NewMessage, expected: int) -> int | None:
    """Publish a message; return its sequence, None if another one is the last."""
    places = {
        AFTER: str(message.after),
        api.Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: str(expected),
    }
    try:
        return await _send(client, stream, message, places)
    except APIError as error:
        if error.err_code == WRONG_LAST_SEQUENCE:
            return None
        raise


async def _is_next(client: Client, stream: str, message: NewMessage, sequence: int) -> bool:
    """Tell whether nothing came between a message that was written and the one expected."""
    if sequence == message.after + 1:
        return True
    return await next_after(client, stream, message.subject, message.after) == sequence


async def _send(
    client: Client, stream: str, message: NewMessage, headers: Mapping[str, str]
) -> int:
    require_connected(client)
    own = {
        **message.headers,
        **headers,
        EPOCH: str(message.epoch),
        api.Header.MSG_ID.value: message.message_id,
        api.Header.EXPECTED_STREAM.value: stream,
    }
    answer = await client.jetstream().publish(
        message.subject, message.payload, timeout=TRY_S, headers=own
    )
    return answer.seq
