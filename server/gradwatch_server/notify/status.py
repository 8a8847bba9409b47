"""Status of a target, as readers see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradwatch_server.core.alerting.alert import isotime


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """One target at one moment; nothing in it is secret.

    Args:
        succeeded_s: When a message was delivered last, seconds since the epoch; None for never.
        next_s: When the next one is due, None if that takes an event.
        messages: What became of messages to their number, since the start.
    """

    name: str
    type: str
    cursor: int = 0
    num_pending: int = 0
    num_attempts: int = 0
    error: str | None = None
    succeeded_s: float | None = None
    next_s: float | None = None
    messages: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": self.type,
            "cursor": self.cursor,
            "pending": self.num_pending,
            "attempts": self.num_attempts,
            "error": self.error,
            "succeeded_at": _time(self.succeeded_s),
            "next_at": _time(self.next_s),
            "messages": dict(self.messages),
        }


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else isotime(round(seconds * 1e9))
