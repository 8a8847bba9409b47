"""What an attack is told, what it tells, and the pace at which it works."""

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
        """Host and port of the ingest socket."""
        return _host_and_port(self.endpoint)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.partition("://")[2].rpartition(":")
    return host, int(port)


@dataclass(slots=True)
class Outcome:
    """What became of an attack."""

    refused: Refused = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)  # what was measured beside the times
    wrongs: list[str] = field(default_factory=list)  # what happened to those who mean well


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack.

    Args:
        work: Works until it is told to stop, and counts what was refused to it.
        is_well_meant: Whether it does not yield the processor: it is measured what it gets, too.
        needs_rate: Whether it needs to know how much the aggregator can take.
        config: What is set for it in `gradwatch.toml`.
    """

    work: Callable[[Target, Stop, Refused], Outcome | None]
    is_well_meant: bool = False
    needs_rate: bool = False
    config: str = ""

    @property
    def summary(self) -> str:
        """What it does, in a line."""
        return (self.work.__doc__ or "").partition("\n")[0]


def paced(rate: float, stop: Stop) -> Iterator[int]:
    """Count from 0 at a rate, or slower if the caller is, until it is to stop."""
    number, due_s = 0, time.monotonic()
    while not stop():
        yield number
        number += 1
        due_s = max(due_s + 1.0 / rate, time.monotonic() - 1.0)
        time.sleep(max(0.0, due_s - time.monotonic()))
