"""Where a process of a test listens: this machine's loopback, or a network namespace."""

from __future__ import annotations

from typing import Final, NamedTuple


class Place(NamedTuple):
    """One place for processes.

    Args:
        host: The address on which they listen.
        prefix: What is put before their command to run them there.
    """

    host: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


LOOPBACK: Final = Place()
