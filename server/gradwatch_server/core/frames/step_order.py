"""The order of the steps of one attempt: epochs, where steps go back, and jumps that are held."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from gradwatch_server.core.frames.sizes import Item
from gradwatch_server.core.packing import pack_integer
from gradwatch_wire.limits import MAX_STEP

_EPOCH: Final = MAX_STEP + 1

FAR: Final = 1 << 20
"""Steps between two records of a rank beyond which the second is held until it is confirmed: a
number that is wrong once would make all later records of the other ranks late."""

MAX_HELD: Final = 64
"""Records of a rank that are held at most; a step has as many parts at most."""

GAINS: Final = -1
"""The stream of GAINS. Those of STATS are the parts of a step, from 0."""

T = TypeVar("T", bound=Item)


def position(epoch: int, step: int) -> int:
    """Return the place of a step in an attempt. In the first epoch that is the step itself."""
    return epoch * _EPOCH + step


def epoch_of(place: int) -> int:
    """Return the epoch of a position; -1 stands before all, in the first."""
    return max(place, 0) // _EPOCH


def step_of(place: int) -> int:
    """Return the step of a position; -1 stands before all."""
    return place % _EPOCH if place >= 0 else -1


@dataclass(frozen=True, slots=True)
class Held(Generic[T]):
    """A record that is far ahead of all others."""

    stream: int
    step: int
    item: T


@dataclass(slots=True)
class _RankSteps(Generic[T]):
    """Where one rank is: its epoch, its last step there by stream, and what is held of it."""

    epoch: int
    last: dict[int, int] = field(default_factory=dict)
    held: list[Held[T]] = field(default_factory=list)


@dataclass(slots=True)
class Placed(Generic[T]):
    """What became of records: rank and position of those to take in, and those that are wrong.

    Args:
        records: Rank, position and record.
        refuted: Step and record where nothing confirmed the step.
    """

    records: list[tuple[int, int, T]] = field(default_factory=list)
    refuted: list[tuple[int, T]] = field(default_factory=list)


class StepOrder(Generic[T]):
    """Says where each record of an attempt belongs.

    The steps of a rank that go back begin a new epoch: training went on from a checkpoint. The
    other ranks follow by themselves, or once a frame of that epoch has closed. A step that is `FAR`
    ahead is held until a later record of the rank, or another rank near it, confirms it.

    Attributes:
        num_bytes: What the records that are held take in memory.
    """

    def __init__(self, *, holds: bool) -> None:
        """Begin before the first step.

        Args:
            holds: Whether there are other ranks, which a wrong step could make late.
        """
        self._holds = holds
        self._ranks: dict[int, _RankSteps[T]] = {}
        self._newest = -1
        self.num_bytes = 0

    def take(self, rank: int, stream: int, step: int, item: T, closed: int) -> Placed[T]:
        """Place a record, and what its coming decides of those that are held.

        Args:
            rank: Global rank.
            stream: Which records of the rank these are, in each of which steps go on.
            step: Its step.
            item: The record.
            closed: Position of the frame that closed last.
        """
        own = self._rank(rank)
        found: Placed[T] = Placed()
        if own.held:
            self._decide(rank, own, step, closed, found)
        if self._is_far(own, step) and len(own.held) < MAX_HELD and not self._is_near(rank, step):
            own.held.append(Held(stream, step, item))
            self.num_bytes += item.num_bytes
            return found
        if self._is_far(own, step):
            self._confirm_near(step, closed, found)
        found.records.append((rank, self._place(own, stream, step, closed), item))
        return found

    def place(self, rank: int, stream: int, step: int, closed: int) -> int | None:
        """Return the position of a record that is not to be held, None if it is far ahead."""
        own = self._rank(rank)
        return None if self._is_far(own, step) else self._place(own, stream, step, closed)

    def release(self, rank: int, closed: int, *, alone: bool) -> Placed[T]:
        """Settle what is held of a rank that has ended: right if it is *alone*, else refuted."""
        found: Placed[T] = Placed()
        own = self._ranks.get(rank)
        if own is not None:
            self._settle(rank, own, closed, found, right=alone)
        return found

    def release_all(self, closed: int) -> Placed[T]:
        """Take all that is held for right, as beyond `MAX_HELD`: there is no room to wait."""
        found: Placed[T] = Placed()
        for rank, own in self._ranks.items():
            self._settle(rank, own, closed, found, right=True)
        return found

    def _rank(self, rank: int) -> _RankSteps[T]:
        own = self._ranks.get(rank)
        if own is None:
            own = self._ranks[rank] = _RankSteps(epoch_of(self._newest))
        return own

    def _decide(
        self, rank: int, own: _RankSteps[T], step: int, closed: int, found: Placed[T]
    ) -> None:
        ahead = own.held[0].step
        if step != ahead:
            self._settle(rank, own, closed, found, right=step > ahead)

    def _confirm_near(self, step: int, closed: int, found: Placed[T]) -> None:
        for rank, own in self._ranks.items():
            if own.held and abs(own.held[0].step - step) <= FAR:
                self._settle(rank, own, closed, found, right=True)

    def _settle(
        self, rank: int, own: _RankSteps[T], closed: int, found: Placed[T], *, right: bool
    ) -> None:
        held, own.held = own.held, []
        for one in held:
            self.num_bytes -= one.item.num_bytes
            if right:
                place = self._place(own, one.stream, one.step, closed)
                found.records.append((rank, place, one.item))
            else:
                found.refuted.append((one.step, one.item))

    def _is_far(self, own: _RankSteps[T], step: int) -> bool:
        before = max(own.last.values(), default=step_of(self._newest))
        return self._holds and step - before > FAR

    def _is_near(self, rank: int, step: int) -> bool:
        """Tell whether another rank's held record is near."""
        return any(
            own.held and abs(own.held[0].step - step) <= FAR
            for other, own in self._ranks.items()
            if other != rank
        )

    def _place(self, own: _RankSteps[T], stream: int, step: int, closed: int) -> int:
        if own.epoch < epoch_of(closed):  # the others went back: this one goes on from here
            own.epoch = epoch_of(closed)
            own.last.clear()
        elif step < own.last.get(stream, -1):
            own.epoch += 1
            own.last.clear()
        own.last[stream] = step
        place = position(own.epoch, step)
        self._newest = max(self._newest, place)
        return place

    def state_dict(self, item: Callable[[T], Any]) -> dict[str, Any]:
        """Return plain data; *item* gives that of a record."""
        return {
            "newest": pack_integer(self._newest),
            "ranks": [
                [
                    rank,
                    pack_integer(own.epoch),
                    list(own.last.items()),
                    [[one.stream, one.step, item(one.item)] for one in own.held],
                ]
                for rank, own in self._ranks.items()
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any], item: Callable[[Any], T]) -> None:
        """Take up what `state_dict` described; *item* restores a record."""
        self._newest = int(state["newest"])
        for rank, epoch, last, held in state["ranks"]:
            kept = [Held(stream, step, item(own)) for stream, step, own in held]
            self.num_bytes += sum(one.item.num_bytes for one in kept)
            self._ranks[rank] = _RankSteps(int(epoch), dict(last), kept)
