"""The assembler: what the ranks sent of one step is gathered, and steps close in their order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

from gradwatch_server.budgets import UNLIMITED
from gradwatch_server.core.frames.sizes import Item
from gradwatch_server.core.frames.step_order import NOWHERE, Place

LATENESS_NS: Final = 5_000_000_000
"""A step closes this long after its first record, without the ranks that are still missing."""

MAX_HELD_RECORDS: Final = 8_192
"""A step also closes without them when the open ones hold this many records, or 16 per rank:
after an outage one rank may send its whole backlog before another is connected again."""

T = TypeVar("T", bound=Item)


@dataclass(frozen=True, slots=True)
class StepRecords(Generic[T]):
    """Records of one step.

    Args:
        after: The step that closed before it in its epoch, -1 for none.
    """

    step: int
    after: int
    received_ns: int
    items: tuple[T, ...]
    epoch: int = 0


@dataclass(slots=True)
class _Open(Generic[T]):
    first_ns: int
    last_ns: int
    items: dict[tuple[int, int], T] = field(default_factory=dict)  # by rank and part
    complete_ranks: set[int] = field(default_factory=set)
    num_bytes: int = 0


@dataclass
class Assembler(Generic[T]):
    """Records of the open steps of one attempt, which close in order.

    Attributes:
        num_bytes: Bytes that the records of the open steps take in memory.
    """

    _open: dict[Place, _Open[T]] = field(default_factory=dict)
    _newest: dict[int, Place] = field(default_factory=dict)  # rank -> its newest position
    last_closed: Place = NOWHERE

    def __post_init__(self) -> None:
        self._steps = sorted(self._open)  # heap of the open steps
        self._num_held = sum(len(open_step.items) for open_step in self._open.values())
        self.num_bytes = sum(open_step.num_bytes for open_step in self._open.values())
        self._candidates: list[int] = []  # ranks that may lack the step they were found for
        self._candidates_of: Place | None = None
        self.has_due = False  # whether the last `close` left steps that are due

    def __bool__(self) -> bool:
        return bool(self._open)

    def items(self) -> Iterator[T]:
        """Yield the records of the open steps."""
        for open_step in self._open.values():
            yield from open_step.items.values()

    def add(
        self, rank: int, item: T, *, step: Place, now_ns: int, part: int = 0, parts: int = 1
    ) -> bool:
        """Take in one record; return False when its step is closed, or has one like it."""
        if step <= self.last_closed:
            return False
        if step in self._open:
            open_step = self._open[step]
            if (rank, part) in open_step.items:
                return False
        else:
            open_step = self._open[step] = _Open(now_ns, now_ns)
            heappush(self._steps, step)
        num_bytes = item.num_bytes
        open_step.items[rank, part] = item
        open_step.num_bytes += num_bytes
        self.num_bytes += num_bytes
        self._num_held += 1
        open_step.last_ns = now_ns
        if part == parts - 1:
            open_step.complete_ranks.add(rank)
        if rank not in self._newest or step > self._newest[rank]:
            self._newest[rank] = step
        return True

    def note(self, rank: int, step: Place) -> None:
        """Note that a rank has come to *step*: it sends nothing more of those before."""
        if step > self._newest.get(rank, NOWHERE):
            self._newest[rank] = step

    def expect(self, rank: int) -> None:
        """Note that from now on a rank is waited for."""
        if self._candidates_of is not None:
            self._candidates.append(rank)

    def resume(self, now_ns: int) -> None:
        """Wait anew for what the open steps lack: nobody could send it."""
        for open_step in self._open.values():
            open_step.first_ns = now_ns

    def close(
        self,
        alive: Collection[int],
        now_ns: int,
        world: int,
        *,
        awaits_others: bool = False,
        limit: int = UNLIMITED,
    ) -> Sequence[StepRecords[T]]:
        """Close, oldest first, each step that has all ranks or waited long enough.

        A rank is done with a step once it sent all parts of it or anything newer: its records
        come in order.

        Args:
            alive: The ranks that are waited for; `expect` told of each that was added.
            awaits_others: Whether ranks that never came are waited for, too.
        """
        closed: list[StepRecords[T]] = []
        self.has_due = False
        while self._open:
            step = self._steps[0]
            open_step = self._open[step]
            is_overdue = now_ns - open_step.first_ns > LATENESS_NS or (
                self._num_held > MAX_HELD_RECORDS and self._num_held > 16 * world
            )
            if not is_overdue and (awaits_others or self._is_waiting(step, open_step, alive)):
                break
            if len(closed) == limit:
                self.has_due = True
                break
            closed.append(self._close_oldest())
        return closed

    def close_early(self, limit: int) -> Iterator[StepRecords[T]]:
        """Close, oldest first, steps that still wait, until no more than *limit* are held."""
        while self._open and self.num_bytes > limit:
            yield self._close_oldest()

    def _close_oldest(self) -> StepRecords[T]:
        step = heappop(self._steps)
        open_step = self._open.pop(step)
        self._num_held -= len(open_step.items)
        self.num_bytes -= open_step.num_bytes
        after, self.last_closed = self.last_closed, step
        before = after[1] if after[0] == step[0] else -1
        items = tuple(open_step.items.values())
        return StepRecords(step[1], before, open_step.last_ns, items, step[0])

    def _is_waiting(self, step: Place, open_step: _Open[T], alive: Collection[int]) -> bool:
        """Tell whether a rank is missing. Called for each record: looks at all ranks once a step.

        A rank that lacked the step before mostly lacks this one, too.
        """
        newest = self._newest
        while True:
            while self._candidates:
                rank = self._candidates[-1]
                is_done = rank in open_step.complete_ranks or (
                    rank in newest and newest[rank] > step
                )
                if not is_done and rank in alive:
                    return True
                self._candidates.pop()
            if self._candidates_of == step:
                return False
            self._candidates, self._candidates_of = list(alive), step
