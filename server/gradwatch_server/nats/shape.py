"""Streams are created as they are to be, or are found to be so."""

from __future__ import annotations

from typing import Final

from nats.aio.client import Client
from nats.js import api
from nats.js.errors import APIError, NotFoundError
from nats.js.manager import JetStreamManager

from gradwatch_server.nats.errors import NATSError

_CHECKED: Final = (
    "subjects",
    "num_replicas",
    "max_bytes",
    "max_age",
    "max_msgs_per_subject",
    "retention",
    "discard",
    "storage",
)


async def ensure_stream(client: Client, wanted: api.StreamConfig) -> None:
    """Create a stream unless it is there.

    Raises:
        NATSError: If there is one of another shape.
    """
    manager = client.jetstream()
    name = wanted.name or ""
    try:
        there = (await manager.stream_info(name)).config
    except NotFoundError:
        there = await create(manager, wanted)
    for field in _CHECKED:
        has, wants = (_plain(getattr(config, field)) for config in (there, wanted))
        if has != wants:
            msg = (
                f"the stream {name} was made with {field} = {has}, and {wants} is asked for: "
                "ask for what it has, or change it with the command `nats stream edit`"
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
    return 0 if value in (None, -1) else value
