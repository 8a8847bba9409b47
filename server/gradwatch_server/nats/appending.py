"""Appends to a stream of JetStream that are written once, however often they are tried."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final
from uuid import uuid4

from nats.aio.client import Client
from nats.js import api
from nats.js.errors import APIError, NotFoundError

from gradwatch_server.nats.errors import (
    UNREACHABLE,
    WRONG_LAST_SEQUENCE,
    is_unreachable,
    require_connected,
)

TRY_S: Final = 2.0
"""How long one try waits: a stream chooses a new leader in about that time."""

PAUSE_S: Final = 0.1
"""Pause before the next one."""


def new_message_id() -> str:
    """Return an id that no other message has."""
    return uuid4().hex


async def append(
    client: Client,
    stream: str,
    message: tuple[str, bytes, Mapping[str, str]],
    message_id: str,
    expected: int | None,
    patience_s: float,
) -> int | None:
    """Append a message; return its sequence, None if another one is the last of the subject.

    It is tried for *patience_s*, with the same id: the server writes an id once. A try that the
    server says comes too late may follow one that was written, and whose answer was lost: then the
    last message of the subject has the id.

    Args:
        client: The library's client.
        stream: Name of the stream.
        message: Subject, payload and headers.
        message_id: Of this message, and of no other one.
        expected: Sequence of the last message of the subject, 0 if there is none; None for any.
        patience_s: How long it is tried.
    """
    subject, payload, headers = message
    own = {**headers, api.Header.MSG_ID.value: message_id, api.Header.EXPECTED_STREAM.value: stream}
    if expected is not None:
        own[api.Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value] = str(expected)
    loop = asyncio.get_running_loop()
    end_s = loop.time() + patience_s
    while True:
        try:
            return await _try(client, stream, subject, payload, own)
        except UNREACHABLE as error:
            if not is_unreachable(error) or loop.time() + PAUSE_S >= end_s:
                raise
        await asyncio.sleep(PAUSE_S)


async def _try(
    client: Client, stream: str, subject: str, payload: bytes, headers: dict[str, str]
) -> int | None:
    require_connected(client)
    try:
        answer = await client.jetstream().publish(subject, payload, timeout=TRY_S, headers=headers)
    except APIError as error:
        if error.err_code != WRONG_LAST_SEQUENCE:
            raise
        last = await last_message(client, stream, subject)
        is_own = last is not None and _id_of(last) == headers[api.Header.MSG_ID.value]
        return last.seq if last is not None and is_own else None
    return answer.seq


async def last_message(client: Client, stream: str, subject: str) -> api.RawStreamMsg | None:
    """Return the last message of a subject as the leader of the stream has it."""
    require_connected(client)
    try:
        return await client.jetstream(timeout=TRY_S).get_msg(stream, subject=subject)
    except NotFoundError:
        return None


def _id_of(message: api.RawStreamMsg) -> str | None:
    return (message.headers or {}).get(api.Header.MSG_ID.value)
