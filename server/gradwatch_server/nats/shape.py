"""Streams are created as they are to be, or are found to be so."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Final

from nats.aio.client import Client
from nats.js import api
from nats.js.errors import NotFoundError

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


async def ensure_stream(client: Client, wanted: api.StreamConfig) -> None:
    """Create a stream unless it is there; how many bytes it may have is set in any case.

    Raises:
        NATSError: If there is one of another shape.
    """
    manager = client.jetstream()
    try:
        there = (await manager.stream_info(wanted.name or "")).config
    except NotFoundError:
        there = (await manager.add_stream(wanted)).config
    check_shape(there, wanted)
    if _plain(there.max_bytes) != _plain(wanted.max_bytes):
        await manager.update_stream(replace(there, max_bytes=wanted.max_bytes or -1))


def check_shape(there: api.StreamConfig, wanted: api.StreamConfig) -> None:
    """Compare a stream with what it is to be.

    Raises:
        NATSError: If it is of another shape.
    """
    for field in _CHECKED:
        has, wants = (_plain(getattr(config, field)) for config in (there, wanted))
        if has != wants:
            msg = (
                f"the stream {wanted.name} was made with {field} = {has}, and {wants} is asked "
                "for: ask for what it has, or change it with the command `nats stream edit`; if "
                "it is somebody else's, ask for another name"
            )
            raise NATSError(msg)


def _plain(value: object) -> object:
    """Return a setting as it is compared: no limit is spelt in several ways."""
    if isinstance(value, list):
        return sorted(value)
    if isinstance(value, Enum):
        return value.value
    return 0 if value in (None, -1) else value
