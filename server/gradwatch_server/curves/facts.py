"""Facts of stored blocks, and the levels that they are on.

Level 0 has rows, level n buckets of `16 ** n` steps. A block of a level is made of `FAN` blocks of
the level below, and stands for them wherever its width will do; those may be trimmed then. Gains
and steps without a frame have steps of their own, and so levels of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, Protocol, TypeAlias

from gradwatch_server.core.arrays import IndexArray

FAN: Final = 16
"""Blocks that one of the next level is made of; and how many times wider its buckets are."""

MAX_LEVEL: Final = 5
"""Buckets of a million steps: there are no more than some thousand in what a run can be."""

Read: TypeAlias = Callable[[int, int], bytes]
"""Returns so many bytes of a body from an offset on."""


class Track(IntEnum):
    """Rows that have their steps in common: the lowest level of each track."""

    FRAMES = 0
    GAINS = 8
    STEPS = 16

    @property
    def levels(self) -> range:
        """All levels, that of the rows first."""
        return range(self, self + MAX_LEVEL + 1)


def width_of(level: int) -> int:
    return int(FAN ** height(level))


def height(level: int) -> int:
    return level % Track.GAINS


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """Facts of a block, known without reading it.

    Args:
        number: Its number on its level, from 0.
        entries: Rows or buckets; none of one that only says that those below are to be read.
        is_closed: Whether nothing is added to it any more.
        upto: Number of the last block of the level below that it stands for; -1 of rows.
    """

    level: int
    number: int
    epoch: int
    first_step: int
    last_step: int
    entries: int
    is_closed: bool = True
    upto: int = -1


class SavedBlock(NamedTuple):
    """A block as it is written: its facts, and its head and body as `encoding` makes them."""

    facts: BlockFacts
    head: bytes = b""
    body: bytes = b""


class StoredBlock(NamedTuple):
    """A block as it is found: its facts, its head, and what reads parts of its body."""

    facts: BlockFacts
    head: bytes
    read: Read


class Span(NamedTuple):
    """The first and the last step of one epoch of which something is there."""

    epoch: int
    first: int
    last: int


class SeriesQuery(NamedTuple):
    """Request for a part of a curve.

    Args:
        table: `columns.RUN_TABLE`, one of `items.ITEM_TABLES`, or a column of the layers.
    """

    epoch: int
    table: str
    items: IndexArray
    first: int
    last: int


class StoredCurves(Protocol):
    """The stored blocks of one attempt at one moment."""

    def layers(self) -> bytes:
        """Return the layers, encoded; nothing if nothing is stored."""

    def newest(self, level: int, *, is_closed: bool = False) -> BlockFacts | None:
        """Return the newest block of a level, or the newest closed one; None without any."""

    def after(self, level: int, epoch: int, number: int, limit: int) -> Sequence[BlockFacts]:
        """Return up to *limit* blocks of an epoch after a number, oldest first."""

    def block(self, level: int, number: int) -> StoredBlock | None:
        """Return one block, None if it is not there."""

    def blocks(
        self, level: int, epoch: int, first_step: int, after: int, upto: int
    ) -> Iterator[StoredBlock]:
        """Yield the blocks of an epoch with numbers in (after, upto], from a step on, in order."""

    def heads(self, level: int, epoch: int, before: int) -> Iterator[tuple[int, bytes]]:
        """Yield entries and head of the blocks with numbers below one, the newest first."""

    def epochs(self, level: int, limit: int) -> Sequence[int]:
        """Return up to *limit* epochs of which there are blocks of a level, the newest first."""

    def ends(self, level: int, epoch: int) -> tuple[int, int] | None:
        """Return the first and the last step of the blocks of a level that have entries."""

    def stood_for(self, level: int, epoch: int, before: int) -> tuple[int, int]:
        """Return up to which block below, and which step, blocks with such numbers stand for.

        -1 and -1 if there are none.
        """
