"""Streams are created as they are to be, or are found to be so."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Final

from nats.aio.client import Client
from nats.js import api
from nats.js.errors import APIError, NotFoundError
from nats.js.manager import JetStreamManager

from gradwatch_server.nats.errors import NATSError

_CHECKED: Final = (
    "subjects",
    "num_replicas",
    "max_age",
    "max_msgs_per_subject",
    "retention",
    "discard",
    "storage",
)

_CHANGED: Final = ("max_bytes", "max_age")
"""What is changed where it differs; whether messages go by their age at all is not."""


async def ensure_stream(client: Client, wanted: api.StreamConfig) -> None:
    """Create a stream unless it is there; how many bytes it may have is set in any case.

    Where messages go after a time, *wanted* says the shortest: it is made longer where it is less.

    Raises:
        NATSError: If there is one of another shape.
    """
    manager = client.jetstream()
    try:
        there = (await manager.stream_info(wanted.name or "")).config
    except NotFoundError:
        there = await create(manager, wanted)
    check_shape(there, wanted)
    max_age = max(there.max_age or 0.0, wanted.max_age or 0.0)
    needed = replace(there, max_bytes=wanted.max_bytes or -1, max_age=max_age)
    if any(_plain(getattr(there, own)) != _plain(getattr(needed, own)) for own in _CHANGED):
        await manager.update_stream(needed)


def check_shape(there: api.StreamConfig, wanted: api.StreamConfig) -> None:
    """Compare a stream with what it is to be.

    Raises:
        NATSError: If it is of another shape.
    """
    for field in _CHECKED:
        has, wants = (_plain(getattr(config, field)) for config in (there, wanted))
        is_mended = field in _CHANGED and bool(has) and bool(wants)
        if has != wants and not is_mended:
            msg = (
                f"the stream {wanted.name} was made with {field} = {has}, and {wants} is asked "
                "for: ask for what it has, or change it with the command `nats stream edit`; if "
                "it is somebody else's, ask for another name"
            )
            raise NATSError(msg)


async def create(manager: JetStreamManager, wanted: api.StreamConfig) -> api.StreamConfig:
    """Create a stream, or find the one of its name.

    A server refuses one that another node makes in this moment.

    Raises:
        APIError: If it is refused and there is none: the library's error.
    """
    try:
        return (await manager.add_stream(wanted)).config
    except APIError as error:
        try:
            return (await manager.stream_info(wanted.name or "")).config
        except NotFoundError:
            raise error from None


def _plain(value: object) -> object:
    """Return a setting as it is compared: no limit is spelt in several ways."""
    if isinstance(value, list):
        return sorted(value)
    if isinstance(value, Enum):
        return value.value
    return 0 if value in (None, -1) else value
