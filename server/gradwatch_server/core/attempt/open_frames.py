"""The open frames of one attempt: what ranks sent of steps that others have not sent yet."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from gradwatch_server.core.frames.assembler import Assembler, Gathered
from gradwatch_server.core.frames.frame import RankPart
from gradwatch_server.core.frames.gains import RankGains
from gradwatch_server.core.frames.layout import Layout, LayoutTable
from gradwatch_server.core.frames.step_order import GAINS, Placed, StepOrder
from gradwatch_server.core.session import Session
from gradwatch_wire import Stats
from gradwatch_wire.names import Scalar

TakenPart: TypeAlias = tuple[Stats, RankPart]
"""A record, and what its manifest makes of it."""


class OpenFrames:
    """What ranks have sent of steps that are not closed yet."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._order: StepOrder[TakenPart] = StepOrder(holds=world > 1)
        self._frames: Assembler[RankPart] = Assembler()
        self._gains: Assembler[RankGains] = Assembler()

    def __bool__(self) -> bool:
        """Whether any step waits."""
        return bool(self._frames or self._gains)

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
        stats, _ = taken
        return self._order.take(rank, stats.part, stats.step, taken, self._frames.last_closed)

    def pass_over(self, rank: int, stats: Stats) -> None:
        """Note the step of a record that cannot be read."""
        place = self._order.place(rank, stats.part, stats.step, self._frames.last_closed)
        if place is not None:
            self._gains.note(rank, place)

    def release(self, rank: int, *, alone: bool) -> Placed[TakenPart]:
        """Return what is held of a rank that has ended: right if it is *alone*, else refuted."""
        return self._order.release(rank, self._frames.last_closed, alone=alone)

    def come_to(self, rank: int, place: int) -> None:
        """Note that a rank sends no more gains of earlier steps; it may measure none."""
        self._gains.note(rank, place)

    def add(self, rank: int, place: int, taken: TakenPart, now_ns: int) -> bool:
        """Take in a record of a step; return False if it is late, or there already."""
        stats, part = taken
        return self._frames.add(
            rank, part, step=place, now_ns=now_ns, part=stats.part, parts=stats.parts
        )

    def add_gains(self, own: RankGains, step: int, now_ns: int) -> bool:
        """Take in the gains of one rank; return False if they are late, or far ahead."""
        place = self._order.place(own.rank, GAINS, step, self._gains.last_closed)
        return place is not None and self._gains.add(own.rank, own, step=place, now_ns=now_ns)

    def close(
        self, alive: Collection[int], now_ns: int, *, awaits_others: bool
    ) -> Iterator[Gathered[RankPart]]:
        """Close the frames that are due, see `Assembler.close`."""
        return self._frames.close(alive, now_ns, self._world, awaits_others=awaits_others)

    def close_gains(
        self, alive: Collection[int], now_ns: int, *, awaits_others: bool
    ) -> Iterator[Gathered[RankGains]]:
        """Close the gains that are due likewise."""
        return self._gains.close(alive, now_ns, self._world, awaits_others=awaits_others)

    def state_dict(self, layouts: LayoutTable) -> dict[str, Any]:
        """Return plain data of what is open."""
        return {
            "open_frames": self._frames.state_dict(lambda part: part.state_dict(layouts)),
            "open_gains": self._gains.state_dict(RankGains.state_dict),
        }

    def load_state_dict(self, plain: Mapping[str, Any], layouts: Sequence[Layout]) -> None:
        """Take over what `state_dict` described."""
        self._frames = Assembler.from_state_dict(
            plain["open_frames"], lambda part: RankPart.from_state_dict(part, layouts)
        )
        self._gains = Assembler.from_state_dict(plain["open_gains"], RankGains.from_state_dict)

    def order_state_dict(self, layouts: LayoutTable) -> Any:
        """Return plain data of the order of the steps, with the records that are held."""
        return self._order.state_dict(lambda item: [_plain(item[0]), item[1].state_dict(layouts)])

    def load_order_state_dict(self, plain: Any, layouts: Sequence[Layout]) -> None:
        """Take over what `order_state_dict` described."""
        self._order.load_state_dict(
            plain, lambda item: (_stats_of(item[0]), RankPart.from_state_dict(item[1], layouts))
        )

    def guess_order(self, sessions: Mapping[int, Session]) -> None:
        """Restore the order of the steps, which early versions did not save."""
        last = {rank: own.last_step for rank, own in sessions.items() if own.last_step >= 0}
        self._order.begin_at(last)


def _plain(stats: Stats) -> list[Any]:
    """Return what is kept of a record that is held, beside its numbers."""
    step_time = stats.scalars.get(Scalar.STEP_TIME_S)
    return [stats.manifest_id, stats.step, stats.part, stats.parts, step_time]


def _stats_of(plain: Sequence[Any]) -> Stats:
    manifest_id, step, part, parts, step_time = plain
    scalars = {} if step_time is None else {Scalar.STEP_TIME_S.value: step_time}
    return Stats(manifest_id=manifest_id, step=step, part=part, parts=parts, scalars=scalars)
