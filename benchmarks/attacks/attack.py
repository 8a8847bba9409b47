"""Target, outcome and pace of an attack."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

Stop: TypeAlias = Callable[[], bool]
"""Tells whether it is to stop."""

Refused: TypeAlias = Counter[str]
"""What was refused to it, by kind."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where the aggregator is, and which attack to run against it."""

    endpoint: str
    url: str
    attack: str
    rate: float = 0.0  # records/s that it can take, where that was measured before

    @property
    def http(self) -> tuple[str, int]:
        """Host and port of HTTP."""
        return _host_and_port(self.url)

    @property
    def ingest(self) -> tuple[str, int]:
        return _host_and_port(self.endpoint)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.partition("://")[2].rpartition(":")
    return host, int(port)


@dataclass(slots=True)
class Outcome:
    """Result of an attack."""

    refused: Refused = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)  # what was measured beside the times
    wrongs: list[str] = field(default_factory=list)  # what happened to those who mean well


def paced(rate: float, stop: Stop) -> Iterator[int]:
    """Count from 0 at a rate, or slower if the caller is, until it is to stop."""
    number, due_s = 0, time.monotonic()
    while not stop():
        yield number
        number += 1
        due_s = max(due_s + 1.0 / rate, time.monotonic() - 1.0)
        time.sleep(max(0.0, due_s - time.monotonic()))
