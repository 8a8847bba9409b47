"""Occupancy: how many runs and sessions there are, what they take, and whose they are."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from gradwatch_server.core.session import Session
from gradwatch_wire import Hello

SESSION_BYTES: Final = 3_000
"""What a session takes in memory beside what its HELLO said: measured with tracemalloc."""

SAID_TIMES: Final = 3
"""How often what HELLO said is in memory: in the session, in the log's cache, while it is saved.
The process grew by 35 kB for each of 5,000 sessions with 7.4 kB of it."""

ATTEMPT_BYTES: Final = 14_500
"""What an attempt takes before its first record, measured likewise."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Room of one session."""

    run: str
    client: str
    num_bytes: int


class Occupancy:
    """Counts sessions from their HELLO on, before it is in the log.

    Whose a session is, its key says; without keys, and after a restart until it speaks, it is
    nobody's: `""`.
    """

    def __init__(self, sessions: Iterable[Session]) -> None:
        self._places: dict[bytes, _Place] = {}
        self._sessions_of: Counter[str] = Counter()  # run -> how many
        self._client_of: dict[str, str] = {}  # run -> who opened it
        self._runs_of: Counter[str] = Counter()  # client -> how many
        self._bytes_of: Counter[str] = Counter()  # client -> how many
        self.num_bytes = 0
        begun = set[tuple[str, int]]()
        for own in sessions:
            attempt = own.hello.run, own.attempt
            self.add(own.id, own.hello, "", begins=attempt not in begun)
            begun.add(attempt)

    @property
    def num_runs(self) -> int:
        """Number of runs."""
        return len(self._client_of)

    @property
    def most_runs(self) -> int:
        """Sessions of the client that has most."""
        return max((count for name, count in self._runs_of.items() if name), default=0)

    @property
    def most_bytes(self) -> int:
        """Bytes of the sessions of the client that has most."""
        return max((count for name, count in self._bytes_of.items() if name), default=0)

    def has_run(self, run: str) -> bool:
        """Tell whether there is a run."""
        return run in self._client_of

    def client_of(self, run: str) -> str:
        """Return who opened a run."""
        return self._client_of.get(run, "")

    def runs_of(self, client: str) -> int:
        """Return how many runs a client opened."""
        return self._runs_of[client]

    def bytes_of(self, client: str) -> int:
        """Return what a client's sessions take."""
        return self._bytes_of[client]

    def num_of_owner(self) -> Mapping[str, int]:
        """Return the number of runs that its client has for each run that is somebody's."""
        return {run: self._runs_of[own] for run, own in self._client_of.items() if own}

    def add(self, session: bytes, hello: Hello, client: str, *, begins: bool) -> None:
        """Count a session, and the attempt if it begins one."""
        self.remove(session)
        place = _Place(hello.run, client, size_of(hello, begins=begins))
        self._places[session] = place
        self._sessions_of[hello.run] += 1
        self._bytes_of[client] += place.num_bytes
        self.num_bytes += place.num_bytes
        if hello.run not in self._client_of:
            self._client_of[hello.run] = client
            self._runs_of[client] += 1

    def claim(self, session: bytes, client: str) -> None:
        """Note whose a session is, and its run, that were nobody's since the start."""
        place = self._places.get(session)
        if place is None or place.client or not client:
            return
        self._places[session] = replace(place, client=client)
        _lower(self._bytes_of, "", place.num_bytes)
        self._bytes_of[client] += place.num_bytes
        if not self._client_of[place.run]:
            self._client_of[place.run] = client
            _lower(self._runs_of, "", 1)
            self._runs_of[client] += 1

    def remove(self, session: bytes) -> None:
        """Count a session no more, nor its run if it was the last."""
        place = self._places.pop(session, None)
        if place is None:
            return
        self.num_bytes -= place.num_bytes
        _lower(self._bytes_of, place.client, place.num_bytes)
        _lower(self._sessions_of, place.run, 1)
        if place.run not in self._sessions_of:
            _lower(self._runs_of, self._client_of.pop(place.run), 1)


def size_of(hello: Hello, *, begins: bool) -> int:
    """Return what a session takes in memory, bytes.

    Args:
        hello: What it said of itself.
        begins: Whether it begins an attempt.
    """
    texts = (hello.run, hello.host, hello.job, *hello.versions, *hello.versions.values())
    said = sys.getsizeof(hello.versions) + sum(map(sys.getsizeof, texts))
    return SESSION_BYTES + SAID_TIMES * said + (ATTEMPT_BYTES if begins else 0)


def _lower(counts: Counter[str], key: str, count: int) -> None:
    counts[key] -= count
    if not counts[key]:
        del counts[key]
