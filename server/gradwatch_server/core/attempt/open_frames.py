"""The open frames of one attempt: what ranks sent of steps that others have not sent yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

from gradwatch_server.core.frames.assembler import Assembler, StepRecords, T
from gradwatch_server.core.frames.frame import RankRecord, RecordColumns
from gradwatch_server.core.frames.gains import RankGains
from gradwatch_server.core.frames.step_order import GAINS, OrderedRecords, Place, StepOrder
from gradwatch_wire import Stats


@dataclass
class OpenFrames:
    """Records of the steps that are not closed yet.

    Attributes:
        num_closed_early: Budget to the steps that closed because it left no room, since the start.
    """

    world: int
    order: StepOrder[RankRecord]
    frames: Assembler[RankRecord] = field(default_factory=Assembler)
    gains: Assembler[RankGains] = field(default_factory=Assembler)
    has_gains: bool = False

    def __post_init__(self) -> None:
        self.num_closed_early: Counter[str] = Counter()

    @classmethod
    def of(cls, world: int) -> Self:
        """Return that of an attempt before its first step."""
        return cls(world, StepOrder(holds=world > 1))

    def __bool__(self) -> bool:
        return bool(self.frames or self.gains)

    @property
    def num_bytes(self) -> int:
        return self.frames.num_bytes + self.gains.num_bytes + self.order.num_bytes

    def records(self) -> Iterator[RecordColumns]:
        """Yield the records of open steps of which a saved state has no numbers."""
        for part in self.frames.items():
            if not part.record.is_whole:
                yield part.record

    def expect(self, rank: int) -> None:
        """Note that from now on a rank is waited for."""
        self.frames.expect(rank)
        self.gains.expect(rank)

    def resume(self, now_ns: int) -> None:
        """Wait anew for what the open steps lack: nobody could send it."""
        self.frames.resume(now_ns)
        self.gains.resume(now_ns)

    def place(self, part: RankRecord) -> OrderedRecords[RankRecord]:
        """Return where a record belongs, and others that its coming decides of."""
        part.record.is_whole = True  # the log may be trimmed before it is decided
        closed = self.frames.last_closed
        return self.order.accept(part.rank, part.number, part.step, part, closed)

    def pass_over(self, rank: int, stats: Stats) -> None:
        """Note the step of a record that cannot be read."""
        place = self.order.place(rank, stats.part, stats.step, self.frames.last_closed)
        if place is not None:
            self.gains.note(rank, place)

    def release(self, rank: int, *, alone: bool) -> OrderedRecords[RankRecord]:
        """Return what is held of a rank that has ended: right if it is *alone*, else rejected."""
        return self.order.release(rank, self.frames.last_closed, alone=alone)

    def come_to(self, rank: int, place: Place) -> None:
        self.gains.note(rank, place)

    def add_gains(self, gains: RankGains, step: int, now_ns: int) -> bool:
        """Take in the gains of one rank; return False if they are late, or far ahead."""
        self.has_gains = True
        place = self.order.place(gains.rank, GAINS, step, self.gains.last_closed)
        return place is not None and self.gains.add(gains.rank, gains, step=place, now_ns=now_ns)

    def release_held(self, limit: int) -> OrderedRecords[RankRecord]:
        """Return all that is held if it is what takes too much, see `close_early`."""
        if self.order.num_bytes <= self._share(limit):
            return OrderedRecords()
        return self.order.release_all(self.frames.last_closed)

    def close_early(self, limit: int, budget: str) -> Iterator[StepRecords[RankRecord]]:
        """Close the oldest frames, if it is they that take too much, and count them."""
        return self._close_early(self.frames, limit, budget)

    def close_gains_early(self, limit: int, budget: str) -> Iterator[StepRecords[RankGains]]:
        return self._close_early(self.gains, limit, budget)

    def _close_early(
        self, steps: Assembler[T], limit: int, budget: str
    ) -> Iterator[StepRecords[T]]:
        for gathered in steps.close_early(self._share(limit)):
            self.num_closed_early[budget] += 1
            yield gathered

    def _share(self, limit: int) -> int:
        """Return what each of frames, gains and held records may take for all to fit.

        What takes little takes it from what takes much.
        """
        sizes = sorted((self.frames.num_bytes, self.gains.num_bytes, self.order.num_bytes))
        rest = max(limit, 0)
        for place, size in enumerate(sizes):
            share = rest // (len(sizes) - place)
            if size > share:
                return share
            rest -= size
        return limit
