"""What nodes send each other of clients' messages: packed in batches, large ones cut in parts.

NATS keeps the order of what one node sends on one subject, and may lose any of it: sequence
numbers and acknowledgements, which are the client's and the engine's, make that good.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import msgpack

from gradwatch_server.errors import GradwatchError
from gradwatch_server.keys import Client

PART_BYTES: Final = 512 << 10
"""What one message of NATS carries at most: half of what a server takes by default."""

MAX_GROUPS: Final = 64
"""Batches of which parts may be missing; the oldest is given up for a new one."""

PART_HEADER: Final = "Gradwatch-Part"

_HEAD_BYTES: Final = 64  # about what a parcel takes beside its frames


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message of a client, on its way from its gateway to the partition of its run.

    Args:
        peer: ROUTER's name of the connection, of that gateway.
        frames: The message; none if the connection is gone.
        client: Whose key it came with; None where no keys are asked for.
    """

    peer: bytes
    frames: list[bytes]
    client: Client | None = None

    @property
    def num_bytes(self) -> int:
        """About what it takes."""
        return sum(map(len, self.frames)) + _HEAD_BYTES


@dataclass(frozen=True, slots=True)
class Answer:
    """A message to a client, on its way back.

    Args:
        peer: As in the parcel.
        session: The session that it is for.
        acked: Up to where the session is acknowledged by it; None if it says nothing of that.
        frames: The message.
    """

    peer: bytes
    session: bytes
    acked: int | None
    frames: list[bytes]

    @property
    def num_bytes(self) -> int:
        """About what it takes."""
        return sum(map(len, self.frames)) + _HEAD_BYTES


def pack_parcels(node: str, parcels: Iterable[Parcel]) -> bytes:
    """Return a batch of parcels of the gateway of a node."""
    rows = [
        (own.peer, own.frames, own.client and (own.client.name, own.client.runs)) for own in parcels
    ]
    return _pack((node, rows))


def unpack_parcels(payload: bytes) -> tuple[str, list[Parcel]]:
    """Return the node and its parcels.

    Raises:
        GradwatchError: If it is no such batch.
    """
    try:
        node, rows, *_ = msgpack.unpackb(payload)  # a later version may say more
        parcels = [
            Parcel(peer, frames, Client(of[0], tuple(of[1])) if of is not None else None)
            for peer, frames, of, *_ in rows
        ]
    except Exception as error:
        raise _unreadable(error) from error
    return node, parcels


def pack_answers(answers: Iterable[Answer]) -> bytes:
    """Return a batch of answers."""
    return _pack([(own.peer, own.session, own.acked, own.frames) for own in answers])


def unpack_answers(payload: bytes) -> list[Answer]:
    """Return the answers of a batch.

    Raises:
        GradwatchError: If it is no such batch.
    """
    try:
        rows = msgpack.unpackb(payload)
        return [Answer(peer, session, acked, frames) for peer, session, acked, frames, *_ in rows]
    except Exception as error:
        raise _unreadable(error) from error


def _pack(content: Any) -> bytes:
    packed: bytes = msgpack.packb(content)
    return packed


def _unreadable(error: Exception) -> GradwatchError:
    what = str(error)[:120] or type(error).__name__
    return GradwatchError(f"a batch of another node cannot be read: {what}")


class Sender:
    """Publishes payloads of any size.

    Args:
        name: Tells its groups of parts from those of others.
        publish: Sends a payload with headers on a subject, or raises a `GradwatchError`.
    """

    def __init__(self, name: str, publish: Callable[[str, bytes, Mapping[str, str]], None]) -> None:
        self._name = name
        self._publish = publish
        self._numbers = count()

    def send(self, subject: str, payload: bytes) -> None:
        """Send a payload, in parts if it is large.

        Raises:
            GradwatchError: If it certainly cannot be sent.
        """
        if len(payload) <= PART_BYTES:
            self._publish(subject, payload, {})
            return
        group, num_parts = next(self._numbers), -(-len(payload) // PART_BYTES)
        for part in range(num_parts):
            own = payload[part * PART_BYTES : (part + 1) * PART_BYTES]
            self._publish(subject, own, {PART_HEADER: f"{self._name} {group} {part} {num_parts}"})


class Assembler:
    """Puts parts together again; belongs to one thread."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._groups: OrderedDict[tuple[str, str], list[bytes]] = OrderedDict()

    def add(self, payload: bytes, headers: Mapping[str, str]) -> None:
        """Take a message; hand on the payload that it is, or completes."""
        header = headers.get(PART_HEADER)
        if header is None:
            self._take(payload)
            return
        name, group, part, num_parts = header.split(" ")
        parts = self._groups.setdefault((name, group), [])
        if len(parts) == int(part):  # one that was lost makes the others worthless
            parts.append(payload)
        if int(part) + 1 == int(num_parts):
            del self._groups[name, group]
            if len(parts) == int(num_parts):
                self._take(b"".join(parts))
        while len(self._groups) > MAX_GROUPS:
            self._groups.popitem(last=False)
