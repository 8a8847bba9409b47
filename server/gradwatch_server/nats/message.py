"""A message of NATS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it came, or as it is to be sent.

    Args:
        subject: Where it is sent to.
        payload: Its bytes.
        headers: Its headers.
        reply: Where an answer is to be sent to, empty if none is wanted.
    """

    subject: str
    payload: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    reply: str = ""
