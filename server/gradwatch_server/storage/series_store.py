"""Curves in a store: chunks of rows, and of wider and wider buckets made of these.

Level 0 are rows, level n buckets of `16 ** n` steps. A chunk of a level is made of `FAN` chunks of
the one below, and stands for them wherever its width will do; those may be trimmed then. Gains have
steps of their own, and so levels of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Protocol

from gradwatch_server.series.encoding import Read
from gradwatch_server.series.history import StoredSeries
from gradwatch_wire import Stats

FAN: Final = 16
"""Chunks that one of the next level is made of; and how many times wider its buckets are."""

MAX_LEVEL: Final = 5
"""Buckets of a million steps: there are no more than some thousand in what a run can be."""


class Track(IntEnum):
    """Rows that have their steps in common: the lowest level of each track."""

    FRAMES = 0
    GAINS = 8

    @property
    def levels(self) -> range:
        """All levels, that of the rows first."""
        return range(self, self + MAX_LEVEL + 1)


def height(level: int) -> int:
    """Return how many levels are below one in its track."""
    return level % Track.GAINS


def width_of(level: int) -> int:
    """Return the steps of a bucket of a level."""
    return int(FAN ** height(level))


@dataclass(frozen=True, slots=True)
class ChunkFacts:
    """Facts of a stored chunk, known without reading it.

    Args:
        level: Its level.
        number: Which one of its level it is, from 0.
        epoch: Epoch of all its steps.
        first_step: The first step.
        last_step: The last one.
        entries: Rows or buckets; none of one that only says that those below are to be read.
        is_closed: Whether nothing is added to it any more.
        upto: Number of the last chunk of the level below that it stands for; -1 of rows.
    """

    level: int
    number: int
    epoch: int
    first_step: int
    last_step: int
    entries: int
    is_closed: bool = True
    upto: int = -1


@dataclass(frozen=True, slots=True)
class SavedSeriesChunk:
    """A chunk as it is written.

    Args:
        facts: What is known of it.
        head: What its tables have in common, encoded.
        tables: Name to encoded body.
    """

    facts: ChunkFacts
    head: bytes = b""
    tables: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Bytes in the store."""
        return len(self.head) + sum(map(len, self.tables.values()))


@dataclass(frozen=True, slots=True)
class SeriesSize:
    """Room of the curves of an attempt.

    Args:
        run: Name of the run.
        attempt: Number of the attempt.
        num_bytes: The room.
    """

    run: str
    attempt: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """Statistics of one rank as they are in the log.

    Args:
        number: Number in the log of the run.
        received_ns: When they came in, nanoseconds since the epoch.
        session: The session.
        stats: The record.
    """

    number: int
    received_ns: int
    session: bytes
    stats: Stats


class Records(Protocol):
    """The statistics in the log of a run, for any thread, without those that are trimmed."""

    def before(
        self, run: str, number: int, most: int, session: bytes | None = None
    ) -> Iterator[KeptRecord]:
        """Yield the statistics up to an entry, the newest first, of the last *most* entries.

        Of one *session*, or of all.
        """

    def after(self, run: str, number: int, most: int) -> Iterator[KeptRecord]:
        """Yield the statistics after an entry, oldest first, of the next *most* entries."""


class SeriesStore(Protocol):
    """Curves in a store. `read` is for any thread, all else for the one that writes."""

    def read(
        self, run: str, attempt: int, before: int | None, gains_before: int | None = None
    ) -> AbstractContextManager[tuple[StoredSeries, StoredSeries]]:
        """Open what is stored of an attempt, frames and gains, as it is at one moment.

        Args:
            run: Name of the run.
            attempt: Number of the attempt.
            before: The chunk of rows of frames from which on it is read from memory, None for none.
            gains_before: Likewise of gains.
        """

    def save(
        self,
        run: str,
        attempt: int,
        chunks: Sequence[SavedSeriesChunk],
        layers: bytes | None = None,
    ) -> None:
        """Write chunks, each in place of what it was, all or none; and the layers, if given.

        It becomes durable with the next `Log.append` at the latest.
        """

    def layers(self, run: str, attempt: int) -> bytes:
        """Return the layers of an attempt, encoded; none if nothing is stored."""

    def newest(self, run: str, attempt: int, level: int) -> ChunkFacts | None:
        """Return the newest chunk of a level, None without any."""

    def after(self, run: str, attempt: int, level: int, number: int, most: int) -> list[ChunkFacts]:
        """Return up to *most* chunks of a level after a number, oldest first."""

    def head(self, run: str, attempt: int, level: int, number: int) -> bytes:
        """Return the head of a chunk."""

    def tables(self, run: str, attempt: int, level: int, number: int) -> list[str]:
        """Return the names of the tables of a chunk."""

    def body(
        self, run: str, attempt: int, level: int, number: int, table: str
    ) -> AbstractContextManager[Read | None]:
        """Open the body of a table, None if there is none."""

    def sizes(self) -> list[SeriesSize]:
        """Return what there is."""

    def used_bytes(self) -> int:
        """Return how much room all of it takes."""

    def trim(self, run: str, attempt: int, level: int, most: int) -> int:
        """Delete the *most* oldest chunks of a level that the next one stands for; return bytes."""

    def drop(self, run: str, attempt: int, level: int, most: int) -> int:
        """Delete the *most* oldest chunks of a level, but not the newest one; return the bytes."""

    def remove(self, run: str, attempt: int, most: int) -> bool:
        """Delete up to *most* chunks of an attempt, and itself with the last; return if any."""
