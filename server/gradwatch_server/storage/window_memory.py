"""Windows in memory: which frames leave it, because they are saved, and which come back.

Nothing that is derived from the log depends on it, for what is not in memory is read where it is
asked for (`ChunkedRows`). So the budget is no fact of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.core.attempt import Attempt
from gradwatch_server.core.frames.window import Window
from gradwatch_server.core.run import Run
from gradwatch_server.core.state import State
from gradwatch_server.storage.checkpoints import fill_window, source_of
from gradwatch_server.storage.store import SavedState

ENDED_NS: Final = 60_000_000_000
"""Frames of an attempt stay so long after its last sign of life: a rank may come back."""

LOOK_NS: Final = 1_000_000_000
"""How often it is looked what may leave memory."""

HURRY_NS: Final = 100_000_000
"""The same while there is too much."""

RELEASE_BYTES: Final = 64 << 20
"""What leaves memory at once."""

FILL_BYTES: Final = 4 << 20
"""What is read at once, but for one chunk at least: some 10 ms."""

WIDE_BYTES: Final = 16 << 20
"""Frames that are saved at once at the latest: that takes 0.1 s, and until then they cannot leave
memory. 300 layers have so much after 1,000 steps, 20,000 layers after 17."""

FILL_SHARE: Final = 0.875
"""The part of the budget up to which frames of what lives come back before they are asked for."""

BUDGET: Final = "window_bytes"

NumSaved: TypeAlias = Callable[[Attempt], int]
"""Gives how many frames had been added to the window of an attempt when it was saved."""


class WindowMemory:
    """Keeps the windows of one state within their budget."""

    def __init__(self, saved: SavedState, budget_use: BudgetUse, num_saved: NumSaved) -> None:
        self._saved = saved
        self._num_saved = num_saved
        self._use = budget_use[BUDGET]
        self._limit = budget_use.limit(BUDGET)
        self._bytes: dict[str, int] = {}  # run -> what its windows take, where that is anything
        self._total = 0
        self._touched: dict[str, None] = {}  # in order
        self._absent: dict[str, None] = {}  # runs with frames that may come back, newest last
        self._wide: dict[str, int] = {}  # runs with much that is not saved, and how much
        self._looked_ns = 0

    @property
    def unsaved(self) -> float:
        """What is not saved of the run with most, in `WIDE_BYTES`; 0 where that is less."""
        return max(self._wide.values(), default=0) / WIDE_BYTES

    def widest(self, state: State) -> str | None:
        """Return the run with most that is not saved if it must not wait for others."""
        self._count(state)
        return max(self._wide, key=lambda name: self._wide[name], default=None)

    def touch(self, runs: Iterable[str]) -> None:
        """Note that the windows of runs are about to change."""
        self._touched.update(dict.fromkeys(runs))

    def release_due(self, now_ns: int, state: State) -> bool:
        """Let a slice of what need not be in memory leave it; return whether there was any."""
        self._count(state)
        if now_ns - self._looked_ns < (HURRY_NS if self._total > self._limit else LOOK_NS):
            return False
        freed = 0
        over = self._total - self._limit
        for attempt in self._ended(state):
            is_old = now_ns - attempt.signs.heard_ns >= ENDED_NS
            if freed < RELEASE_BYTES and (is_old or freed < over):
                freed += self._release(attempt)
        for attempt in self._living(state) if freed < over else ():
            if freed < min(over, RELEASE_BYTES):
                freed += self._release(attempt, over - freed)
        if freed < RELEASE_BYTES:
            self._looked_ns = now_ns
        return freed > 0

    def _release(self, attempt: Attempt, most: float | None = None) -> int:
        """Let the chunks of a window go that are saved; of one that lives about *most* bytes."""
        window = attempt.window
        gone: list[int] = []
        freed = 0
        for number in window.releasable(self._num_saved(attempt), newest=most is None):
            if most is not None and freed >= most:
                break
            gone.append(number)
            freed += window.bytes_of(number)
        if gone:
            window.keep_with(source_of(self._saved, attempt))
            window.release(gone)
            self._use.num_evicted += self._total > self._limit
            self.touch([attempt.run])
        return freed

    def fill_due(self, state: State) -> bool:
        """Read a slice of what is absent of runs that live; return whether there was any."""
        self._count(state)
        while self._absent:
            name = next(reversed(self._absent))
            for attempt in _lacking(state.runs.get(name)):
                chunks = self._next_absent(attempt.window)
                fill_window(self._saved, attempt, chunks)
                self.touch([name])
                return bool(chunks)
            del self._absent[name]
        return False

    def _next_absent(self, window: Window) -> list[int]:
        """Return a slice of what is absent of a window, the newest first, if there is room."""
        room = FILL_SHARE * self._limit - self._total
        found: list[int] = []
        size = 0
        for number in window.absent():
            size += window.bytes_of(number)
            if size > room or (found and size > FILL_BYTES):
                break
            found.append(number)
        return found

    def _count(self, state: State) -> None:
        """Count the windows of what changed."""
        for name in self._touched:
            run = state.runs.get(name)
            num_bytes = 0 if run is None else sum(own.window.num_bytes for own in run.judged)
            self._total += num_bytes - self._bytes.pop(name, 0)
            if num_bytes:
                self._bytes[name] = num_bytes
            if _lacking(run):
                self._absent.setdefault(name)
            self._wide.pop(name, None)
            if (unsaved := self._unsaved_bytes(run)) > WIDE_BYTES:
                self._wide[name] = unsaved
        self._touched.clear()
        self._use.used = self._total

    def _unsaved_bytes(self, run: Run | None) -> int:
        """Return what the frames take that were added since a run was saved."""
        return sum(
            min(own.window.num_added - self._num_saved(own), len(own.window))
            * own.window.frame_bytes
            for own in (run.judged if run is not None else ())
        )

    def _in_memory(self, state: State) -> Iterator[Attempt]:
        for name in self._bytes:
            yield from (own for own in state.runs[name].judged if own.window.num_bytes)

    def _ended(self, state: State) -> list[Attempt]:
        """Return what does not live any more, what was not heard of for the longest time first."""
        ended = (own for own in self._in_memory(state) if not (own.lives or own.waiting))
        return sorted(ended, key=lambda own: own.signs.heard_ns)

    def _living(self, state: State) -> list[Attempt]:
        """Return what lives, what takes most first."""
        living = (own for own in self._in_memory(state) if own.lives or own.waiting)
        return sorted(living, key=lambda own: own.window.num_bytes, reverse=True)


def _lacking(run: Run | None) -> list[Attempt]:
    """Return the attempts of a run that live and have frames that are not in memory."""
    return [own for own in run.judged if own.lives and own.window.absent()] if run else []
