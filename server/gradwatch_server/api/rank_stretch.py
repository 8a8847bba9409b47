"""Records of a rank that are of an epoch: one rank may go back before the others do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gradwatch_server.api.series_range import Range
from gradwatch_server.curves.columns import RUN_COLUMNS, RUN_TABLE
from gradwatch_server.curves.facts import SeriesQuery
from gradwatch_server.storage.rows import KeptRecord

AHEAD: Final = 16
"""Steps that one rank is ahead of another at most: gradients are reduced by all of them."""

_COVERAGE: Final = RUN_COLUMNS.index("coverage")


def anchor_of(range_: Range, first: int, last: int) -> int | None:
    """Return where in the log every rank was in this epoch, None if that is not known.

    That is where the first step closed that all ranks had, from shortly before *first* on and up
    to *last*: later ones may have closed when a rank had gone back already.
    """
    if range_.span is None:
        return None
    before = max(range_.span.first, first - AHEAD)
    if range_.history.finest(range_.span.epoch, before) > 1:
        return None
    items = np.array([_COVERAGE], dtype=np.int64)
    buckets = range_.history.buckets(
        SeriesQuery(range_.span.epoch, RUN_TABLE, items, before, last), 1
    )
    whole = buckets.numbers[buckets.stats[1, :, 0] >= 1.0]
    return range_.history.offset(range_.span.epoch, int(whole[0])) if len(whole) else None


@dataclass(frozen=True, slots=True)
class ClosedStep:
    """Place of a step in the log of its run.

    Args:
        number: Number of the entry by which it closed.
        anchor: `anchor_of` it.
    """

    step: int
    number: int
    anchor: int | None

    @classmethod
    def find(cls, range_: Range, step: int) -> ClosedStep | None:
        """Return where a step of the epoch is, None if that is not known."""
        offset = range_.history.offset(range_.span.epoch, step) if range_.span else None
        return None if offset is None else cls(step, offset, anchor_of(range_, step, step))


@dataclass(slots=True)
class Stretch:
    """The stretch of a session's records in which its steps rise and which is at an anchor.

    Args:
        anchor: That place in the log; None if there is none: then nothing is known of a session
            whose steps went back.
    """

    anchor: int | None
    first: int
    last: int
    records: list[KeptRecord] = field(default_factory=list)
    is_whole: bool = False  # whether no older record is of it
    _went_back: bool = False
    _newest: tuple[int, int] | None = None
    _oldest: tuple[int, int] | None = None
    _begin: int = 0

    @property
    def has_anchor(self) -> bool:
        """Tell whether its oldest record so far came before the anchor."""
        return self._oldest is not None and self.anchor is not None and self._begin <= self.anchor

    def add_older(self, record: KeptRecord) -> None:
        """Look at a record older than all before."""
        place = _place(record)
        if self._oldest is not None and place >= self._oldest:  # here the steps went back
            if self.has_anchor:
                self.is_whole = True
                return
            self.records.clear()
            self._newest = None
            self._went_back = True
        self._newest = self._newest or place
        self._oldest, self._begin = place, record.number
        self._keep(record)

    def add_newer(self, record: KeptRecord) -> bool:
        """Look at a record newer than all before; return whether it is kept."""
        place = _place(record)
        self._went_back |= self._newest is not None and place <= self._newest
        if self._went_back:
            return False
        self._newest = place
        return self._keep(record)

    def end(self) -> None:
        """Say that no older record is looked at: what may be of another epoch is left out."""
        if self._went_back and not self.has_anchor:
            self.records.clear()

    def _keep(self, record: KeptRecord) -> bool:
        is_wanted = self.first <= record.stats.step <= self.last
        if is_wanted:
            self.records.append(record)
        return is_wanted


def _place(record: KeptRecord) -> tuple[int, int]:
    return record.stats.step, record.stats.part
