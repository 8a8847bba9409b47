"""The open frames of one attempt: what ranks sent of steps that others have not sent yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from gradwatch_server.core.frames.assembler import Assembler, Gathered, T
from gradwatch_server.core.frames.frame import RankPart
from gradwatch_server.core.frames.gains import RankGains
from gradwatch_server.core.frames.step_order import GAINS, Place, Placed, StepOrder
from gradwatch_wire import Stats


class TakenPart(NamedTuple):
    """Part of a record, read with its manifest.

    Args:
        part: Its numbers.
        step: Its step.
        number: Which record of this step it is, from 0.
        parts: How many there are.
    """

    part: RankPart
    step: int
    number: int = 0
    parts: int = 1

    @property
    def num_bytes(self) -> int:
        """Memory of the part."""
        return self.part.num_bytes


@dataclass
class OpenFrames:
    """Records of the steps that are not closed yet.

    Args:
        world: Ranks of the job.

    Attributes:
        num_closed_early: Budget to the steps that closed because it left no room, since the start.
    """

    world: int
    _order: StepOrder[TakenPart]
    _frames: Assembler[RankPart] = field(default_factory=Assembler)
    _gains: Assembler[RankGains] = field(default_factory=Assembler)
    _has_gains: bool = False  # whether any rank measures them

    def __post_init__(self) -> None:
        self.num_closed_early: Counter[str] = Counter()

    @classmethod
    def of(cls, world: int) -> Self:
        """Return that of an attempt before its first step."""
        return cls(world, StepOrder(holds=world > 1))

    def __bool__(self) -> bool:
        """Presence of steps that wait."""
        return bool(self._frames or self._gains)

    @property
    def num_bytes(self) -> int:
        """Bytes in memory of the records that wait."""
        return self._frames.num_bytes + self._gains.num_bytes + self._order.num_bytes

    def expect(self, rank: int) -> None:
        """Note that from now on a rank is waited for."""
        self._frames.expect(rank)
        self._gains.expect(rank)

    def resume(self, now_ns: int) -> None:
        """Wait anew for what the open steps lack: nobody could send it."""
        self._frames.resume(now_ns)
        self._gains.resume(now_ns)

    def place(self, rank: int, taken: TakenPart) -> Placed[TakenPart]:
        """Return where a record belongs, and others that its coming decides of."""
        return self._order.take(rank, taken.number, taken.step, taken, self._frames.last_closed)

    def place_at_once(self, rank: int, taken: TakenPart) -> Place | None:
        """Return where a record belongs, None if `place` has to tell."""
        return self._order.place_at_once(rank, taken.number, taken.step, self._frames.last_closed)

    def pass_over(self, rank: int, stats: Stats) -> None:
        """Note the step of a record that cannot be read."""
        place = self._order.place(rank, stats.part, stats.step, self._frames.last_closed)
        if place is not None:
            self._gains.note(rank, place)

    def release(self, rank: int, *, alone: bool) -> Placed[TakenPart]:
        """Return what is held of a rank that has ended: right if it is *alone*, else refuted."""
        return self._order.release(rank, self._frames.last_closed, alone=alone)

    def come_to(self, rank: int, place: Place) -> None:
        """Note that a rank sends no more gains of earlier steps; it may measure none."""
        if self._has_gains:
            self._gains.note(rank, place)

    def add(self, rank: int, place: Place, taken: TakenPart, now_ns: int) -> bool:
        """Take in a record of a step; return False if it is late, or there already."""
        return self._frames.add(
            rank, taken.part, step=place, now_ns=now_ns, part=taken.number, parts=taken.parts
        )

    def add_gains(self, own: RankGains, step: int, now_ns: int) -> bool:
        """Take in the gains of one rank; return False if they are late, or far ahead."""
        self._has_gains = True
        place = self._order.place(own.rank, GAINS, step, self._gains.last_closed)
        return place is not None and self._gains.add(own.rank, own, step=place, now_ns=now_ns)

    def close(
        self, alive: Collection[int], now_ns: int, *, awaits_others: bool
    ) -> Sequence[Gathered[RankPart]]:
        """Close the frames that are due, see `Assembler.close`."""
        return self._frames.close(alive, now_ns, self.world, awaits_others=awaits_others)

    def close_gains(
        self, alive: Collection[int], now_ns: int, *, awaits_others: bool
    ) -> Sequence[Gathered[RankGains]]:
        """Close the gains that are due likewise."""
        if not self._gains:
            return ()
        return self._gains.close(alive, now_ns, self.world, awaits_others=awaits_others)

    def release_held(self, limit: int) -> Placed[TakenPart]:
        """Return all that is held if it is what takes too much, see `close_early`."""
        if self._order.num_bytes <= self._share(limit):
            return Placed()
        return self._order.release_all(self._frames.last_closed)

    def close_early(self, limit: int, budget: str) -> Iterator[Gathered[RankPart]]:
        """Close the oldest frames, if it is they that take too much, and count them."""
        return self._close_early(self._frames, limit, budget)

    def close_gains_early(self, limit: int, budget: str) -> Iterator[Gathered[RankGains]]:
        """Close the oldest gains likewise."""
        return self._close_early(self._gains, limit, budget)

    def _close_early(self, steps: Assembler[T], limit: int, budget: str) -> Iterator[Gathered[T]]:
        for gathered in steps.close_early(self._share(limit)):
            self.num_closed_early[budget] += 1
            yield gathered

    def _share(self, limit: int) -> int:
        """Return what each of frames, gains and held records may take for all to fit.

        What takes little takes it from what takes much.
        """
        sizes = sorted((self._frames.num_bytes, self._gains.num_bytes, self._order.num_bytes))
        rest = max(limit, 0)
        for place, size in enumerate(sizes):
            share = rest // (len(sizes) - place)
            if size > share:
                return share
            rest -= size
        return limit
