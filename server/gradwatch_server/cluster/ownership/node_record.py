"""What a node says of itself with its lease."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What a node says of itself.

    Args:
        id: Its name and what tells this start from others.
        version: Of gradwatch.
        http: Where other nodes reach its HTTP.
        ingest: Where clients attach to it.
    """

    id: str
    version: str
    http: str
    ingest: str

    def encode(self, lease_s: float, now_ns: int | None = None) -> bytes:
        """Return it as it is written.

        Args:
            lease_s: How long its lease lasts from here on.
            now_ns: The time by its clock, if that is to be told.
        """
        told: dict[str, float] = {"lease_s": lease_s}
        if now_ns is not None:
            told["now_ns"] = now_ns
        return json.dumps(asdict(self) | told).encode()


def decode_node(value: bytes) -> NodeRecord | None:
    """Return what a node wrote, of this or another version; None if it cannot be read."""
    try:
        plain = json.loads(value)
        return NodeRecord(*(str(plain[name]) for name in ("id", "version", "http", "ingest")))
    except (ValueError, TypeError, KeyError):
        return None


def decode_lease_s(value: bytes) -> float | None:
    """Return how long a lease lasts by what its node wrote; None if it wrote nothing of that."""
    try:
        return float(json.loads(value)["lease_s"])
    except (ValueError, TypeError, KeyError):
        return None


def decode_now_ns(value: bytes) -> int | None:
    """Return the time that a node wrote, nanoseconds since the epoch; None if it wrote none."""
    try:
        return int(json.loads(value)["now_ns"])
    except (ValueError, TypeError, KeyError):
        return None
