"""Messages of the ingest port, and records that are packed once for several sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from gradwatch_server.keys import Client
from gradwatch_wire import Envelope, Kind
from gradwatch_wire.value import value


@value()
class IngestMessage:
    """A decoded message.

    Args:
        client: Whose key it came with; None where no keys are asked for.
    """

    peer: bytes
    envelope: Envelope
    raw: bytes
    client: Client | None = None


Arrived: TypeAlias = tuple[Client | None, bytes]
"""Sender of a message, None where no keys are asked for, and the message, not decoded."""


@dataclass(frozen=True, slots=True)
class PackedRecord:
    """A record for several sessions, packed once."""

    kind: Kind
    body: bytes


@dataclass(frozen=True, slots=True)
class Dropped:
    """A record for which there was no room."""

    peer: bytes
    seq: int
