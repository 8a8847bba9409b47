"""The order of the steps of one attempt: epochs, where steps go back, and jumps that are held."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Generic, TypeAlias, TypeVar

from gradwatch_server.core.frames.sizes import Item

Place: TypeAlias = tuple[int, int]
"""Position of a step in an attempt: how often the steps had gone back, and the step."""

NOWHERE: Final[Place] = (0, -1)
"""Position before all others."""

FAR: Final = 1 << 20
"""Steps between two records of a rank beyond which the second is held until it is confirmed: a
number that is wrong once would make all later records of the other ranks late."""

MAX_HELD: Final = 64
"""Records of a rank that are held at most; a step has as many parts at most."""

GAINS: Final = -1
"""The stream of GAINS. Those of STATS are the parts of a step, from 0."""

T = TypeVar("T", bound=Item)


@dataclass(frozen=True, slots=True)
class Held(Generic[T]):
    """A record that is far ahead of all others."""

    stream: int
    step: int
    item: T


@dataclass(slots=True)
class _RankSteps(Generic[T]):
    """Position of one rank: its epoch, its last step there by stream, and its held records."""

    epoch: int
    last: dict[int, int] = field(default_factory=dict)
    held: list[Held[T]] = field(default_factory=list)


@dataclass(slots=True)
class OrderedRecords(Generic[T]):
    """Records in order: rank and position of those to take in, and those that are wrong.

    Args:
        records: Rank, position and record.
        rejected: Step and record where nothing confirmed the step.
    """

    records: list[tuple[int, Place, T]] = field(default_factory=list)
    rejected: list[tuple[int, T]] = field(default_factory=list)


@dataclass
class StepOrder(Generic[T]):
    """Order of the records of an attempt.

    The steps of a rank that go back begin a new epoch: training went on from a checkpoint. The
    other ranks follow by themselves, or once a frame of that epoch has closed. A step that is `FAR`
    ahead is held until a later record of the rank, or another rank near it, confirms it.

    Args:
        holds: Whether there are other ranks, which a wrong step could make late.

    Attributes:
        num_bytes: Bytes that the records that are held take in memory.
    """

    holds: bool
    _ranks: dict[int, _RankSteps[T]] = field(default_factory=dict)
    _newest: Place = NOWHERE

    def __post_init__(self) -> None:
        self.num_bytes = sum(
            one.item.num_bytes for steps in self._ranks.values() for one in steps.held
        )

    def accept(
        self, rank: int, stream: int, step: int, item: T, closed: Place
    ) -> OrderedRecords[T]:
        """Place a record, and what its coming decides of those that are held.

        Args:
            stream: Which records of the rank these are, in each of which steps go on.
        """
        steps = self._rank(rank)
        placed: OrderedRecords[T] = OrderedRecords()
        if steps.held:
            self._decide(rank, steps, step, closed, placed)
        if (
            self._is_far(steps, step)
            and len(steps.held) < MAX_HELD
            and not self._is_near(rank, step)
        ):
            steps.held.append(Held(stream, step, item))
            self.num_bytes += item.num_bytes
            return placed
        if self._is_far(steps, step):
            self._confirm_near(step, closed, placed)
        placed.records.append((rank, self._place(steps, stream, step, closed), item))
        return placed

    def place(self, rank: int, stream: int, step: int, closed: Place) -> Place | None:
        """Return the position of a record that is not to be held, None if it is far ahead."""
        steps = self._rank(rank)
        return None if self._is_far(steps, step) else self._place(steps, stream, step, closed)

    def place_at_once(self, rank: int, stream: int, step: int, closed: Place) -> Place | None:
        """Return the position of a record, None if `accept` has to decide of it or of others."""
        steps = self._ranks[rank] if rank in self._ranks else self._rank(rank)
        if steps.held or (step >= FAR and self._is_far(steps, step)):
            return None
        last = steps.last
        if steps.epoch < closed[0] or stream not in last or step < last[stream]:
            return self._place(steps, stream, step, closed)
        last[stream] = step  # nearly always
        place = steps.epoch, step
        if place != self._newest and place > self._newest:  # the first rank of a step alone
            self._newest = place
        return place

    def release(self, rank: int, closed: Place, *, alone: bool) -> OrderedRecords[T]:
        """Settle what is held of a rank that has ended: right if it is *alone*, else rejected."""
        placed: OrderedRecords[T] = OrderedRecords()
        steps = self._ranks.get(rank)
        if steps is not None:
            self._settle(rank, steps, closed, placed, right=alone)
        return placed

    def release_all(self, closed: Place) -> OrderedRecords[T]:
        """Take all that is held for right, as beyond `MAX_HELD`: there is no room to wait."""
        placed: OrderedRecords[T] = OrderedRecords()
        for rank, steps in self._ranks.items():
            self._settle(rank, steps, closed, placed, right=True)
        return placed

    def _rank(self, rank: int) -> _RankSteps[T]:
        steps = self._ranks.get(rank)
        if steps is None:
            steps = self._ranks[rank] = _RankSteps(self._newest[0])
        return steps

    def _decide(
        self, rank: int, steps: _RankSteps[T], step: int, closed: Place, placed: OrderedRecords[T]
    ) -> None:
        ahead = steps.held[0].step
        if step != ahead:
            self._settle(rank, steps, closed, placed, right=step > ahead)

    def _confirm_near(self, step: int, closed: Place, placed: OrderedRecords[T]) -> None:
        for rank, steps in self._ranks.items():
            if steps.held and abs(steps.held[0].step - step) <= FAR:
                self._settle(rank, steps, closed, placed, right=True)

    def _settle(
        self,
        rank: int,
        steps: _RankSteps[T],
        closed: Place,
        placed: OrderedRecords[T],
        *,
        right: bool,
    ) -> None:
        held, steps.held = steps.held, []
        for one in held:
            self.num_bytes -= one.item.num_bytes
            if right:
                place = self._place(steps, one.stream, one.step, closed)
                placed.records.append((rank, place, one.item))
            else:
                placed.rejected.append((one.step, one.item))

    def _is_far(self, steps: _RankSteps[T], step: int) -> bool:
        return (
            self.holds
            and step >= FAR
            and step - max(steps.last.values(), default=self._newest[1]) > FAR
        )

    def _is_near(self, rank: int, step: int) -> bool:
        """Tell whether another rank's held record is near."""
        return any(
            steps.held and abs(steps.held[0].step - step) <= FAR
            for other, steps in self._ranks.items()
            if other != rank
        )

    def _place(self, steps: _RankSteps[T], stream: int, step: int, closed: Place) -> Place:
        if steps.epoch < closed[0]:  # the others went back: this one goes on from here
            steps.epoch = closed[0]
            steps.last.clear()
        elif step < steps.last.get(stream, -1):
            steps.epoch += 1
            steps.last.clear()
        steps.last[stream] = step
        place = steps.epoch, step
        self._newest = max(self._newest, place)
        return place
